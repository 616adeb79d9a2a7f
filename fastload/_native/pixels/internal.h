// Shared by the files that implement pixels/pixels.h.
#pragma once

#include <array>

#include "base/x86.h"
#include "pixels/pixels.h"

#define FASTLOAD_LOOP __attribute__((always_inline))

namespace fastload {

// Note [Loops for every instruction set]
// Each loop is written once, in plain C++, as a lambda that is always inlined, and is compiled for each
// instruction set. Nothing is contracted or reordered (-ffp-contract=off), so all of them give the same bits.
// The lambda is passed by value: behind a reference, a loop that stores bytes could change what it captured,
// and the compiler vectorises none of those (a blur took 5 times as long).
#ifdef FASTLOAD_X86
template <typename Loop>
FASTLOAD_AVX2_CALL void run_avx2(Loop loop) {
  loop();
}
template <typename Loop>
FASTLOAD_AVX512_CALL void run_avx512(Loop loop) {
  loop();
}
#endif

template <typename Loop>
void vectorised(const Loop& loop) {
#ifdef FASTLOAD_X86
  const Simd simd = simd_in_use();
  if (simd == Simd::kAvx512) return run_avx512(loop);
  if (simd == Simd::kAvx2) return run_avx2(loop);
#endif
  loop();
}

// Pillow's Image.blend for one level: from + alpha * (to - from) in float, clipped to 0 .. 255, rounded down.
FASTLOAD_LOOP inline uint8_t blend(int from, int to, float alpha) {
  float mixed = static_cast<float>(from) + alpha * static_cast<float>(to - from);
  mixed = mixed < 0.0f ? 0.0f : mixed;
  mixed = mixed > 255.0f ? 255.0f : mixed;
  return static_cast<uint8_t>(static_cast<int>(mixed));
}

// Pillow's convert("L").
FASTLOAD_LOOP inline int luminance(int red, int green, int blue) {
  return (red * 19595 + green * 38470 + blue * 7471 + 0x8000) >> 16;
}

void hue(Canvas* canvas, int shift);
void sharpness(Canvas* canvas, float factor);
// The result has `width` x `height` pixels.
void affine(Canvas* canvas, const double* values, int width, int height);
void perspective(Canvas* canvas, const double* values);
void box_blur(Canvas* canvas, const double* values);
void blur(Canvas* canvas, const double* values);
void torch_blur(Canvas* canvas, const double* values);
void kernel(Canvas* canvas, const double* values);

using LevelTables = std::array<std::array<uint8_t, 256>, 3>;  // by channel

// Replaces each level by the value in its channel's table, in place.
void look_up(const LevelTables& tables, Canvas* canvas);
// The lowest and the highest of `count` levels.
void extremes(const uint8_t* levels, size_t count, int* low, int* high);

// Operations on tensors (pixels/torch.cpp). `op` must be one that torch_op_values accepts.
using TorchOp = void (*)(Canvas* canvas, const double* values);
TorchOp torch_op(PixelOp op);
// As pixel_op_values, for operations on tensors; -1 if `op` is none.
int torch_op_values(PixelOp op, const double* values, int count);

}  // namespace fastload
