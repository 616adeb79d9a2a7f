// What every decoder is told about one sample, and the decoders of uncompressed pixels.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/status.h"
#include "io/files.h"
#include "resample/resample.h"

namespace fastload {

// A larger image is left to Pillow, which refuses decompression bombs. Pillow warns from here on.
constexpr int64_t kMaxPixels = 89478485;

// One sample: the box of the source image, what becomes of it, and where it goes.
struct Placement {
  int source_w, source_h;  // size the store promised; 0: unknown
  int box_x, box_y;        // upper left corner of the box; its size is in `resize`
  Resize resize;
  Target target;
  bool scaled = false;  // a JPEG may be decoded at a part of its size, see scale_of
};

// One of 8, 4, 2 and 1: a part of its size that a JPEG is decoded at, where it is at least twice as large as
// what it is resized to even so. 1 where `scaled` is not asked for, with kNearest, which picks pixels, and
// with torch's filters, which know no fractions of a pixel.
int scale_of(const Placement& placement);

// The same sample of the image at 1 / `scale` of its size. The image's size must have been checked before.
Placement scaled_down(const Placement& placement, int scale);

// Whether the image is of the promised size and holds the box.
bool fits(const Placement& placement, int width, int height);

// Checks the image's size against the placement and begins the resampling. After kOk the decoder feeds
// rows [need_y0, need_y1) of the box.
Status begin_placement(const Placement& placement, int width, int height, Resampler* resampler);

// Rows that libjpeg or a pixel format is unpacked into. Chunks of kRows rows stay in the cache between
// the decoder and the resampler. Rows lie 16 bytes off 32-byte alignment: on aligned ones libjpeg-turbo's
// colour converter stores past the cache, and the resampler fetches every row back from memory.
class RowBuffer {
 public:
  static constexpr int kRows = 16;

  RowBuffer() = default;
  ~RowBuffer();
  RowBuffer(const RowBuffer&) = delete;
  RowBuffer& operator=(const RowBuffer&) = delete;

  // Room for kRows rows of nbytes, each followed by 64 readable bytes. False if memory ran out.
  bool reserve(size_t nbytes);
  uint8_t* row(int i) const { return base_ + static_cast<size_t>(i) * stride_; }
  ptrdiff_t stride() const { return static_cast<ptrdiff_t>(stride_); }

 private:
  uint8_t* memory_ = nullptr;
  uint8_t* base_ = nullptr;
  size_t capacity_ = 0;
  size_t stride_ = 0;
};

// Raw uint8 pixels, three channels; the size comes from the placement, the span says how they lie.
Status decode_raw(const Span& span, const Placement& placement, RowBuffer* rows, Resampler* resampler);

// Uncompressed BMP with 24 or 32 bits per pixel; any other kind is kUnsupported.
Status decode_bmp(const Span& span, const Placement& placement, RowBuffer* rows, Resampler* resampler);

// Width and height out of a JPEG, PNG or BMP header. kUnsupported: another format, or not within nbytes.
Status probe_size(const uint8_t* data, size_t nbytes, int* width, int* height);

// Whether the image ends: whether a marker that says so comes after the head of the first scan. Without one
// the file may be truncated, which Pillow finds out by decoding all of it. Bytes behind the end are fine.
bool jpeg_ends(const uint8_t* data, size_t nbytes);

// Walks a JPEG's markers up to the frame header. `sof` is the marker's low byte (0xC0: baseline).
bool find_jpeg_frame(const uint8_t* data, size_t nbytes, int* sof, int* width, int* height);

}  // namespace fastload
