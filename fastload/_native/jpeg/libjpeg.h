// libjpeg's errors without exit() or output on stderr, and a compressor's output in memory.
#pragma once

#include <csetjmp>
#include <cstddef>
#include <cstdio>
#include <cstdlib>

#include <jpeglib.h>

#include <jerror.h>

#include "jpeg/errors.h"

namespace fastload {

// Note [setjmp]
// libjpeg reports an error by calling error_exit, which must not return: it jumps to `jump`. The destructor
// of an object that lives in a frame between the setjmp and the libjpeg call would not run. So each function
// that calls setjmp holds plain values only, and its caller owns everything else.
struct LibjpegErrors {
  jpeg_error_mgr manager;  // first: libjpeg passes a pointer to it
  std::jmp_buf jump;
  char message[JMSG_LENGTH_MAX];  // the error, or the first warning

  void install(jpeg_common_struct* cinfo) {
    cinfo->err = quiet_errors(&manager);
    message[0] = '\0';
    manager.error_exit = [](j_common_ptr failed) {
      LibjpegErrors* errors = reinterpret_cast<LibjpegErrors*>(failed->err);
      failed->err->format_message(failed, errors->message);
      std::longjmp(errors->jump, 1);
    };
    manager.emit_message = [](j_common_ptr warned, int level) {
      if (level >= 0) return;  // a trace
      LibjpegErrors* errors = reinterpret_cast<LibjpegErrors*>(warned->err);
      if (warned->err->num_warnings++ == 0) warned->err->format_message(warned, errors->message);
    };
  }
};

// A compressor's output in memory. Not jpeg_mem_dest: after an error, it leaves the caller with a pointer
// that it may have freed itself.
struct LibjpegOutput {
  jpeg_destination_mgr manager{};  // first: libjpeg passes a pointer to it
  unsigned char* bytes = nullptr;
  size_t nbytes = 0, capacity = 0;

  LibjpegOutput() = default;
  ~LibjpegOutput() { std::free(bytes); }
  LibjpegOutput(const LibjpegOutput&) = delete;
  LibjpegOutput& operator=(const LibjpegOutput&) = delete;

  void install(j_compress_ptr cinfo) {
    cinfo->dest = &manager;
    manager.init_destination = [](j_compress_ptr info) { of(info)->grow(info); };
    manager.empty_output_buffer = [](j_compress_ptr info) -> boolean {
      of(info)->nbytes = of(info)->capacity;
      of(info)->grow(info);
      return TRUE;
    };
    manager.term_destination = [](j_compress_ptr info) {
      of(info)->nbytes = of(info)->capacity - of(info)->manager.free_in_buffer;
    };
  }

 private:
  static LibjpegOutput* of(j_compress_ptr cinfo) { return reinterpret_cast<LibjpegOutput*>(cinfo->dest); }
  void grow(j_compress_ptr cinfo) {
    const size_t wanted = capacity ? 2 * capacity : size_t{1} << 16;
    void* grown = std::realloc(bytes, wanted);
    if (!grown) ERREXIT1(cinfo, JERR_OUT_OF_MEMORY, 0);
    bytes = static_cast<unsigned char*>(grown);
    capacity = wanted;
    manager.next_output_byte = bytes + nbytes;
    manager.free_in_buffer = capacity - nbytes;
  }
};

}  // namespace fastload
