// WebP files, decoded with libwebp as Pillow does.
//
// What it does. WebpDecoder decodes a lossy or lossless WebP, with or without alpha, and feeds the rows of
// its box. Animations are Pillow's. Without libwebp at build time every file is kUnsupported.
//
// Guarantees
//   exactness      what Pillow's Image.open(file).convert("RGB") gives, bit for bit: WebP has one correct
//                  result, and versions of libwebp agree on the conversion to RGB. A damaged file is
//                  kUnsupported, whatever the crop
//   bounds         an image above kMaxPixels is kUnsupported; libwebp checks everything else
//   errors         results are a Status; nothing throws
//   thread safety  a WebpDecoder belongs to one thread
//   ownership      the caller owns spans and targets
//
// Tests: tests/native/test_webp.py, test_fuzz.py (fuzz_png.cpp).
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/status.h"
#include "image/placement.h"
#include "io/files.h"
#include "resample/resample.h"

namespace fastload {

// Decodes one image after another; its memory is reused.
class WebpDecoder {
 public:
  Status decode(const Span& span, const Placement& placement, RowBuffer* rows, Resampler* resampler);

 private:
  Scratch pixels_;
};

// The version of libwebp that decodes, such as 1.2.4, as 0x010204; 0: the core was built without it.
int webp_library();

}  // namespace fastload
