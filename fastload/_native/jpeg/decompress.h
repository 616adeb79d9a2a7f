// libjpeg's decompress object with errors, a source in memory, and what of a header we can go on with.
#pragma once

#include <setjmp.h>

#include <cstddef>
#include <cstdint>
#include <cstdio>

#include <jpeglib.h>

namespace fastload {

// Note [Errors of libjpeg]
// libjpeg reports a fatal error by calling error_exit, which must not return. We leave it by longjmp to
// a setjmp in a function that does nothing else (`guarded` in jpeg/jpeg.cpp). A longjmp skips destructors, so
// neither that function nor anything between it and libjpeg (the *_body functions) owns an object with one:
// what they need lives in members or with the caller. Warnings leave the same way: libjpeg would go on with
// made-up pixels, and whether such an image is an error is for Pillow to say.
struct Decompressor {
  jpeg_decompress_struct cinfo{};
  struct {
    jpeg_error_mgr base;
    jmp_buf escape;
  } error{};
  jpeg_source_mgr source{};
  bool usable = false;  // libjpeg is built like its headers

  Decompressor();
  ~Decompressor();
  Decompressor(const Decompressor&) = delete;
  Decompressor& operator=(const Decompressor&) = delete;

  // The whole file is in memory from the start: whoever wants more is reading a truncated one.
  void read_from(const uint8_t* data, size_t nbytes);
};

// Leaves libjpeg, as an error of its own does.
[[noreturn]] void escape(j_common_ptr cinfo);

// Note [Tables of the image before]
// A decompress object that is used again keeps the quantisation and Huffman tables of the image before,
// and libjpeg takes them for a file that defines none of its own: its pixels would depend on its
// neighbour. So they are emptied before every image, and a file that uses one it did not define is left
// to Pillow, whose decoder is fresh.
void forget_tables(jpeg_decompress_struct* cinfo);
bool quantisation_defined(const jpeg_decompress_struct& cinfo);
// A progressive scan without codes is noticed by libjpeg, which decodes it carefully and warns.
bool codes_defined(const jpeg_decompress_struct& cinfo);

// Of 8 bits, with Huffman codes, gray, YCbCr or RGB, and no larger than anything may be.
bool supported(const jpeg_decompress_struct& cinfo);

}  // namespace fastload
