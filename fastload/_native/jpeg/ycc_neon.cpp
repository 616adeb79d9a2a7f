// Upsampling and colour conversion with NEON, 16 pixels at a time.
#include "jpeg/ycc.h"

#include "base/simd.h"

#ifdef FASTLOAD_ARM

#include <arm_neon.h>

namespace fastload {
namespace {

#define FASTLOAD_SET inline
#define FASTLOAD_SET_CALL

using Words = int16x8_t;

struct Columns {
  Words even, odd;
};

inline Words words_of(uint8x8_t bytes) {
  return vreinterpretq_s16_u16(vmovl_u8(bytes));
}

inline Words words_of(const uint8_t* bytes) {
  return words_of(vld1_u8(bytes));
}

inline Columns columns_of(const uint8_t* bytes) {
  const uint8x8x2_t both = vld2_u8(bytes);
  return {words_of(both.val[0]), words_of(both.val[1])};
}

inline Words left_of(Words before, Words here) {
  return vextq_s16(before, here, 7);
}

inline Words right_of(Words here, Words behind) {
  return vextq_s16(here, behind, 1);
}

// The doubling multiplication rounds and shifts by 15 bits.
inline Words scaled(Words words, int16_t factor) {
  return vqrdmulhq_n_s16(words, factor);
}

inline Words green_of(Words cb, Words cr) {
  const int32x4_t low = vmlal_n_s16(vmull_n_s16(vget_low_s16(cb), -11277), vget_low_s16(cr), -23401);
  const int32x4_t high = vmlal_high_n_s16(vmull_high_n_s16(cb, -11277), cr, -23401);
  return vrshrn_high_n_s32(vrshrn_n_s32(low, 15), high, 15);
}

inline void store(const Words* even, const Words* odd, int, uint8_t* rgb) {
  uint8x16x3_t pixels;
  for (int c = 0; c < 3; c++) {
    const uint8x8_t two[2] = {vqmovun_s16(even[c]), vqmovun_s16(odd[c])};
    pixels.val[c] = vcombine_u8(vzip1_u8(two[0], two[1]), vzip2_u8(two[0], two[1]));
  }
  vst3q_u8(rgb, pixels);
}

inline void gray_row(const uint8_t* luma, int width, uint8_t* rgb) {
  for (; width > 0; width -= 16, luma += 16, rgb += 48) {
    const uint8x16_t levels = vld1q_u8(luma);
    const uint8x16x3_t pixels = {{levels, levels, levels}};  // vst3q_u8 may be a macro
    vst3q_u8(rgb, pixels);
  }
}

}  // namespace
}  // namespace fastload

#include "jpeg/ycc_row.h"

namespace fastload {

YccToRgb ycc_to_rgb_neon() {
  return to_rgb;
}

}  // namespace fastload

#endif  // FASTLOAD_ARM
