// torch's antialiased bilinear resize of float32 tensors, of an image whose levels become values first.
//
// A level becomes a value by a table (ToTensor's division, for example), the image of values is resized, a
// window of it is changed value by value (Normalize), mirrored and stored. Nothing is rounded to levels in
// between. The result is torch's bit for bit, with the sums of Sums; which of them this torch has is for the
// caller to find out. All instruction sets give the same bits.
//
// Source of the arithmetic: ATen, native/cpu/UpSampleKernel.cpp (_compute_indices_min_size_weights_aa and
// interpolate_aa_single_dim: weights in float32 with sums in double, first the horizontal pass).
#pragma once

#include <cstdint>
#include <vector>

#include "resample/axis.h"
#include "resample/resample.h"

namespace fastload::resampling {

// How a compiler has arranged `sum += value * weight` in torch, where the first product begins the sum.
enum class Sums : int {
  kFused = 0,  // each product is added by a fused multiply-add
  kFours = 1,  // four products at a time are rounded and added in turn; what is left over is fused
};
constexpr int kSums = 2;

struct ValueOperation {
  enum class Kind : int { kAdd = 0, kSubtract = 1, kMultiply = 2, kDivide = 3 };
  Kind kind;
  float operand[3];  // by channel
};
constexpr int kValueOperations = 4;

struct ValueResize {
  std::vector<float> table;                // (3, 256); empty: there is no such resize
  std::vector<ValueOperation> operations;  // after it, in order
  Sums sums = Sums::kFused;

  bool empty() const { return table.empty(); }
};

// The box of a plane of levels.
struct LevelBox {
  const uint8_t* levels;  // of the box's first pixel
  ptrdiff_t row_stride;
  int width, height;
};

// Resizes three planes, or one if the target's channel stride is 0. `resize`: its box, resized size and
// window; outside the resized image, values are 0. `target`: float32; only flip, strides and data are used.
// Throws std::bad_alloc.
void resize_values(const ValueResize& values, const LevelBox* planes, const Resize& resize,
                   const Target& target, AlignedBytes* memory);

}  // namespace fastload::resampling
