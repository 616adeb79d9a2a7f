// JPEG and DCT records: only the needed rows and columns are decoded, straight into the resampler.
#pragma once

#include <cstddef>
#include <cstdint>

#include "batch/image.h"

namespace fastload {

// One per thread; libjpeg's tables and buffers are reused from image to image.
class JpegDecoder {
 public:
  JpegDecoder();  // throws std::bad_alloc
  ~JpegDecoder();
  JpegDecoder(const JpegDecoder&) = delete;
  JpegDecoder& operator=(const JpegDecoder&) = delete;

  // A JPEG file. kUnsupported: Pillow must decide, for libjpeg warned or the file is of a rare kind.
  Status decode(const Span& span, const Placement& placement, RowBuffer* rows, Resampler* resampler);

  // A record of the DCT store.
  Status decode_dct(const Span& span, const Placement& placement, RowBuffer* rows, Resampler* resampler);

  // Whether the last decode() was done by our own Huffman decoder (jpeg/entropy.h). For the tests.
  bool own_entropy() const;

  // Whether the last image was a JPEG with the header of the one before (Note [Header]). For the tests.
  bool again() const;

  struct Impl;  // public for the C callbacks in jpeg/jpeg.cpp only

 private:
  Impl* impl_;
};

// Version of the libjpeg-turbo headers this was compiled against.
const char* jpeg_version();

}  // namespace fastload
