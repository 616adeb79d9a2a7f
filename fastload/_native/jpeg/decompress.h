// libjpeg's decompress object with our error handler and a source in memory, and checks of what it has read.
#pragma once

#include <setjmp.h>

#include <cstddef>
#include <cstdint>
#include <cstdio>

#include <jpeglib.h>

namespace fastload {

// Note [Errors of libjpeg]
// libjpeg reports a fatal error by calling error_exit, which must not return. Ours longjmps to a setjmp in a
// function that does nothing else (`guarded` in jpeg/jpeg.cpp). A longjmp skips destructors, so neither that
// function nor any between it and libjpeg (decode_body and what it calls) owns an object with a destructor:
// such objects are members, or belong to the caller. A warning is treated as an error: libjpeg would continue
// with invented pixels, and only Pillow may decide whether such an image is valid.
struct Decompressor {
  jpeg_decompress_struct cinfo{};
  struct {
    jpeg_error_mgr base;
    jmp_buf escape;
  } error{};
  jpeg_source_mgr source{};
  bool usable = false;  // the linked libjpeg matches its headers

  Decompressor();
  ~Decompressor();
  Decompressor(const Decompressor&) = delete;
  Decompressor& operator=(const Decompressor&) = delete;

  // The whole file is in memory from the start, so a read beyond its end means that it is truncated.
  void read_from(const uint8_t* data, size_t nbytes);
};

// Leaves libjpeg the way its own errors do.
[[noreturn]] void escape(j_common_ptr cinfo);

// Note [Tables of the image before]
// A decompress object that is used again keeps the quantisation and Huffman tables of the image before.
// libjpeg uses them for a file that defines none, so its pixels would depend on the image before. Therefore
// the tables are cleared before every image, and a file that uses an undefined table is left to Pillow, which
// creates a new decoder for each image.
void forget_tables(jpeg_decompress_struct* cinfo);
bool quantisation_defined(const jpeg_decompress_struct& cinfo);
// True for progressive files: libjpeg itself warns about a scan without codes.
bool codes_defined(const jpeg_decompress_struct& cinfo);

// Whether the image has 8 bits per sample, Huffman codes, gray, YCbCr or RGB, and at most kMaxPixels.
bool supported(const jpeg_decompress_struct& cinfo);

}  // namespace fastload
