// Filters over neighbouring pixels: Pillow's sharpness and kernels, and a Gaussian blur within one level of
// torchvision's.
#include <algorithm>
#include <array>
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

// Rows and columns that the kernel does not fit around stay as they are. The sums are Pillow's, in its order:
// first those of each row, from the lowest one up.
template <int kSide>
void kernel(const uint8_t* from, uint8_t* to, int width, int height, const std::array<float, 25>& weights,
            float offset) {
  constexpr int kRadius = kSide / 2;
  std::memcpy(to, from, static_cast<size_t>(width) * static_cast<size_t>(height));
  vectorised([=]() FASTLOAD_LOOP {
    for (int y = kRadius; y + kRadius < height; ++y) {
      const uint8_t* const lowest = from + static_cast<ptrdiff_t>(y + kRadius) * width;
      uint8_t* const out = to + static_cast<ptrdiff_t>(y) * width + kRadius;
      for (int x = 0; x < width - 2 * kRadius; ++x) {
        float sum = offset;
        for (int k = 0; k < kSide; ++k) {
          const uint8_t* const row = lowest - static_cast<ptrdiff_t>(k) * width + x;
          float part = static_cast<float>(row[0]) * weights[static_cast<size_t>(k * kSide)];
          for (int j = 1; j < kSide; ++j) {
            part += static_cast<float>(row[j]) * weights[static_cast<size_t>(k * kSide + j)];
          }
          sum += part;
        }
        sum = sum <= 0.0f ? 0.0f : sum;
        out[x] = static_cast<uint8_t>(static_cast<int>(sum >= 255.0f ? 255.0f : sum));
      }
    }
  });
}

}  // namespace

// ImageFilter.Kernel, and the constant kernels of ImageFilter.
void kernel(Canvas* canvas, const double* values) {
  const int side = static_cast<int>(values[0]), width = canvas->width(), height = canvas->height();
  if (width < side || height < side) return;
  std::array<float, 25> weights{};
  for (size_t i = 0; i < static_cast<size_t>(side * side); ++i) {
    weights[i] = static_cast<float>(values[3 + i]) / static_cast<float>(values[1]);
  }
  const float offset = static_cast<float>(static_cast<double>(static_cast<float>(values[2])) + 0.5);
  canvas->begin_next(width, height);
  for (int c = 0; c < 3; ++c) {
    const uint8_t* const from = canvas->plane(c);
    uint8_t* const to = canvas->next_plane(c);
    if (side == 3) {
      kernel<3>(from, to, width, height, weights, offset);
    } else {
      kernel<5>(from, to, width, height, weights, offset);
    }
  }
  canvas->swap();
}

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

// torchvision's Gaussian blur with the bits of torch's convolution: each sum begins with 0 and adds the
// products row by row, every one with a fused multiplication and addition. Several rows of sums share what
// they read. A row that does not belong to a sum has the weight 0, which changes no bit of it.
void torch_blur(Canvas* canvas, const double* values) {
  constexpr int kRows = 4, kColumns = 16;
  // Far from the centre weights are subnormal, which slows many processors down. All products are multiples
  // of the least subnormal number, so no sum is rounded because it is one, and a power of two changes no bit.
  constexpr float kScale = 1.2676506e30f;  // 2^100
  static_assert(kScale == static_cast<float>(uint64_t{1} << 50) * static_cast<float>(uint64_t{1} << 50));
  const int width = canvas->width(), height = canvas->height();
  const int radius_x = static_cast<int>(values[0]), radius_y = static_cast<int>(values[1]);
  const int taps_x = 2 * radius_x + 1, taps_y = 2 * radius_y + 1;
  const ptrdiff_t stride = width + 2 * ptrdiff_t{radius_x} + kColumns;
  const ptrdiff_t rows = height + 2 * ptrdiff_t{radius_y} + kRows;
  const ptrdiff_t weight_rows = taps_y + 2 * ptrdiff_t{kRows - 1};
  float* const weights = canvas->floats(static_cast<size_t>(weight_rows * taps_x + rows * stride));
  float* const padded = weights + weight_rows * taps_x;
  std::fill_n(weights, weight_rows * taps_x, 0.0f);
  for (int k = 0; k < taps_y; ++k) {
    for (int j = 0; j < taps_x; ++j) {
      const float across = static_cast<float>(values[2 + j]),
                  down = static_cast<float>(values[2 + taps_x + k]);
      weights[(k + kRows - 1) * ptrdiff_t{taps_x} + j] = down * across * kScale;
    }
  }
  std::fill_n(padded, rows * stride, 0.0f);
  for (int c = 0; c < 3; ++c) {
    uint8_t* const levels = canvas->plane(c);
    for (int y = -radius_y; y < height + radius_y; ++y) {
      const uint8_t* const from = levels + static_cast<ptrdiff_t>(reflected(y, height)) * width;
      float* const row = padded + (y + radius_y) * stride + radius_x;
      for (int x = 0; x < width; ++x) row[x] = static_cast<float>(from[x]);
      for (int x = 1; x <= radius_x; ++x) {
        row[-x] = static_cast<float>(from[reflected(-x, width)]);
        row[width - 1 + x] = static_cast<float>(from[reflected(width - 1 + x, width)]);
      }
    }
    vectorised([=]() FASTLOAD_LOOP {
      for (int y = 0; y < height; y += kRows) {
        for (int x = 0; x < width; x += kColumns) {
          float sums[kRows][kColumns] = {};
          for (int k = 0; k < taps_y + kRows - 1; ++k) {
            const float* const row = padded + (y + k) * stride + x;
            const float* const weight = weights + (k + kRows - 1) * static_cast<ptrdiff_t>(taps_x);
            for (ptrdiff_t j = 0; j < taps_x; ++j) {
              const float* const from = row + j;
              // The rows are unrolled and the columns are not, so that these are vectorised and the sums stay
              // in registers: 224 x 224 pixels and 23 x 23 weights took 1.7 ms, otherwise 21.
#pragma GCC unroll 8
              for (int r = 0; r < kRows; ++r) {
                const float w = weight[j - r * static_cast<ptrdiff_t>(taps_x)];
#pragma GCC unroll 1
                for (int i = 0; i < kColumns; ++i) sums[r][i] = __builtin_fmaf(from[i], w, sums[r][i]);
              }
            }
          }
          for (int r = 0; r < std::min(kRows, height - y); ++r) {
            uint8_t* const to = levels + static_cast<ptrdiff_t>(y + r) * width + x;
            for (int i = 0; i < std::min(kColumns, width - x); ++i) {
              const float sum = std::min(std::max(sums[r][i] / kScale, 0.0f), 255.0f);
              to[i] = static_cast<uint8_t>(static_cast<int>(nearest(sum)));
            }
          }
        }
      }
    });
  }
}

}  // namespace fastload
