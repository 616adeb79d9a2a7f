// Decodes JPEG files and DCT records: only the rows and columns that are needed, straight into the resampler.
//
// What it does. jpeg.cpp chooses how an image is decoded. Common kinds go through our own code: entropy*.cpp
// decodes Huffman codes to coefficients, planes.h converts coefficients to rows of pixels (idct.h is the
// inverse DCT, ycc.h upsampling and colour). Everything else goes through libjpeg-turbo, with our entropy
// decoder hooked in where possible (libjpeg_hook.h). huffman_index.h remembers where MCUs begin.
// self_test.cpp checks once per process that our pixels equal the linked libjpeg's. decompress.h, errors.h
// and libjpeg.h wrap libjpeg.
//
// Guarantees
//   exactness      pixels are libjpeg-turbo's (JDCT_ISLOW, fancy upsampling), bit for bit, for every crop,
//                  with every instruction set, whatever was decoded before
//   refusals       an image about which libjpeg warns, of a rare kind, or with anything but its end after the
//                  only scan, is kUnsupported: Pillow decides
//   bounds         no byte outside the span is read; pixels, scans and memory of one image are limited
//   errors         results are a Status; nothing throws but constructors (std::bad_alloc)
//   thread safety  a JpegDecoder belongs to one thread; all threads share an EntryTable
//   ownership      the caller keeps the span and the target alive during a call
//
// Tests: tests/native/test_jpeg.py, test_entropy.py, test_planes.py, test_samples.py, test_scaled.py,
// test_random_jpegs.py, test_fuzz.py (fuzz.cpp, entries.cpp), tests/engine/test_huffman_index.py,
// tests/loader/test_exactness.py.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/status.h"
#include "image/placement.h"
#include "io/files.h"
#include "resample/resample.h"

namespace fastload {

// One per thread; libjpeg's tables and buffers are reused from image to image.
class JpegDecoder {
 public:
  JpegDecoder();  // throws std::bad_alloc
  ~JpegDecoder();
  JpegDecoder(const JpegDecoder&) = delete;
  JpegDecoder& operator=(const JpegDecoder&) = delete;

  // Decodes a JPEG file. kUnsupported: Pillow must decide, because libjpeg warned or the file is of a rare
  // kind.
  Status decode(const Span& span, const Placement& placement, RowBuffer* rows, Resampler* resampler);

  // Decodes a DCT record.
  Status decode_dct(const Span& span, const Placement& placement, RowBuffer* rows, Resampler* resampler);

  // Whether our own Huffman decoder (jpeg/entropy.h) did the last decode(). For the tests.
  bool own_entropy() const;

  // Whether the last image was a JPEG with the same header as the one before (Note [Header]). For the tests.
  bool reused_header() const;

  struct Impl;  // public only for functions in jpeg/jpeg.cpp

 private:
  Impl* impl_;
};

// Version of the libjpeg-turbo headers that the core was compiled against.
const char* jpeg_version();

}  // namespace fastload
