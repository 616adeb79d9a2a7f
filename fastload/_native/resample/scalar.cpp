// The kernels in plain C++: all other instruction sets must agree with them.
#include <algorithm>
#include <cstring>

#include "base/simd.h"
#include "resample/kernels.h"

namespace fastload::resampling {

namespace {

constexpr int32_t kHalf = 1 << 21;

uint8_t level(int32_t sum) {
  const int32_t rounded = sum >> 22;
  return static_cast<uint8_t>(std::min(std::max(rounded, 0), 255));
}

void encode(const int32_t* weights, int32_t* words) {
  words[0] = weights[0];
}

// words: [out][groups]; the starts, and after them the counts.
void make_horizontal(const Weights& weights, HorizontalTable* table) {
  const size_t out = weights.out;
  table->groups = weights.taps;
  table->stride = weights.out;
  int32_t* start = table->start.room_for<int32_t>(2 * out);
  std::memcpy(start, weights.starts(), out * sizeof(int32_t));
  std::memcpy(start + out, weights.counts(), out * sizeof(int32_t));
  const size_t nwords = out * weights.taps;
  std::memcpy(table->words.room_for<int32_t>(nwords), weights.of(0), nwords * sizeof(int32_t));
}

void horizontal_to_planes(const HorizontalTable& table, const RowPart& part, const uint8_t* const* rows,
                          uint8_t* const* planes) {
  const int32_t* start = table.start.get<int32_t>() + part.x;
  const int32_t* count = start + table.stride;
  const int32_t* weight = table.words.get<int32_t>() + static_cast<size_t>(part.x) * table.groups;
  for (int x = 0; x < part.count; ++x, weight += table.groups) {
    const uint8_t* pixel = rows[0] + static_cast<ptrdiff_t>(start[x] - part.source_x) * 3;
    int32_t red = kHalf, green = kHalf, blue = kHalf;
    for (int i = 0; i < count[x]; ++i, pixel += 3) {
      red += pixel[0] * weight[i];
      green += pixel[1] * weight[i];
      blue += pixel[2] * weight[i];
    }
    planes[0][x] = level(red);
    planes[1][x] = level(green);
    planes[2][x] = level(blue);
  }
}

void horizontal_to_group(const HorizontalTable& table, const RowPart& part, const uint8_t* const* rows,
                         uint8_t* group, int plane) {
  uint8_t* const planes[3] = {group, group + plane, group + 2 * static_cast<ptrdiff_t>(plane)};
  horizontal_to_planes(table, part, rows, planes);
}

void interleave(const uint8_t* const* rows, int count, uint8_t* group) {
  std::memcpy(group, rows[0], count);
}

void vertical(const uint8_t* const* groups, int count, const int32_t* words, int lanes, uint8_t* levels) {
  constexpr int kBlock = 64;  // the sums of a block stay in registers or L1
  for (int begin = 0; begin < lanes; begin += kBlock) {
    const int n = std::min(kBlock, lanes - begin);
    int32_t sums[kBlock];
    std::fill(sums, sums + n, kHalf);
    for (int g = 0; g < count; ++g) {
      const uint8_t* row = groups[g] + begin;
      const int32_t weight = words[g];
      for (int x = 0; x < n; ++x) sums[x] += row[x] * weight;
    }
    for (int x = 0; x < n; ++x) levels[begin + x] = level(sums[x]);
  }
}

void deinterleave(const uint8_t* rgb, int count, uint8_t* const* planes) {
  uint8_t *red = planes[0], *green = planes[1], *blue = planes[2];
  for (int x = 0; x < count; ++x, rgb += 3) {
    red[x] = rgb[0];
    green[x] = rgb[1];
    blue[x] = rgb[2];
  }
}

template <typename Element>
void store(const RowOutput& output, const uint8_t* const* planes, void* row) {
  const ptrdiff_t step = output.flip ? -1 : 1;
  for (int channel = 0; channel < 3; ++channel) {
    const Element* lut = static_cast<const Element*>(output.lut) + 256 * channel;
    const uint8_t* level = planes[channel] + (output.flip ? output.width - 1 : 0);
    Element* to = static_cast<Element*>(row) + channel * output.channel_stride;
    for (int x = 0; x < output.width; ++x, level += step, to += output.pixel_stride) *to = lut[*level];
  }
}

void store_levels(const RowOutput& output, const uint8_t* const* planes, void* row) {
  const ptrdiff_t step = output.flip ? -1 : 1;
  for (int channel = 0; channel < 3; ++channel) {
    const uint8_t* level = planes[channel] + (output.flip ? output.width - 1 : 0);
    uint8_t* to = static_cast<uint8_t*>(row) + channel * output.channel_stride;
    for (int x = 0; x < output.width; ++x, level += step, to += output.pixel_stride) *to = *level;
  }
}

}  // namespace

// Values are copied, not computed: the meaning of a 16-bit element does not matter here.
StoreRow scalar_store_for(RowOutput* output) {
  switch (output->dtype) {
    case Dtype::kFloat32:
      return store<uint32_t>;
    case Dtype::kFloat16:
    case Dtype::kBfloat16:
      return store<uint16_t>;
    default:
      return output->lut ? store<uint8_t> : store_levels;
  }
}

const Kernels kScalarKernels = {1,
                                1,
                                1,
                                encode,
                                make_horizontal,
                                horizontal_to_group,
                                horizontal_to_planes,
                                interleave,
                                vertical,
                                deinterleave,
                                scalar_store_for};

const Kernels& kernels_in_use() {
  switch (simd_in_use()) {
#ifdef FASTLOAD_X86
    case Simd::kAvx512:
      return kAvx512Kernels;
    case Simd::kAvx2:
      return kAvx2Kernels;
#elif defined(FASTLOAD_ARM)
    case Simd::kNeon:
      return kNeonKernels;
#endif
    default:
      return kScalarKernels;
  }
}

}  // namespace fastload::resampling
