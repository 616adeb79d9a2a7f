#include "resample/axis.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <new>
#include <utility>
#include <vector>

#include "resample/kernels.h"

namespace fastload::resampling {

namespace {

constexpr int kPrecisionBits = 22;  // 32 bits minus 8 for the level and 2 for the excess of negative weights
constexpr double kPi = 3.14159265358979323846;

double box(double x) {
  return x > -0.5 && x <= 0.5 ? 1.0 : 0.0;
}

double bilinear(double x) {
  x = std::fabs(x);
  return x < 1.0 ? 1.0 - x : 0.0;
}

double hamming(double x) {
  x = std::fabs(x);
  if (x == 0.0) return 1.0;
  if (x >= 1.0) return 0.0;
  x *= kPi;
  return std::sin(x) / x *
         (0.54f + 0.46f * std::cos(x));  // Pillow's constants are float, which changes results
}

double bicubic(double x) {
  constexpr double a = -0.5;
  x = std::fabs(x);
  if (x < 1.0) return ((a + 2.0) * x - (a + 3.0)) * x * x + 1;
  if (x < 2.0) return (((x - 5) * x + 8) * x - 4) * a;
  return 0.0;
}

// The same in ATen's order of operations.
double torch_bicubic(double x) {
  constexpr double a = -0.5;
  x = std::fabs(x);
  if (x < 1.0) return ((a + 2.0) * x - (a + 3.0)) * x * x + 1.0;
  if (x < 2.0) return ((a * x - 5.0 * a) * x + 8.0 * a) * x - 4.0 * a;
  return 0.0;
}

double sinc(double x) {
  if (x == 0.0) return 1.0;
  x *= kPi;
  return std::sin(x) / x;
}

double lanczos(double x) {
  return x >= -3.0 && x < 3.0 ? sinc(x) * sinc(x / 3) : 0.0;
}

struct FilterKernel {
  double (*value)(double);
  double support;
};

FilterKernel kernel_of(Filter filter) {
  switch (filter) {
    case Filter::kBox:
      return {box, 0.5};
    case Filter::kHamming:
      return {hamming, 1.0};
    case Filter::kBicubic:
      return {bicubic, 2.0};
    case Filter::kTorchBicubic:
      return {torch_bicubic, 2.0};
    case Filter::kLanczos:
      return {lanczos, 3.0};
    default:
      return {bilinear, 1.0};
  }
}

// Nearest is a resize with one tap of weight 1. Positions are accumulated as in Pillow, not multiplied: the
// rounding differs.
void nearest_weights(int in, int out, Weights* weights) {
  weights->taps = 1;
  int32_t* start = weights->start.room_for<int32_t>(out);
  int32_t* count = weights->count.room_for<int32_t>(out);
  int32_t* values = weights->values.room_for<int32_t>(out);
  const double step = static_cast<double>(in) / out;
  double position = step * 0.5;
  for (int x = 0; x < out; ++x, position += step) {
    start[x] = std::min(static_cast<int>(position), in - 1);
    count[x] = 1;
    values[x] = 1 << kPrecisionBits;
  }
}

int32_t fixed_point(double value, int bits) {
  const double scaled = value * (1 << bits);
  return static_cast<int32_t>(value < 0 ? scaled - 0.5 : scaled + 0.5);
}

// The most fraction bits with which torch's weights, the largest being `most`, fit 16 bits.
int torch_bits(double most) {
  int bits = 0;
  while (bits < kPrecisionBits && static_cast<int>(0.5 + most * (1 << (bits + 1))) < 1 << 15) ++bits;
  return bits;
}

}  // namespace

AlignedBytes::~AlignedBytes() {
  std::free(data_);
}

void AlignedBytes::release() {
  std::free(data_);
  data_ = nullptr;
  size_ = 0;
}

void* AlignedBytes::grow(size_t count, size_t item) {
  constexpr size_t kAlignment = 64;
  if (count > (SIZE_MAX - kAlignment) / item) throw std::bad_alloc();
  const size_t wanted = (count * item + kAlignment - 1) / kAlignment * kAlignment;
  if (wanted <= size_) return data_;
  release();
  void* fresh = nullptr;
  if (posix_memalign(&fresh, kAlignment, wanted) != 0) throw std::bad_alloc();
  std::memset(fresh, 0, wanted);
  data_ = fresh;
  size_ = wanted;
  return data_;
}

void compute_weights(const Extent& in, int out, Filter filter, Weights* weights) {
  weights->in = in;
  weights->out = out;
  if (filter == Filter::kNearest) return nearest_weights(in.size, out, weights);

  const FilterKernel kernel = kernel_of(filter);
  const double origin = in.lead / 8.0;
  const double scale = (in.size - in.tail / 8.0 - origin) / out;
  const double filter_scale = std::max(scale, 1.0);
  const double support = kernel.support * filter_scale;
  const double inverse_scale = 1.0 / filter_scale;

  int32_t* start = weights->start.room_for<int32_t>(out);
  int32_t* count = weights->count.room_for<int32_t>(out);
  int taps = 1;
  for (int x = 0; x < out; ++x) {
    const double center = origin + (x + 0.5) * scale;
    const int first = std::max(static_cast<int>(center - support + 0.5), 0);
    const int last = std::min(static_cast<int>(center + support + 0.5), in.size);
    start[x] = first;
    count[x] = last - first;
    taps = std::max(taps, count[x]);
  }
  weights->taps = taps;
  int32_t* values = weights->values.room_for<int32_t>(static_cast<size_t>(out) * taps);
  std::vector<double> rows(static_cast<size_t>(out) * taps);
  double most = 0.0;
  double* row = rows.data();
  for (int x = 0; x < out; ++x, row += taps) {
    const double center = origin + (x + 0.5) * scale;
    double sum = 0.0;
    for (int i = 0; i < count[x]; ++i) {
      row[i] = kernel.value((i + start[x] - center + 0.5) * inverse_scale);
      sum += row[i];
    }
    for (int i = 0; i < count[x]; ++i) {
      if (sum != 0.0) row[i] /= sum;
      most = std::max(most, row[i]);
    }
  }
  const bool torch = filter == Filter::kTorchBilinear || filter == Filter::kTorchBicubic;
  const int bits = torch ? torch_bits(most) : kPrecisionBits;
  // Weights with fewer bits are shifted up, which changes neither the sums nor their rounding.
  row = rows.data();
  for (int x = 0; x < out; ++x, values += taps, row += taps) {
    for (int i = 0; i < count[x]; ++i) values[i] = fixed_point(row[i], bits) * (1 << (kPrecisionBits - bits));
  }
}

void make_vertical(const Weights& weights, const Kernels& kernels, VerticalTable* table) {
  const int rows = kernels.rows;
  uint16_t* first = table->first.room_for<uint16_t>(weights.out);
  uint16_t* groups = table->groups.room_for<uint16_t>(weights.out);
  uint32_t* offset = table->offset.room_for<uint32_t>(weights.out);
  // Below 2^32: kMaxSide outputs of a few taps each, or as many taps as there are source positions.
  size_t nwords = 0;
  for (int y = 0; y < weights.out; ++y) {
    const int begin = weights.starts()[y] / rows, count = (weights.end(y) - 1) / rows - begin + 1;
    first[y] = static_cast<uint16_t>(begin);
    groups[y] = static_cast<uint16_t>(count);
    offset[y] = static_cast<uint32_t>(nwords);
    nwords += static_cast<size_t>(count) * kernels.words;
    table->most_groups = std::max(table->most_groups, count);
  }
  int32_t* words = table->words.room_for<int32_t>(nwords);
  std::vector<int32_t> padded;
  for (int y = 0; y < weights.out; ++y) {
    padded.assign(static_cast<size_t>(groups[y]) * rows, 0);
    std::copy_n(weights.of(y), weights.counts()[y], padded.begin() + weights.starts()[y] % rows);
    for (int g = 0; g < groups[y]; ++g, words += kernels.words) kernels.encode(&padded[g * rows], words);
  }
}

std::unique_ptr<const Axis> make_axis(const AxisKey& key) {
  Weights weights;
  compute_weights(key.in, key.out, key.filter, &weights);
  auto axis = std::make_unique<Axis>();
  uint16_t* begins = axis->begins.room_for<uint16_t>(key.out);
  uint16_t* ends = axis->ends.room_for<uint16_t>(key.out);
  for (int at = 0; at < key.out; ++at) {
    begins[at] = static_cast<uint16_t>(weights.starts()[at]);
    ends[at] = static_cast<uint16_t>(weights.end(at));
  }
  if (key.pass == Pass::kHorizontal) {
    key.kernels->make_horizontal(weights, &axis->horizontal);
  } else {
    make_vertical(weights, *key.kernels, &axis->vertical);
  }
  return axis;
}

size_t Axis::nbytes() const {
  size_t total = sizeof(Axis) + begins.size() + ends.size();
  total += vertical.first.size() + vertical.groups.size() + vertical.offset.size() + vertical.words.size();
  return total + horizontal.start.size() + horizontal.words.size();
}

const Axis* AxisCache::get(const AxisKey& key) {
  Entry& entry = entries_[key.packed()];
  if (!entry.axis) {
    entry.axis = make_axis(key);
    nbytes_ += entry.axis->nbytes();
  }
  entry.last_used = ++clock_;
  return entry.axis.get();
}

void AxisCache::trim() {
  if (nbytes_ <= kLimit) return;
  // Shrink to three quarters, so that the sort is needed only once in a few hundred images.
  std::vector<std::pair<uint64_t, uint64_t>> by_age;  // (last_used, key)
  by_age.reserve(entries_.size());
  for (const auto& [key, entry] : entries_) by_age.emplace_back(entry.last_used, key);
  std::sort(by_age.begin(), by_age.end());
  for (const auto& [age, key] : by_age) {
    if (nbytes_ <= kLimit / 4 * 3) break;
    const auto found = entries_.find(key);
    if (found->second.axis) nbytes_ -= found->second.axis->nbytes();
    entries_.erase(found);
  }
}

void AxisCache::clear() {
  entries_.clear();
  nbytes_ = 0;
}

}  // namespace fastload::resampling
