// Upsampling and colour conversion in plain C++: all other instruction sets must agree with it.
#include "jpeg/ycc.h"

#include <algorithm>

#include "base/simd.h"

namespace fastload {
namespace {

uint8_t level(int value) {
  return static_cast<uint8_t>(std::min(std::max(value, 0), 255));
}

// Cb (component 0) or Cr (1) at a pixel: in each direction with half the samples, the nearer sample weighs
// three quarters and the farther one quarter. Halves are rounded up and down alternately.
int chroma_at(Sampling sampling, const YccRow& row, int component, int x) {
  const uint8_t* const near = row.near[component];
  const uint8_t* const far = row.far[component];
  const int at = x >> 1, beside = at + (x & 1 ? 1 : -1);
  switch (sampling) {
    case Sampling::k2x1:
      return (3 * near[at] + near[beside] + (x & 1 ? 2 : 1)) >> 2;
    case Sampling::k1x2:
      return (3 * near[x] + far[x] + (row.far_below ? 2 : 1)) >> 2;
    case Sampling::k2x2:
      return (3 * (3 * near[at] + far[at]) + 3 * near[beside] + far[beside] + (x & 1 ? 7 : 8)) >> 4;
    default:
      return near[x];
  }
}

// ITU-R BT.601, full range (JFIF 1.02), with factors of 16 fraction bits.
void to_rgb(Sampling sampling, const YccRow& row, int x0, int width, uint8_t* rgb) {
  constexpr int kHalf = 1 << 15;
  for (int x = x0; x < x0 + width; x++, rgb += 3) {
    const int luma = row.luma[x];
    if (sampling == Sampling::kGray) {
      rgb[0] = rgb[1] = rgb[2] = static_cast<uint8_t>(luma);
      continue;
    }
    const int cb = chroma_at(sampling, row, 0, x) - 128, cr = chroma_at(sampling, row, 1, x) - 128;
    rgb[0] = level(luma + ((91881 * cr + kHalf) >> 16));
    rgb[1] = level(luma + ((-22554 * cb - 46802 * cr + kHalf) >> 16));
    rgb[2] = level(luma + ((116130 * cb + kHalf) >> 16));
  }
}

}  // namespace

YccToRgb ycc_to_rgb() {
  return FASTLOAD_IN_USE(ycc_to_rgb);
}

YccToRgb ycc_to_rgb_scalar() {
  return to_rgb;
}

}  // namespace fastload
