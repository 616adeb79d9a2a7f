// Storing finished rows with NEON: values computed or copied, mirroring and layout in one step.
#include "resample/kernels.h"

#ifdef FASTLOAD_ARM

#include <arm_neon.h>

#include <algorithm>
#include <cstring>

#include "resample/formula.h"

namespace fastload::resampling {

namespace {

// The levels for columns x .. x + 15 of the target. May read up to 16 bytes before or after the plane.
template <bool kFlip>
inline uint8x16_t load_levels(const uint8_t* plane, int x, int width) {
  if (!kFlip) return vld1q_u8(plane + x);
  const uint8x16_t levels = vrev64q_u8(vld1q_u8(plane + width - 16 - x));
  return vextq_u8(levels, levels, 8);
}

// The part of a formula that is of one channel.
struct Constants {
  float32x4_t mean, high, low;
};

inline Constants constants_of(const Formula& formula, int channel) {
  const Reciprocal& inverse = formula.inverse[channel];
  return {vdupq_n_f32(formula.mean[channel]), vdupq_n_f32(inverse.high), vdupq_n_f32(inverse.low)};
}

inline float32x4_t divided(float32x4_t value, float32x4_t high, float32x4_t low) {
  return vfmaq_f32(vmulq_f32(value, low), value, high);
}

// Four of the sixteen values of `levels`.
template <int kPart>
inline float32x4_t values_of(uint8x16_t levels, const Reciprocal& scale, const Constants& constants) {
  constexpr uint8_t kNone = 255, kFirst = 4 * kPart;
  constexpr uint8_t kWiden[16] = {kFirst,     kNone, kNone, kNone, kFirst + 1, kNone, kNone, kNone,
                                  kFirst + 2, kNone, kNone, kNone, kFirst + 3, kNone, kNone, kNone};
  const float32x4_t level = vcvtq_f32_u32(vreinterpretq_u32_u8(vqtbl1q_u8(levels, vld1q_u8(kWiden))));
  const float32x4_t scaled = divided(level, vdupq_n_f32(scale.high), vdupq_n_f32(scale.low));
  return divided(vsubq_f32(scaled, constants.mean), constants.high, constants.low);
}

struct Sixteen {
  float32x4_t part[4];
};

inline Sixteen sixteen_of(uint8x16_t levels, const Reciprocal& scale, const Constants& constants) {
  return {{values_of<0>(levels, scale, constants), values_of<1>(levels, scale, constants),
           values_of<2>(levels, scale, constants), values_of<3>(levels, scale, constants)}};
}

bool gives(const Formula& formula, int channel, const float* table) {
  static constexpr uint8_t kFirst[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  const Constants constants = constants_of(formula, channel);
  for (int level = 0; level < 256; level += 16) {
    const uint8x16_t levels = vaddq_u8(vld1q_u8(kFirst), vdupq_n_u8(static_cast<uint8_t>(level)));
    const Sixteen values = sixteen_of(levels, formula.scale, constants);
    if (std::memcmp(&values, table + level, sizeof(values)) != 0) return false;
  }
  return true;
}

template <bool kFlip>
void compute_planar(const RowOutput& output, const uint8_t* const* planes, void* row) {
  const Formula formula = formula_of(output);
  const int width = output.width;
  for (int channel = 0; channel < 3; ++channel) {
    const Constants constants = constants_of(formula, channel);
    float* const to = static_cast<float*>(row) + channel * output.channel_stride;
    for (int x = 0; x < width; x += 16) {
      const Sixteen values =
          sixteen_of(load_levels<kFlip>(planes[channel], x, width), formula.scale, constants);
      if (x + 16 <= width) {
        for (int i = 0; i < 4; ++i) vst1q_f32(to + x + 4 * i, values.part[i]);
      } else {
        float last[16];
        for (int i = 0; i < 4; ++i) vst1q_f32(last + 4 * i, values.part[i]);
        std::memcpy(to + x, last, static_cast<size_t>(width - x) * sizeof(float));
      }
    }
  }
}

template <bool kFlip>
void compute_interleaved(const RowOutput& output, const uint8_t* const* planes, void* row) {
  const Formula formula = formula_of(output);
  const Constants constants[3] = {constants_of(formula, 0), constants_of(formula, 1),
                                  constants_of(formula, 2)};
  const int width = output.width;
  float* to = static_cast<float*>(row);
  for (int x = 0; x < width; x += 16, to += 48) {
    Sixteen values[3];
    for (int c = 0; c < 3; ++c) {
      values[c] = sixteen_of(load_levels<kFlip>(planes[c], x, width), formula.scale, constants[c]);
    }
    const bool whole = x + 16 <= width;
    float last[48];
    for (int i = 0; i < 4; ++i) {
      const float32x4x3_t pixels = {{values[0].part[i], values[1].part[i], values[2].part[i]}};
      vst3q_f32((whole ? to : last) + 12 * i, pixels);
    }
    if (!whole) std::memcpy(to, last, static_cast<size_t>(width - x) * 3 * sizeof(float));
  }
}

template <bool kFlip>
void store_levels_planar(const RowOutput& output, const uint8_t* const* planes, void* row) {
  const int width = output.width;
  for (int channel = 0; channel < 3; ++channel) {
    uint8_t* to = static_cast<uint8_t*>(row) + channel * output.channel_stride;
    for (int x = 0; x < width; x += 16) {
      const uint8x16_t levels = load_levels<kFlip>(planes[channel], x, width);
      if (x + 16 <= width) {
        vst1q_u8(to + x, levels);
      } else {
        std::memcpy(to + x, &levels, static_cast<size_t>(width - x));
      }
    }
  }
}

template <bool kFlip>
void store_levels_interleaved(const RowOutput& output, const uint8_t* const* planes, void* row) {
  const int width = output.width;
  uint8_t* to = static_cast<uint8_t*>(row);
  for (int x = 0; x < width; x += 16, to += 48) {
    const uint8x16x3_t pixels = {{load_levels<kFlip>(planes[0], x, width),
                                  load_levels<kFlip>(planes[1], x, width),
                                  load_levels<kFlip>(planes[2], x, width)}};
    if (x + 16 <= width) {
      vst3q_u8(to, pixels);
    } else {
      uint8_t last[48];
      vst3q_u8(last, pixels);
      std::memcpy(to, last, static_cast<size_t>(width - x) * 3);
    }
  }
}

}  // namespace

StoreRow neon_store_for(RowOutput* output) {
  const bool planar = output->pixel_stride == 1;
  if (!planar && (output->pixel_stride != 3 || output->channel_stride != 1)) return scalar_store_for(output);
  if (output->dtype == Dtype::kFloat32 && has_formula(output, gives)) {
    if (planar) return output->flip ? compute_planar<true> : compute_planar<false>;
    return output->flip ? compute_interleaved<true> : compute_interleaved<false>;
  }
  if (output->dtype != Dtype::kUint8 || output->lut != nullptr) return scalar_store_for(output);
  if (planar) return output->flip ? store_levels_planar<true> : store_levels_planar<false>;
  return output->flip ? store_levels_interleaved<true> : store_levels_interleaved<false>;
}

}  // namespace fastload::resampling

#endif  // FASTLOAD_ARM
