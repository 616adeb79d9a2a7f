// Upsampling and colour conversion with NEON, 16 pixels at a time, in the same steps as jpeg/ycc_avx512.cpp.
#include "jpeg/ycc.h"

#include "base/simd.h"

#ifdef FASTLOAD_ARM

#include <arm_neon.h>

namespace fastload {
namespace {

// 8 words each: columns 0, 2, 4 ... and 1, 3, 5 ...
struct Columns {
  int16x8_t even, odd;
};

inline int16x8_t words_of(uint8x8_t bytes) {
  return vreinterpretq_s16_u16(vmovl_u8(bytes));
}

inline Columns columns_of(const uint8_t* samples) {
  const uint8x8x2_t both = vld2_u8(samples);
  return {words_of(both.val[0]), words_of(both.val[1])};
}

// Chroma minus 128, 16 pixels at a time.
template <Sampling kSampling>
class Chroma {
 public:
  Chroma(const uint8_t* near, const uint8_t* far, bool far_below)
      : near_(near), far_(far), bias_(vdupq_n_s16(static_cast<int16_t>((far_below ? 2 : 1) - 512))) {
    if constexpr (kHalved) {
      before_ = sums(near - 8, far - 8);
      here_ = sums(near, far);
    }
  }

  Columns next() {
    if constexpr (kHalved) {
      near_ += 8, far_ += 8;
      const int16x8_t behind = sums(near_, far_);
      const int16x8_t left = vextq_s16(before_, here_, 7), right = vextq_s16(here_, behind, 1);
      const int16x8_t most = vmulq_n_s16(here_, 3);
      before_ = here_;
      here_ = behind;
      constexpr bool kOneRow = kSampling == Sampling::k2x1;
      const int16x8_t even = vaddq_s16(vaddq_s16(most, left), vdupq_n_s16(kOneRow ? 1 : 0));
      const int16x8_t odd = vaddq_s16(vaddq_s16(most, right), vdupq_n_s16(kOneRow ? 2 : -1));
      return {vshrq_n_s16(even, kOneRow ? 2 : 4), vshrq_n_s16(odd, kOneRow ? 2 : 4)};
    } else {
      const Columns near = columns_of(near_);
      near_ += 16;
      if constexpr (kSampling == Sampling::k1x2) {
        const Columns far = columns_of(far_);
        far_ += 16;
        return {between(near.even, far.even), between(near.odd, far.odd)};
      }
      return {vsubq_s16(near.even, vdupq_n_s16(128)), vsubq_s16(near.odd, vdupq_n_s16(128))};
    }
  }

 private:
  static constexpr bool kHalved = kSampling == Sampling::k2x1 || kSampling == Sampling::k2x2;

  // As in jpeg/ycc_avx2.cpp.
  static int16x8_t sums(const uint8_t* near, [[maybe_unused]] const uint8_t* far) {
    const int16x8_t samples = words_of(vld1_u8(near));
    if constexpr (kSampling == Sampling::k2x1) return vsubq_s16(samples, vdupq_n_s16(128));
    return vaddq_s16(vmlaq_n_s16(words_of(vld1_u8(far)), samples, 3), vdupq_n_s16(2 - 512));
  }

  int16x8_t between(int16x8_t near, int16x8_t far) const {
    return vshrq_n_s16(vaddq_s16(vmlaq_n_s16(far, near, 3), bias_), 2);
  }

  const uint8_t* near_;
  const uint8_t* far_;
  int16x8_t bias_, before_, here_;
};

struct Colours {
  uint8x8_t of[3];
};

// See convert in jpeg/ycc_avx512.cpp: the doubling multiplication rounds and shifts as its multiplication
// does.
inline Colours convert(int16x8_t luma, int16x8_t cb, int16x8_t cr) {
  const int16x8_t red = vqrdmulhq_n_s16(vaddq_s16(cr, cr), 22971);
  const int16x8_t blue = vqrdmulhq_n_s16(vaddq_s16(cb, cb), 29033);
  const int32x4_t low = vmlal_n_s16(vmull_n_s16(vget_low_s16(cb), -11277), vget_low_s16(cr), -23401);
  const int32x4_t high = vmlal_high_n_s16(vmull_high_n_s16(cb, -11277), cr, -23401);
  const int16x8_t green = vrshrn_high_n_s32(vrshrn_n_s32(low, 15), high, 15);
  return {{vqmovun_s16(vaddq_s16(luma, red)), vqmovun_s16(vaddq_s16(luma, green)),
           vqmovun_s16(vaddq_s16(luma, blue))}};
}

template <Sampling kSampling>
void convert_row(const YccRow& row, int x0, int width, uint8_t* rgb) {
  constexpr bool kHalved = kSampling == Sampling::k2x1 || kSampling == Sampling::k2x2;
  constexpr bool kTwoRows = kSampling == Sampling::k1x2 || kSampling == Sampling::k2x2;
  const int at = kHalved ? x0 >> 1 : x0;
  Chroma<kSampling> blue(row.near[0] + at, (kTwoRows ? row.far : row.near)[0] + at, row.far_below);
  Chroma<kSampling> red(row.near[1] + at, (kTwoRows ? row.far : row.near)[1] + at, row.far_below);
  const uint8_t* luma = row.luma + x0;
  for (int left = width; left > 0; left -= 16, luma += 16, rgb += 48) {
    const Columns y = columns_of(luma), cb = blue.next(), cr = red.next();
    const Colours even = convert(y.even, cb.even, cr.even), odd = convert(y.odd, cb.odd, cr.odd);
    uint8x16x3_t pixels;
    for (int c = 0; c < 3; c++)
      pixels.val[c] = vcombine_u8(vzip1_u8(even.of[c], odd.of[c]), vzip2_u8(even.of[c], odd.of[c]));
    vst3q_u8(rgb, pixels);
  }
}

void to_rgb(Sampling sampling, const YccRow& row, int x0, int width, uint8_t* rgb) {
  if ((sampling == Sampling::k2x1 || sampling == Sampling::k2x2) && x0 % 2 != 0 && width > 0) {
    ycc_to_rgb_scalar()(sampling, row, x0, 1, rgb);
    x0++, width--, rgb += 3;
  }
  switch (sampling) {
    case Sampling::kGray:
      for (const uint8_t* luma = row.luma + x0; width > 0; width -= 16, luma += 16, rgb += 48) {
        const uint8x16_t levels = vld1q_u8(luma);
        vst3q_u8(rgb, uint8x16x3_t{{levels, levels, levels}});
      }
      return;
    case Sampling::k1x1:
      return convert_row<Sampling::k1x1>(row, x0, width, rgb);
    case Sampling::k2x1:
      return convert_row<Sampling::k2x1>(row, x0, width, rgb);
    case Sampling::k1x2:
      return convert_row<Sampling::k1x2>(row, x0, width, rgb);
    case Sampling::k2x2:
      return convert_row<Sampling::k2x2>(row, x0, width, rgb);
  }
}

}  // namespace

YccToRgb ycc_to_rgb_neon() {
  return to_rgb;
}

}  // namespace fastload

#endif  // FASTLOAD_ARM
