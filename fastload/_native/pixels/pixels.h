// Operations on the pixels of one image, after decoding and before storing.
//
// What it does. Colour, histograms, filters, mirrors, rotations and affine maps (pixels.cpp, hue.cpp,
// filter.cpp, box_blur.cpp, warp.cpp); operations on tensors (torch.cpp); MixUp and CutMix of a
// whole batch (mix.h). sample_params.h runs the operations and crop stages of each sample and erases
// rectangles.
//
// Guarantees
//   exactness      bit for bit what Pillow gives on 8-bit RGB, and torch on tensors for AugMix; kBlur is
//                  within one level of torch's; all instruction sets give the same bits
//   bounds         pixel_op_values checks the values before an operation runs
//   errors         only allocations throw
//   thread safety  functions without state; a Canvas belongs to one thread
//   ownership      a Canvas owns its pixels; the caller owns batches
//
// Tests: tests/transforms/ (each operation against torchvision),
// tests/native/test_sample_params.py, test_hue.py.
//
// Sources of the arithmetic: Pillow, ImageEnhance.py and Blend.c (brightness, contrast, saturation,
// sharpness), Convert.c (luminance, HSV), Filter.c (kernels), ImageOps.py (solarize, posterize, autocontrast,
// equalize), BoxBlur.c, Draw.c (rectangles), Geometry.c (affine and perspective maps); torchvision,
// _functional_pil.py (hue) and _functional_tensor.py (blur).
#pragma once

#include <cstddef>
#include <cstdint>

#include "resample/axis.h"

namespace fastload {

// Each operation's values are doubles; the comments list them.
enum class PixelOp : int {
  kNone = 0,
  kBrightness = 1,     // factor
  kContrast = 2,       // factor
  kSaturation = 3,     // factor
  kHue = 4,            // the amount added to the hue, 0 to 255
  kSharpness = 5,      // factor
  kGrayscale = 6,      //
  kInvert = 7,         //
  kSolarize = 8,       // threshold
  kPosterize = 9,      // bits, 0 to 8
  kAutocontrast = 10,  //
  kEqualize = 11,      //
  kMirror = 12,        // left to right
  kUpsideDown = 13,    //
  kRotate180 = 14,     //
  kRotate90 = 15,      // anticlockwise
  kRotate270 = 16,     //
  kAffine = 17,        // a to f (output to source), filter (0 nearest, 2 bilinear, 3 bicubic), fill r, g, b
  kBlur = 18,          // radius x, y, then the weights of x from the centre outwards, then those of y
  kAffineTo = 19,      // as kAffine, then the width and height of the result
  // A weighted sum. kMixBegin starts it with the image and saves the image; kMixAdd adds the current image
  // and then restores the saved one, or replaces it by the sum if `last` is 1.
  kMixBegin = 20,  // weight
  kMixAdd = 21,    // weight, last
  // On tensors. `fused`: 1 if torch rounds a multiplication and an addition together, as in v2.
  kTorchBrightness = 22,  // factor
  // Factor, fused, certain: 1 declines where torch's rounding of a large image's mean could decide a level.
  kTorchContrast = 23,
  kTorchSaturation = 24,    // factor, fused
  kTorchSharpness = 25,     // factor, fused
  kTorchAutocontrast = 26,  // 1: v2's arithmetic
  kTorchAffine = 27,  // a to f (output to source, from the centre), filter (0 or 2), fill (0: none, 1: as in
                      // v1, 2: as in v2), r, g, b, fused grid (0 or 1)
  kSolarizeAdd = 28,  // the amount added to levels below 128, 0 to 255
  kBoxBlur = 29,      // radius x, y, up to kMostBlurred; 1: of a Gaussian, 0: of one box
  kPerspective = 30,  // a to h (output to source), filter and fill as kAffine, width and height of the result
  kLevels = 31,     // 1 table of 256 levels, or 3; then 64 numbers of each, four levels in each, lowest first
  kKernel = 32,     // side (3 or 5), scale, offset, the weights from the lowest row to the highest
  kTorchBlur = 33,  // radius x, y, then all weights of x, then those of y
  kContrastCrop = 34,  // factor; x, y, width and height of the box that is kept, with the whole image's mean
  // Left, top, right, bottom; 0: the edge is repeated, 1: reflected without it, 2: with it. A reflection is
  // not wider than the image.
  kPad = 35,
  kOrder = 36,      // the channel that each of the three comes from
  kRectangle = 37,  // x, y, width and height of a box in the image; the levels r, g, b that fill it
  kTorchHue = 38,   // the amount added to the hue, -0.5 to 0.5; v2's, on tensors
};
constexpr int kPixelOps = 39;

constexpr int kMostBlurred = 65535;  // pixels

// The number of values that an operation reads, or -1 if they are invalid for an image of this size.
int pixel_op_values(PixelOp op, const double* values, int count, int width, int height);

// Updates an image's size to that of the operation's result; its values must be valid.
void pixel_op_size(PixelOp op, const double* values, int* width, int* height);

// An image in memory as three planes of uint8 without gaps between rows. One per thread, reused.
class Canvas {
 public:
  // Makes room for an image of this size. The old content is lost. Throws std::bad_alloc.
  void resize(int width, int height);

  int width() const { return width_; }
  int height() const { return height_; }
  size_t area() const { return static_cast<size_t>(width_) * static_cast<size_t>(height_); }
  uint8_t* plane(int channel) const { return planes_[channel]; }
  ptrdiff_t plane_stride() const { return planes_[1] - planes_[0]; }

  // Makes room for the next content, of any size; swap() then makes it the content. Throws std::bad_alloc.
  void begin_next(int width, int height);
  uint8_t* next_plane(int channel) const { return next_planes_[channel]; }
  ptrdiff_t next_plane_stride() const { return next_planes_[1] - next_planes_[0]; }
  void swap();

  // Scratch memory of `count` floats. Throws std::bad_alloc.
  float* floats(size_t count) { return scratch_.room_for<float>(count); }
  // The same of 32-bit words.
  uint32_t* words(size_t count) { return scratch_.room_for<uint32_t>(count); }

  // The weighted sum of kMixBegin and kMixAdd.
  void begin_mix(float weight);
  void add_mix(float weight, bool last);

  // Notes that an operation could not give this image's pixels for certain.
  void decline() { declined_ = true; }
  bool declined() const { return declined_; }

  // Frees the memory of a very large image.
  void trim();

 private:
  resampling::AlignedBytes bytes_[2], scratch_, saved_, sum_;
  int current_ = 0;  // of bytes_
  uint8_t* planes_[3] = {};
  uint8_t* next_planes_[3] = {};
  int width_ = 0, height_ = 0, next_width_ = 0, next_height_ = 0;
  int mix_width_ = 0, mix_height_ = 0;  // of the sum
  bool declined_ = false;
};

// `values` must be accepted by pixel_op_values. Throws std::bad_alloc.
void apply_pixel_op(PixelOp op, const double* values, Canvas* canvas);

}  // namespace fastload
