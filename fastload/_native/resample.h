// Exact antialiased resampling: bit for bit what Pillow's Image.resize gives on 8-bit RGB.
//
// Source of the arithmetic: Pillow, src/libImaging/Resample.c (22-bit fixed-point weights, rounding
// half up, a uint8 intermediate between the two passes). See Note [Pass order] in resample.cpp.
#pragma once

#include <cstddef>
#include <cstdint>

namespace fastload {

enum class Filter : int { kNearest = 0, kBox = 1, kBilinear = 2, kHamming = 3, kBicubic = 4, kLanczos = 5 };

// Which pass comes first. kPillow12: always horizontal. kPillow13: vertical where the height shrinks
// much more than the width.
enum class PassOrder : int { kPillow12 = 0, kPillow13 = 1 };

enum class Dtype : int { kUint8 = 0, kFloat32 = 1, kFloat16 = 2, kBfloat16 = 3 };

// One image of the batch, where finished pixels go.
// Strides are in elements of `dtype`. NCHW: channel_stride = h*w, pixel_stride = 1.
// channels_last (and HWC): channel_stride = 1, pixel_stride = 3.
struct Target {
  void* data;
  Dtype dtype;
  int64_t row_stride, pixel_stride, channel_stride;
  // 3 x 256 values of `dtype`, indexed [channel][level]: ToTensor, Normalize and the cast, folded into
  // one table that Python computed with torch's own arithmetic, so that the result is torch's, bit for
  // bit. nullptr: uint8 levels are stored as they are.
  const void* lut;
  bool flip;        // mirror left to right, after the window was cut
  uint8_t fill[3];  // level of pixels of the window that lie outside of the resized image
};

// What to make of one source box. All in pixels.
struct Resize {
  int box_w, box_h;          // size of the source box
  int resized_w, resized_h;  // the box is resized to this (equal to box_*: no resampling)
  int window_x, window_y;    // then this window is stored; it may reach beyond the resized image
  int out_w, out_h;          // size of the window
  Filter filter;
  PassOrder order;
};

// Resamples one image after the other; one object per thread, scratch and weight tables are reused.
// Usage: begin, feed the needed rows top to bottom with rows(), finish.
class Resampler {
 public:
  Resampler();
  ~Resampler();
  Resampler(const Resampler&) = delete;
  Resampler& operator=(const Resampler&) = delete;

  // Returns false if memory ran out. After it, need_* tell which part of the box must be fed.
  bool begin(const Resize& resize, const Target& target);

  // Half-open ranges of the box's columns and rows that contribute to the window (empty: 0,0).
  int need_x0() const;
  int need_x1() const;
  int need_y0() const;
  int need_y1() const;

  // Bytes per pixel that rows() wants for this image: 3 (RGB) or 4 (RGBX), whichever is faster here.
  int pixel_bytes() const;

  // The next `count` rows. `first` is the pixel (need_x0, next row); `stride` in bytes between rows.
  // At least 64 readable bytes must follow the last pixel of each row (their values do not matter).
  void rows(const uint8_t* first, ptrdiff_t stride, int count);

  // Emits what is left. Every pixel of the window has been written after this.
  void finish();

  // Name of the instruction set in use: "avx512", "avx2", "scalar". FASTLOAD_SIMD picks a lower one.
  static const char* simd();

 private:
  struct Impl;
  Impl* impl_;
};

}  // namespace fastload
