// Exact antialiased resampling: bit for bit what Pillow's Image.resize gives on 8-bit RGB.
//
// What it does. A Resampler takes the rows of a box as they are decoded, resizes them, crops a window,
// mirrors it, and stores it through a lookup table. resample.cpp is the control flow, plan.h the passes and
// their order, axis.h the weights, shared_axes.h the weights that threads share, kernels.h the functions of
// one instruction set (scalar.cpp, avx2*.cpp, avx512*.cpp, neon*.cpp).
//
// Guarantees
//   exactness      Pillow's result bit for bit, for every filter, box, window and pass order, and torch's for
//                  kTorch*; all instruction sets give the same bits
//   bounds         reads up to 64 bytes past each row (the caller provides them), writes only the target
//   errors         begin() returns false for invalid sizes or if memory runs out; nothing else can fail
//   thread safety  a Resampler belongs to one thread; shared tables are immutable
//   ownership      the target, its lut and shared tables belong to the caller and must live until finish()
//
// Tests: tests/native/test_resample.py, test_scaled.py, test_batch.py, tests/loader/test_exactness.py,
// tests/transforms/, tests/sources/deferred/test_value_resize.py (values.h).
//
// Source of the arithmetic: Pillow, src/libImaging/Resample.c (22-bit fixed-point weights, rounding half up,
// a uint8 intermediate between the two passes) and, for kNearest, Geometry.c. See Note [Pass order] in
// resample/plan.cpp.
#pragma once

#include <cstddef>
#include <cstdint>

namespace fastload {

// kTorchBilinear and kTorchBicubic: torch's result for antialiased uint8 tensors. Its weights are rounded to
// 16 bits and its first pass is always the horizontal one; otherwise it is Pillow's arithmetic. Source: ATen,
// native/cpu/UpSampleKernel.cpp, "Weights computation for uint8_t and multiplication trick".
enum class Filter : int {
  kNearest = 0,
  kBox = 1,
  kBilinear = 2,
  kHamming = 3,
  kBicubic = 4,
  kLanczos = 5,
  kTorchBilinear = 6,
  kTorchBicubic = 7,
};
constexpr int kFilters = 8;

// Which pass comes first. It differs between versions of Pillow, and some results differ by one level.
// kPillow12: always horizontal. kPillow13: vertical if the height shrinks much more than the width.
// kPillow122: vertical only for extremely tall images (Pillow 12.2 and 12.3).
enum class PassOrder : int { kPillow12 = 0, kPillow13 = 1, kPillow122 = 2 };

enum class Dtype : int { kUint8 = 0, kFloat32 = 1, kFloat16 = 2, kBfloat16 = 3 };

// Bytes of one element.
constexpr int64_t dtype_nbytes(Dtype dtype) {
  return dtype == Dtype::kUint8 ? 1 : dtype == Dtype::kFloat32 ? 4 : 2;
}

// The longest side of a box or of a resized image (no JPEG can be larger).
constexpr int kMaxSide = 65535;

// Where the finished pixels of one image go.
// Strides are in elements of `dtype`. NCHW: channel_stride = h*w, pixel_stride = 1.
// channels_last (and HWC): channel_stride = 1, pixel_stride = 3.
struct Target {
  void* data;
  Dtype dtype;
  int64_t row_stride, pixel_stride, channel_stride;
  // 3 x 256 values of `dtype`, indexed [channel][level]: ToTensor, Normalize and the cast, folded into one
  // table that Python computes with torch itself, so that the result is torch's, bit for bit. nullptr: uint8
  // levels are stored unchanged (only for kUint8). Must live until finish().
  const void* lut;
  bool flip;        // mirror left to right, after the window is cropped
  uint8_t fill[3];  // level of window pixels outside the resized image
  // Store the source's last channel first, as OpenCV does. `lut` and `fill` are of the channels as stored.
  bool reversed = false;
};

namespace resampling {
class SharedAxis;  // resample/shared_axes.h
}

// What to do with one source box. All in pixels.
struct Resize {
  int box_w, box_h;          // size of the source box
  int resized_w, resized_h;  // the box is resized to this (equal to box_*: no resampling)
  int window_x, window_y;    // then this window is stored; it may extend beyond the resized image
  int out_w, out_h;          // size of the window
  Filter filter;
  PassOrder order;
  // How much of the box's first and last column and row lies outside the box, in eighths of a pixel (0 to 7),
  // for an image that was decoded at a smaller size. As with Pillow's `box`, the filter still uses those
  // whole pixels, but none beyond. Not with kNearest.
  int lead_x = 0, tail_x = 0, lead_y = 0, tail_y = 0;
  // Tables shared with other threads, used if they match this resize; they must live until finish().
  // Otherwise the Resampler uses its own.
  const resampling::SharedAxis* x_axis = nullptr;
  const resampling::SharedAxis* y_axis = nullptr;
};

// Resamples one image after another; one object per thread. Memory and weight tables are reused (tables
// that are not shared: up to 4 MB, least recently used first out). Usage: begin, feed the needed rows from
// top to bottom with rows(), finish.
class Resampler {
 public:
  Resampler();
  ~Resampler();
  Resampler(const Resampler&) = delete;
  Resampler& operator=(const Resampler&) = delete;

  // False: memory ran out, a size is below 1 or above kMaxSide, or the lut is missing. After it, need_* give
  // the part of the box to feed.
  bool begin(const Resize& resize, const Target& target);

  // Half-open ranges of the box's columns and rows that contribute to the window (empty: 0, 0).
  int need_x0() const;
  int need_x1() const;
  int need_y0() const;
  int need_y1() const;

  // Feeds the next `count` rows of RGB pixels. `first`: pixel (need_x0, next row); `stride`: bytes between
  // rows. At least 64 readable bytes of any value must follow the last pixel of each row. Multiples of 4 rows
  // avoid a copy. Rows past need_y1 are ignored.
  void rows(const uint8_t* first, ptrdiff_t stride, int count);

  // Ends the image. Every pixel of the window has then been written, if every needed row was fed.
  void finish();

  // Whether begin and rows measure their time from now on, for spent_ns, which restarts at 0.
  void measure(bool on);

  // Nanoseconds spent in them since measure().
  int64_t spent_ns() const;

 private:
  struct Impl;
  struct ScopedTimer;
  Impl* impl_;
};

}  // namespace fastload
