#include "resample/values.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/x86.h"
#include "resample/kernels.h"

namespace fastload::resampling {
namespace {

// The weights of a part of an axis: of each output position which source positions, and how much of each.
struct AxisWeights {
  int out = 0, taps = 0;
  int begin = 0, end = 0;       // source positions that are used
  std::vector<int32_t> starts;  // (out), from `begin` on
  std::vector<int32_t> counts;  // (out), >= 1
  std::vector<float> weights;   // (taps, out): those of one tap side by side, zero after `counts`
};

// Positions `first` to first + count - 1 of resizing `in` positions to `out`.
AxisWeights weights_of(int in, int out, int first, int count) {
  const float scale = static_cast<float>(in) / static_cast<float>(out);
  const float support = scale >= 1.0f ? scale : 1.0f;
  const float inverse = scale >= 1.0f ? static_cast<float>(1.0 / scale) : 1.0f;
  AxisWeights axis;
  axis.out = count;
  axis.starts.resize(static_cast<size_t>(count));
  axis.counts.resize(static_cast<size_t>(count));
  axis.begin = in;
  const auto center_of = [&](int i) { return static_cast<float>(scale * (first + i + 0.5)); };
  for (int i = 0; i < count; ++i) {
    const float center = center_of(i);
    const int low = std::max(static_cast<int>(static_cast<double>(center - support) + 0.5), 0);
    const int high = std::min(static_cast<int>(static_cast<double>(center + support) + 0.5), in);
    const int start = std::min(low, in - 1);
    axis.starts[static_cast<size_t>(i)] = start;
    axis.counts[static_cast<size_t>(i)] = std::max(high - start, 1);
    axis.taps = std::max(axis.taps, axis.counts[static_cast<size_t>(i)]);
    axis.begin = std::min(axis.begin, start);
    axis.end = std::max(axis.end, start + axis.counts[static_cast<size_t>(i)]);
  }
  axis.weights.resize(static_cast<size_t>(axis.taps) * static_cast<size_t>(count));
  for (int i = 0; i < count; ++i) {
    const float center = center_of(i);
    float* const own = axis.weights.data() + i;
    float total = 0;
    for (int j = 0; j < axis.counts[static_cast<size_t>(i)]; ++j) {
      const float from_center = static_cast<float>(j + axis.starts[static_cast<size_t>(i)]) - center;
      const float x = std::fabs(static_cast<float>((from_center + 0.5) * inverse));
      const float weight = x < 1.0f ? 1.0f - x : 0.0f;
      own[static_cast<ptrdiff_t>(j) * count] = weight;
      total += weight;
    }
    for (int j = 0; j < axis.counts[static_cast<size_t>(i)] && total != 0.0f; ++j) {
      own[static_cast<ptrdiff_t>(j) * count] /= total;
    }
    axis.starts[static_cast<size_t>(i)] -= axis.begin;
  }
  return axis;
}

// How many taps after the first one are added in fours.
int in_fours(Sums sums, int count) {
  return sums == Sums::kFours ? (count - 1) / 4 * 4 : 0;
}

void horizontal_scalar(const AxisWeights& axis, Sums sums, const float* row, int from, float* out) {
  for (int i = from; i < axis.out; ++i) {
    const float* const at = row + axis.starts[static_cast<size_t>(i)];
    const float* const weights = axis.weights.data() + i;
    const int count = axis.counts[static_cast<size_t>(i)], rounded = in_fours(sums, count);
    float sum = at[0] * weights[0];
    for (int j = 1; j < count; ++j) {
      const float weight = weights[static_cast<ptrdiff_t>(j) * axis.out];
      sum = j <= rounded ? sum + at[j] * weight : std::fma(at[j], weight, sum);
    }
    out[i] = sum;
  }
}

// One output row: the weighted sum of `count` rows of `width` values. Compiled for each instruction set.
__attribute__((always_inline)) inline void sum_rows(const float* rows, int width, const float* weights,
                                                    ptrdiff_t weight_stride, int count, int rounded,
                                                    float* __restrict out) {
  for (int x = 0; x < width; ++x) out[x] = rows[x] * weights[0];
  for (int j = 1; j < count; ++j) {
    const float* const row = rows + static_cast<ptrdiff_t>(j) * width;
    const float weight = weights[j * weight_stride];
    if (j <= rounded) {
      for (int x = 0; x < width; ++x) out[x] = out[x] + row[x] * weight;
    } else {
      for (int x = 0; x < width; ++x) out[x] = __builtin_fmaf(row[x], weight, out[x]);
    }
  }
}

using Horizontal = void (*)(const AxisWeights& axis, Sums sums, const float* row, float* out);
using SumRows = void (*)(const float* rows, int width, const float* weights, ptrdiff_t weight_stride,
                         int count, int rounded, float* out);

void horizontal_portable(const AxisWeights& axis, Sums sums, const float* row, float* out) {
  horizontal_scalar(axis, sums, row, 0, out);
}

void sum_rows_portable(const float* rows, int width, const float* weights, ptrdiff_t weight_stride, int count,
                       int rounded, float* out) {
  sum_rows(rows, width, weights, weight_stride, count, rounded, out);
}

#ifdef FASTLOAD_X86
FASTLOAD_AVX2_CALL void horizontal_avx2(const AxisWeights& axis, Sums sums, const float* row, float* out) {
  int i = 0;
  for (; i + 8 <= axis.out; i += 8) {
    const auto* const starts = reinterpret_cast<const __m256i*>(axis.starts.data() + i);
    const auto* const counts = reinterpret_cast<const __m256i*>(axis.counts.data() + i);
    const __m256i start = _mm256_loadu_si256(starts), count = _mm256_loadu_si256(counts);
    const __m256i last = _mm256_sub_epi32(count, _mm256_set1_epi32(1));
    const __m256i rounded =
        sums == Sums::kFours ? _mm256_and_si256(last, _mm256_set1_epi32(~3)) : _mm256_setzero_si256();
    int most = 1;
    for (int k = 0; k < 8; ++k) most = std::max(most, axis.counts[static_cast<size_t>(i + k)]);
    const float* weights = axis.weights.data() + i;
    __m256 sum = _mm256_mul_ps(_mm256_i32gather_ps(row, start, 4), _mm256_loadu_ps(weights));
    for (int j = 1; j < most; ++j) {
      weights += axis.out;
      const __m256i tap = _mm256_set1_epi32(j);
      // A lane that has no such tap reads its last one, and keeps its sum.
      const __m256i index = _mm256_add_epi32(start, _mm256_min_epi32(tap, last));
      const __m256 value = _mm256_i32gather_ps(row, index, 4), weight = _mm256_loadu_ps(weights);
      const __m256 fused = _mm256_fmadd_ps(value, weight, sum);
      const __m256 added = _mm256_add_ps(sum, _mm256_mul_ps(value, weight));
      const __m256 is_fused = _mm256_castsi256_ps(_mm256_cmpgt_epi32(tap, rounded));
      const __m256 is_none = _mm256_castsi256_ps(_mm256_cmpgt_epi32(tap, last));
      sum = _mm256_blendv_ps(_mm256_blendv_ps(added, fused, is_fused), sum, is_none);
    }
    _mm256_storeu_ps(out + i, sum);
  }
  horizontal_scalar(axis, sums, row, i, out);
}

FASTLOAD_AVX2_CALL void sum_rows_avx2(const float* rows, int width, const float* weights,
                                      ptrdiff_t weight_stride, int count, int rounded, float* out) {
  sum_rows(rows, width, weights, weight_stride, count, rounded, out);
}
#endif

struct Passes {
  Horizontal horizontal;
  SumRows sum_rows;
};

Passes passes_in_use() {
#ifdef FASTLOAD_X86
  if (simd_in_use() >= Simd::kAvx2) return {horizontal_avx2, sum_rows_avx2};
#endif
  return {horizontal_portable, sum_rows_portable};
}

void change(const ValueOperation& operation, int channel, int count, float* values) {
  const float operand = operation.operand[channel];
  switch (operation.kind) {
    case ValueOperation::Kind::kAdd:
      for (int x = 0; x < count; ++x) values[x] += operand;
      break;
    case ValueOperation::Kind::kSubtract:
      for (int x = 0; x < count; ++x) values[x] -= operand;
      break;
    case ValueOperation::Kind::kMultiply:
      for (int x = 0; x < count; ++x) values[x] *= operand;
      break;
    case ValueOperation::Kind::kDivide:
      for (int x = 0; x < count; ++x) values[x] /= operand;
      break;
  }
}

}  // namespace

void resize_values(const ValueResize& values, const LevelBox* planes, const Resize& resize,
                   const Target& target, AlignedBytes* memory) {
  const int left = std::max(resize.window_x, 0), top = std::max(resize.window_y, 0);
  const int right = std::min(resize.window_x + resize.out_w, resize.resized_w);
  const int bottom = std::min(resize.window_y + resize.out_h, resize.resized_h);
  const int channels = target.channel_stride == 0 ? 1 : 3;
  if (right - left < resize.out_w || bottom - top < resize.out_h) {
    for (int c = 0; c < channels; ++c) {
      float* const plane = static_cast<float*>(target.data) + c * target.channel_stride;
      for (int y = 0; y < resize.out_h; ++y) {
        for (int x = 0; x < resize.out_w; ++x) plane[y * target.row_stride + x * target.pixel_stride] = 0;
      }
    }
    if (left >= right || top >= bottom) return;
  }
  const int first_x = left - resize.window_x, first_y = top - resize.window_y;
  const int count_x = right - left, count_y = bottom - top;
  const AxisWeights columns = weights_of(planes[0].width, resize.resized_w, left, count_x);
  const AxisWeights rows = weights_of(planes[0].height, resize.resized_h, top, count_y);
  const Passes passes = passes_in_use();
  const int source_width = columns.end - columns.begin, source_height = rows.end - rows.begin;
  const size_t width = static_cast<size_t>(count_x);
  float* const source = memory->room_for<float>(static_cast<size_t>(source_width) + width +
                                                width * static_cast<size_t>(source_height));
  float* const line = source + source_width;
  float* const resized = line + width;
  for (int c = 0; c < channels; ++c) {
    const float* const table = values.table.data() + 256 * c;
    for (int y = 0; y < source_height; ++y) {
      const uint8_t* const levels =
          planes[c].levels + (rows.begin + y) * planes[c].row_stride + columns.begin;
      for (int x = 0; x < source_width; ++x) source[x] = table[levels[x]];
      passes.horizontal(columns, values.sums, source, resized + static_cast<size_t>(y) * width);
    }
    float* const plane = static_cast<float*>(target.data) + c * target.channel_stride;
    for (int y = 0; y < count_y; ++y) {
      const int count = rows.counts[static_cast<size_t>(y)];
      passes.sum_rows(resized + static_cast<size_t>(rows.starts[static_cast<size_t>(y)]) * width, count_x,
                      rows.weights.data() + y, rows.out, count, in_fours(values.sums, count), line);
      for (const ValueOperation& operation : values.operations) change(operation, c, count_x, line);
      float* const out = plane + (first_y + y) * target.row_stride;
      if (!target.flip && target.pixel_stride == 1) {
        std::memcpy(out + first_x, line, width * sizeof(float));
        continue;
      }
      for (int x = 0; x < count_x; ++x) {
        const int at = first_x + x;
        out[(target.flip ? resize.out_w - 1 - at : at) * target.pixel_stride] = line[x];
      }
    }
  }
}

}  // namespace fastload::resampling
