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

// The colour of a hue in one of six sextants (6 is the first again), of the levels v, p, q and t that HSV has
// there. By masks, because GCC vectorises no loop with branches.
FASTLOAD_LOOP inline void of_sextant(int sextant, int v, int p, int q, int t, uint8_t* red, uint8_t* green,
                                     uint8_t* blue) {
  int is[6];
  for (int k = 0; k < 6; ++k) is[k] = -static_cast<int>(sextant == k);
  is[0] |= -static_cast<int>(sextant == 6);
  *red = static_cast<uint8_t>((v & (is[0] | is[5])) | (q & is[1]) | (p & (is[2] | is[3])) | (t & is[4]));
  *green = static_cast<uint8_t>((t & is[0]) | (v & (is[1] | is[2])) | (q & is[3]) | (p & (is[4] | is[5])));
  *blue = static_cast<uint8_t>((p & (is[0] | is[1])) | (t & is[2]) | (v & (is[3] | is[4])) | (q & is[5]));
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
