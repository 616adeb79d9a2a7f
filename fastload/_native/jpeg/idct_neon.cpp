// The inverse DCT with NEON, one block at a time, a row of eight words per register.
//
// Note [Beyond range]
// libjpeg-turbo's code for ARM (simd/arm/jidctint-neon.c) wraps where its code for x86-64 saturates, after
// the first pass. No image has such coefficients, but a damaged file may: each kernel does what the libjpeg
// beside it does. Compared with that libjpeg in an emulator, with coefficients and steps of up to 16 bits.
#include "jpeg/idct.h"

#include "base/simd.h"

#ifdef FASTLOAD_ARM

#include <arm_neon.h>

#include "jpeg/idct_constants.h"

namespace fastload {
namespace {

using idct::Pair;

// Eight sums in 32 bits.
struct Wide {
  int32x4_t low, high;
};

inline Wide sum(Pair factors, int16x8_t a, int16x8_t b) {
  const int16_t first = static_cast<int16_t>(factors.first), second = static_cast<int16_t>(factors.second);
  return {vmlal_n_s16(vmull_n_s16(vget_low_s16(a), first), vget_low_s16(b), second),
          vmlal_high_n_s16(vmull_high_n_s16(a, first), b, second)};
}

// The sum of products so far, and another.
inline Wide sum(Wide to, Pair factors, int16x8_t a, int16x8_t b) {
  const int16_t first = static_cast<int16_t>(factors.first), second = static_cast<int16_t>(factors.second);
  return {vmlal_n_s16(vmlal_n_s16(to.low, vget_low_s16(a), first), vget_low_s16(b), second),
          vmlal_high_n_s16(vmlal_high_n_s16(to.high, a, first), b, second)};
}

inline Wide add(Wide a, Wide b) {
  return {vaddq_s32(a.low, b.low), vaddq_s32(a.high, b.high)};
}

inline Wide subtract(Wide a, Wide b) {
  return {vsubq_s32(a.low, b.low), vsubq_s32(a.high, b.high)};
}

inline Wide scaled(int16x8_t words) {
  return {vshll_n_s16(vget_low_s16(words), idct::kConstBits), vshll_high_n_s16(words, idct::kConstBits)};
}

// Pass 1: rounded. Pass 2: without the last two bits of its shift.
template <int kShift>
inline int16x8_t narrowed(Wide sums) {
  if constexpr (kShift == idct::kShift1) {
    return vrshrn_high_n_s32(vrshrn_n_s32(sums.low, kShift), sums.high, kShift);
  } else {
    return vshrn_high_n_s32(vshrn_n_s32(sums.low, 16), sums.high, 16);
  }
}

template <int kShift>
inline void transform(int16x8_t* words) {
  const Wide even0 = scaled(vaddq_s16(words[0], words[4]));
  const Wide even1 = scaled(vsubq_s16(words[0], words[4]));
  const Wide even2 = sum(idct::kEven2, words[2], words[6]), even3 = sum(idct::kEven3, words[2], words[6]);
  const Wide even[4] = {add(even0, even3), add(even1, even2), subtract(even1, even2), subtract(even0, even3)};
  const int16x8_t sum3 = vaddq_s16(words[7], words[3]), sum4 = vaddq_s16(words[5], words[1]);
  const Wide odd3 = sum(idct::kOddSum3, sum3, sum4), odd4 = sum(idct::kOddSum4, sum3, sum4);
  const Wide odd[4] = {sum(odd4, idct::kOdd3, words[7], words[1]), sum(odd3, idct::kOdd2, words[3], words[5]),
                       sum(odd4, idct::kOdd1, words[3], words[5]),
                       sum(odd3, idct::kOdd0, words[7], words[1])};
  for (int k = 0; k < 4; k++) {
    words[k] = narrowed<kShift>(add(even[k], odd[k]));
    words[7 - k] = narrowed<kShift>(subtract(even[k], odd[k]));
  }
}

inline void transpose(int16x8_t* words) {
  int32x4_t pairs[8];
  for (int k = 0; k < 8; k += 2) {
    pairs[k] = vreinterpretq_s32_s16(vtrn1q_s16(words[k], words[k + 1]));
    pairs[k + 1] = vreinterpretq_s32_s16(vtrn2q_s16(words[k], words[k + 1]));
  }
  int64x2_t fours[8];
  for (int k = 0; k < 8; k += 4) {
    for (int i = 0; i < 2; i++) {
      fours[k + i] = vreinterpretq_s64_s32(vtrn1q_s32(pairs[k + i], pairs[k + i + 2]));
      fours[k + i + 2] = vreinterpretq_s64_s32(vtrn2q_s32(pairs[k + i], pairs[k + i + 2]));
    }
  }
  for (int k = 0; k < 4; k++) {
    words[k] = vreinterpretq_s16_s64(vtrn1q_s64(fours[k], fours[k + 4]));
    words[k + 4] = vreinterpretq_s16_s64(vtrn2q_s64(fours[k], fours[k + 4]));
  }
}

// Columns of samples, each in eight bytes, to rows.
inline void store(const int16x8_t* columns, uint8_t* samples, ptrdiff_t stride) {
  int16x8_t pairs[4];  // columns k and k + 1, sample by sample
  for (int k = 0; k < 4; k++) {
    const int8x8_t first = vqrshrn_n_s16(columns[2 * k], 2);
    const int8x8_t second = vqrshrn_n_s16(columns[2 * k + 1], 2);
    pairs[k] = vreinterpretq_s16_s8(vcombine_s8(vzip1_s8(first, second), vzip2_s8(first, second)));
  }
  const uint8x16_t middle = vdupq_n_u8(0x80);
  for (int half = 0; half < 2; half++) {
    const auto zip = [half](int16x8_t a, int16x8_t b) {
      return vreinterpretq_s32_s16(half ? vzip2q_s16(a, b) : vzip1q_s16(a, b));
    };
    const int32x4_t left = zip(pairs[0], pairs[1]), right = zip(pairs[2], pairs[3]);
    const uint8x16_t rows[2] = {veorq_u8(vreinterpretq_u8_s32(vzip1q_s32(left, right)), middle),
                                veorq_u8(vreinterpretq_u8_s32(vzip2q_s32(left, right)), middle)};
    for (int i = 0; i < 2; i++) {
      uint8_t* const to = samples + (4 * half + 2 * i) * stride;
      vst1_u8(to, vget_low_u8(rows[i]));
      vst1_u8(to + stride, vget_high_u8(rows[i]));
    }
  }
}

void inverse_row(const int16_t* blocks, int count, const uint16_t* quant, uint8_t* samples,
                 ptrdiff_t stride) {
  int16x8_t factors[8];
  for (int k = 0; k < 8; k++) factors[k] = vreinterpretq_s16_u16(vld1q_u16(quant + 8 * k));
  for (; count > 0; count--, blocks += 64, samples += 8) {
    int16x8_t words[8];
    for (int k = 0; k < 8; k++) words[k] = vmulq_s16(vld1q_s16(blocks + 8 * k), factors[k]);
    transform<idct::kShift1>(words);
    transpose(words);
    transform<idct::kShift2>(words);
    store(words, samples, stride);
  }
}

}  // namespace

InverseDct inverse_dct_neon() {
  return inverse_row;
}

}  // namespace fastload

#endif  // FASTLOAD_ARM
