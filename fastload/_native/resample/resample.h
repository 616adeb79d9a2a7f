// Exact antialiased resampling: bit for bit what Pillow's Image.resize gives on 8-bit RGB.
//
// Source of the arithmetic: Pillow, src/libImaging/Resample.c (22-bit fixed-point weights, rounding
// half up, a uint8 intermediate between the two passes) and, for kNearest, Geometry.c. See
// Note [Pass order] in resample/plan.cpp.
#pragma once

#include <cstddef>
#include <cstdint>

namespace fastload {

// kTorchBilinear and kTorchBicubic: what torch gives for antialiased uint8 tensors. Its weights are rounded
// to 16 bits and its first pass is always the horizontal one; all else is Pillow's arithmetic. Source: ATen,
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

// Which pass comes first; the versions of Pillow differ, and so do their results by a level here and there.
// kPillow12: always horizontal. kPillow13: vertical where the height shrinks much more than the width.
// kPillow122: vertical only for extremely tall images (Pillow 12.2 and 12.3).
enum class PassOrder : int { kPillow12 = 0, kPillow13 = 1, kPillow122 = 2 };

enum class Dtype : int { kUint8 = 0, kFloat32 = 1, kFloat16 = 2, kBfloat16 = 3 };

// No side of a box or of a resized image may be longer (a JPEG's can't).
constexpr int kMaxSide = 65535;

// One image of the batch, where finished pixels go.
// Strides are in elements of `dtype`. NCHW: channel_stride = h*w, pixel_stride = 1.
// channels_last (and HWC): channel_stride = 1, pixel_stride = 3.
struct Target {
  void* data;
  Dtype dtype;
  int64_t row_stride, pixel_stride, channel_stride;
  // 3 x 256 values of `dtype`, indexed [channel][level]: ToTensor, Normalize and the cast, folded into
  // one table that Python computed with torch's own arithmetic, so that the result is torch's, bit for
  // bit. nullptr: uint8 levels are stored as they are (only for kUint8). Must live until finish().
  const void* lut;
  bool flip;        // mirror left to right, after the window was cut
  uint8_t fill[3];  // level of pixels of the window that lie outside of the resized image
};

namespace resampling {
class SharedAxis;  // resample/shared_axes.h
}

// What to make of one source box. All in pixels.
struct Resize {
  int box_w, box_h;          // size of the source box
  int resized_w, resized_h;  // the box is resized to this (equal to box_*: no resampling)
  int window_x, window_y;    // then this window is stored; it may reach beyond the resized image
  int out_w, out_h;          // size of the window
  Filter filter;
  PassOrder order;
  // What of the box's first and last column and row lies outside of it, in eighths of a pixel (0 to 7): a
  // box of an image that was decoded smaller. As with Pillow's `box`, whole pixels are looked at all the
  // same, up to those the box is made of. Not with kNearest.
  int lead_x = 0, tail_x = 0, lead_y = 0, tail_y = 0;
  // Tables shared with other threads, where they are those of this resize: must live until finish(). Else the
  // Resampler has its own.
  const resampling::SharedAxis* x_axis = nullptr;
  const resampling::SharedAxis* y_axis = nullptr;
};

// Resamples one image after the other; one object per thread, scratch and weight tables are reused
// (weight tables that are not shared up to 4 MB, the least recently used go first).
// Usage: begin, feed the needed rows top to bottom with rows(), finish.
class Resampler {
 public:
  Resampler();
  ~Resampler();
  Resampler(const Resampler&) = delete;
  Resampler& operator=(const Resampler&) = delete;

  // Returns false if memory ran out, or a size is below 1 or above kMaxSide, or a table is missing.
  // After it, need_* tell which part of the box must be fed.
  bool begin(const Resize& resize, const Target& target);

  // Half-open ranges of the box's columns and rows that contribute to the window (empty: 0,0).
  int need_x0() const;
  int need_x1() const;
  int need_y0() const;
  int need_y1() const;

  // Bytes per pixel that rows() wants: 3 (RGB) on every instruction set so far.
  int pixel_bytes() const;

  // The next `count` rows. `first` is the pixel (need_x0, next row); `stride` in bytes between rows.
  // At least 64 readable bytes must follow the last pixel of each row (their values do not matter).
  // Any count will do; multiples of 4 spare a copy. Rows past need_y1 are ignored.
  void rows(const uint8_t* first, ptrdiff_t stride, int count);

  // Emits what is left. Every pixel of the window has been written after this, if every needed row was fed.
  void finish();

  // Whether begin and rows read the clock from now on, for spent_ns, which starts again at 0.
  void measure(bool on);

  // Nanoseconds spent in them since.
  int64_t spent_ns() const;

  // Name of the instruction set in use: "avx512", "avx2", "scalar". FASTLOAD_SIMD picks a lower one.
  static const char* simd();

 private:
  struct Impl;
  struct Lap;
  Impl* impl_;
};

// Chooses the instruction set for images begun from now on, in all threads: "avx512", "avx2", "scalar", or
// "" for the best one here. Returns false, and changes nothing, where this machine lacks it. For tests.
bool set_simd(const char* name);

// The whole box at once, by a Resampler that each thread keeps for this. `rgb` is the box's pixel (0, 0),
// 3 bytes per pixel, `stride` bytes between rows. Unlike Resampler::rows, reads no byte behind the box's
// last one. Returns what Resampler::begin returns.
bool resample_image(const uint8_t* rgb, ptrdiff_t stride, const Resize& resize, const Target& target);

}  // namespace fastload
