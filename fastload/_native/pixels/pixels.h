// Operations on the pixels of one image, between its decoding and its storing: colour, histograms, filters,
// mirrors and affine maps, bit for bit as Pillow does them on 8-bit RGB (the blur: within a level of
// torch's), and what AugMix is made of as torchvision does it on tensors (pixels/torch.cpp).
//
// Sources of the arithmetic: Pillow, ImageEnhance.py and Blend.c (brightness, contrast, saturation,
// sharpness), Convert.c (luminance, HSV), Filter.c (SMOOTH), ImageOps.py (solarize, posterize, autocontrast,
// equalize), Geometry.c (affine maps); torchvision, _functional_pil.py (hue) and _functional_tensor.py
// (blur).
#pragma once

#include <cstddef>
#include <cstdint>

#include "resample/axis.h"

namespace fastload {

// The values of each are doubles; those of one operation are listed behind it.
enum class PixelOp : int {
  kNone = 0,
  kBrightness = 1,     // factor
  kContrast = 2,       // factor
  kSaturation = 3,     // factor
  kHue = 4,            // what is added to the hue, 0 to 255
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
  kBlur = 18,          // radius x, y, then the weights of x from the centre out, then those of y
  kAffineTo = 19,      // as kAffine, then the width and height of the result
  // A weighted sum: kMixBegin starts it with the image and keeps that; kMixAdd adds the image as it stands
  // and puts back the kept one, or the sum where `last` is 1.
  kMixBegin = 20,  // weight
  kMixAdd = 21,    // weight, last
  // On tensors; `fused` is 1 where torch rounds a multiplication and an addition together: in v2.
  kTorchBrightness = 22,    // factor
  kTorchContrast = 23,      // factor, fused
  kTorchSaturation = 24,    // factor, fused
  kTorchSharpness = 25,     // factor, fused
  kTorchAutocontrast = 26,  // 1: as v2 does it
  kTorchAffine = 27,  // a to f (output to source, from the centre), filter (0 or 2), fill (0: none, 1: as in
                      // v1, 2: as in v2), r, g, b, fused grid (0 or 1)
  kSolarizeAdd = 28,  // what is added to levels below 128, 0 to 255
};
constexpr int kPixelOps = 29;

// How many values an operation reads, or -1 where they are not valid for an image of this size.
int pixel_op_values(PixelOp op, const double* values, int count, int width, int height);

// Changes the size of an image to what the operation, whose values are valid, makes of it.
void pixel_op_size(PixelOp op, const double* values, int* width, int* height);

// An image in memory as three planes of uint8 without gaps between rows. One per thread, reused.
class Canvas {
 public:
  // Room for an image of this size. The old content is lost. Throws std::bad_alloc.
  void resize(int width, int height);

  int width() const { return width_; }
  int height() const { return height_; }
  size_t area() const { return static_cast<size_t>(width_) * static_cast<size_t>(height_); }
  uint8_t* plane(int channel) const { return planes_[channel]; }
  ptrdiff_t plane_stride() const { return planes_[1] - planes_[0]; }

  // The next content, of any size; swap() makes it the content.
  void begin_next(int width, int height);
  uint8_t* next_plane(int channel) const { return next_planes_[channel]; }
  ptrdiff_t next_plane_stride() const { return next_planes_[1] - next_planes_[0]; }
  void swap();

  // Scratch of `count` floats. Throws std::bad_alloc.
  float* floats(size_t count) { return floats_.room_for<float>(count); }

  // The sum of kMixBegin and kMixAdd.
  void begin_mix(float weight);
  void add_mix(float weight, bool last);

  // Lets go of the memory of a very large image.
  void trim();

 private:
  resampling::AlignedBytes bytes_[2], floats_, kept_, sum_;
  int current_ = 0;  // of bytes_
  uint8_t* planes_[3] = {};
  uint8_t* next_planes_[3] = {};
  int width_ = 0, height_ = 0, next_width_ = 0, next_height_ = 0;
  int mix_width_ = 0, mix_height_ = 0;  // of the sum
};

// `values` were found valid by pixel_op_values. Throws std::bad_alloc.
void apply_pixel_op(PixelOp op, const double* values, Canvas* canvas);

}  // namespace fastload
