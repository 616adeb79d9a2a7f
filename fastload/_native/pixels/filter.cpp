// Filters over neighbouring pixels: Pillow's sharpness, and a Gaussian blur within one level of
// torchvision's.
#include <algorithm>
#include <cstring>
#include <vector>

#include "pixels/internal.h"

namespace fastload {

namespace {

// Rounds to the nearest integer, halves to even, for values from 0 to 255. SSE2 has no instruction for it,
// but adding 1.5 x 2^23 leaves no fraction bits.
FASTLOAD_LOOP inline float nearest(float value) {
  constexpr float kShift = 12582912.0f;
  return (value + kShift) - kShift;
}

// The position from which torch's "reflect" padding takes position `at`.
int reflected(int at, int size) {
  at = at < 0 ? -at : at;
  return at >= size ? 2 * (size - 1) - at : at;
}

// to[x] = the weighted sum of rows[k][x], in the order of k.
void weighted_sum(const float* const* rows, const std::vector<float>& weights, int width, float* to) {
  const int taps = static_cast<int>(weights.size());
  const float* weight = weights.data();
  vectorised([=]() FASTLOAD_LOOP {
    constexpr int kBlock = 64;  // as many sums as stay in registers
    for (int begin = 0; begin < width; begin += kBlock) {
      const int count = std::min(kBlock, width - begin);
      float sums[kBlock];
      for (int x = 0; x < count; ++x) sums[x] = 0.0f;
      for (int k = 0; k < taps; ++k) {
        const float* row = rows[k] + begin;
        const float w = weight[k];
        for (int x = 0; x < count; ++x) sums[x] += w * row[x];
      }
      for (int x = 0; x < count; ++x) to[begin + x] = sums[x];
    }
  });
}

std::vector<float> symmetric(const double* half, int radius) {
  std::vector<float> weights(2 * static_cast<size_t>(radius) + 1);
  for (int k = -radius; k <= radius; ++k) {
    weights[static_cast<size_t>(k + radius)] = static_cast<float>(half[k < 0 ? -k : k]);
  }
  return weights;
}

}  // namespace

// ImageEnhance.Sharpness: blends with the image filtered by SMOOTH, which leaves the border unchanged. Pillow
// sums thirteenths in float, adds a half and rounds down. No such sum is closer than 1/26 to an integer, so
// integers give the same level: (n + 6) / 13, by a multiplication that is exact up to 13 x 255.
void sharpness(Canvas* canvas, float factor) {
  const int width = canvas->width(), height = canvas->height();
  if (width < 3 || height < 3)
    return;  // Pillow does not filter it, and blending it with itself changes nothing
  canvas->begin_next(width, height);
  for (int c = 0; c < 3; ++c) {
    const uint8_t* from = canvas->plane(c);
    uint8_t* to = canvas->next_plane(c);
    std::memcpy(to, from, canvas->area());
    vectorised([=]() FASTLOAD_LOOP {
      constexpr int kBlock = 256;
      uint16_t smooth[kBlock];
      for (int y = 1; y + 1 < height; ++y) {
        for (int begin = 1; begin + 1 < width; begin += kBlock) {
          const int count = std::min(kBlock, width - 1 - begin);
          const uint8_t* row = from + static_cast<ptrdiff_t>(y) * width + begin;
          const uint8_t *above = row - width, *below = row + width;
          uint8_t* out = to + static_cast<ptrdiff_t>(y) * width + begin;
          for (int x = 0; x < count; ++x) {
            const uint16_t around =
                static_cast<uint16_t>(above[x - 1] + above[x] + above[x + 1] + row[x - 1] + row[x + 1] +
                                      below[x - 1] + below[x] + below[x + 1]);
            const uint16_t sum = static_cast<uint16_t>(around + 5 * row[x] + 6);
            smooth[x] = static_cast<uint16_t>(uint32_t{sum} * 5042u >> 16);
          }
          for (int x = 0; x < count; ++x) out[x] = blend(smooth[x], row[x], factor);
        }
      }
    });
  }
  canvas->swap();
}

void blur(Canvas* canvas, const double* values) {
  const int width = canvas->width(), height = canvas->height();
  const int radius_x = static_cast<int>(values[0]), radius_y = static_cast<int>(values[1]);
  const std::vector<float> across = symmetric(values + 2, radius_x);
  const std::vector<float> down = symmetric(values + 3 + radius_x, radius_y);
  const size_t padded = static_cast<size_t>(width) + 2 * static_cast<size_t>(radius_x);
  float* row = canvas->floats(padded + canvas->area() + static_cast<size_t>(width));
  float* sums = row + padded;
  float* line = sums + canvas->area();
  std::vector<const float*> rows(std::max(across.size(), down.size()));
  for (int c = 0; c < 3; ++c) {
    uint8_t* levels = canvas->plane(c);
    for (int y = 0; y < height; ++y) {
      const uint8_t* from = levels + static_cast<ptrdiff_t>(y) * width;
      for (int x = 0; x < width; ++x) row[radius_x + x] = static_cast<float>(from[x]);
      for (int x = 1; x <= radius_x; ++x) {
        row[radius_x - x] = static_cast<float>(from[reflected(-x, width)]);
        row[radius_x + width - 1 + x] = static_cast<float>(from[reflected(width - 1 + x, width)]);
      }
      for (size_t k = 0; k < across.size(); ++k) rows[k] = row + k;
      weighted_sum(rows.data(), across, width, sums + static_cast<ptrdiff_t>(y) * width);
    }
    for (int y = 0; y < height; ++y) {
      for (size_t k = 0; k < down.size(); ++k) {
        rows[k] =
            sums + static_cast<ptrdiff_t>(reflected(y + static_cast<int>(k) - radius_y, height)) * width;
      }
      weighted_sum(rows.data(), down, width, line);
      uint8_t* to = levels + static_cast<ptrdiff_t>(y) * width;
      for (int x = 0; x < width; ++x) {
        to[x] = static_cast<uint8_t>(static_cast<int>(nearest(std::min(std::max(line[x], 0.0f), 255.0f))));
      }
    }
  }
}

}  // namespace fastload
