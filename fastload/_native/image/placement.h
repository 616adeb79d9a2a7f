// Images, whatever their format: what decoders are told about one sample, and what needs no codec.
//
// What it does. A Placement is one sample: its box in the source, the resize, and the target. Every decoder
// takes one and feeds rows to a Resampler; RowBuffer holds rows on the way. uncompressed.h decodes raw pixels
// and BMP, header.h reads sizes from the headers of JPEG, PNG, WebP and BMP, orientation.h finds images that
// may be rotated.
//
// Guarantees
//   exactness      pixels are Pillow's; a file that Pillow may read in another way is kUnsupported
//   bounds         every size that a header claims is checked against the span and kMaxPixels before it is
//                  used
//   errors         results are a Status; nothing throws
//   thread safety  functions without state; a RowBuffer belongs to one thread
//   ownership      the caller owns spans and targets
//
// Tests: tests/native/test_batch.py, test_scaled.py, test_fuzz.py (fuzz.cpp),
// tests/sources/test_huggingface.py (orientation).
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/status.h"
#include "resample/resample.h"

namespace fastload {

// One sample: the box of the source image, its resize, and where the pixels go.
struct Placement {
  int source_w, source_h;  // the size that the store promised; 0: unknown
  int box_x, box_y;        // upper left corner of the box; its size is in `resize`
  Resize resize;
  Target target;
  bool scaled = false;  // a JPEG may be decoded at a fraction of its size, see scale_of
};

// The denominator of the size at which to decode a JPEG: 8, 4, 2 or 1. The largest at which the box is still
// at least twice as large as its resized size. 1 unless `scaled` is set; with kNearest, which picks single
// pixels; and with torch's filters, which support no fractions of a pixel.
int scale_of(const Placement& placement);

// The same sample of the image at 1 / `scale` of its size. Check the image's own size first: the result has
// none.
Placement scaled_down(const Placement& placement, int scale);

// Whether the image has the promised size and contains the box.
bool fits(const Placement& placement, int width, int height);

// Checks the image's size against the placement and begins the resampling. After kOk the decoder feeds rows
// [need_y0, need_y1) of the box.
Status begin_placement(const Placement& placement, int width, int height, Resampler* resampler);

// Rows into which libjpeg or another decoder writes pixels, three bytes each. Chunks of kRows rows stay in
// the cache between the decoder and the resampler. Rows are 16 bytes off 32-byte alignment: on aligned rows,
// libjpeg-turbo's colour converter uses non-temporal stores, and the resampler would fetch every row from
// memory.
class RowBuffer {
 public:
  static constexpr int kRows = 16;

  RowBuffer() = default;
  ~RowBuffer();
  RowBuffer(const RowBuffer&) = delete;
  RowBuffer& operator=(const RowBuffer&) = delete;

  // Makes room for kRows rows of nbytes, each followed by 64 readable bytes. False: memory ran out.
  bool reserve(size_t nbytes);
  uint8_t* row(int i) const { return base_ + static_cast<size_t>(i) * stride_; }
  ptrdiff_t stride() const { return static_cast<ptrdiff_t>(stride_); }

 private:
  uint8_t* memory_ = nullptr;
  uint8_t* base_ = nullptr;
  size_t capacity_ = 0;
  size_t stride_ = 0;
};

}  // namespace fastload
