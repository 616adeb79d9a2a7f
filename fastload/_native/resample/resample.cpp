// The control flow of a resize: rows come in, are grouped, pass through the kernels, and are stored.
//
// Note [Flow]
//   same size         rows -> deinterleave -> store
//   only the width    groups of rows -> horizontal_to_planes -> store
//   horizontal first  groups of rows -> horizontal_to_group -> ring of groups -> vertical -> store
//   vertical first    groups of rows -> interleave -> ring of groups -> vertical -> (as "only the width")
//   only the height   groups of rows -> interleave -> ring of groups -> vertical -> deinterleave -> store
// An output row is computed as soon as the last group that it needs is there. So the ring holds only as many
// groups as one output row needs, and the intermediate stays in the L1 cache.
#include "resample/resample.h"

#include <algorithm>
#include <cstring>
#include <new>

#include "base/clock.h"
#include "resample/axis.h"
#include "resample/kernels.h"
#include "resample/plan.h"
#include "resample/shared_axes.h"

namespace fastload {

using namespace resampling;

namespace {

size_t round_up(size_t value, size_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

// Both ends of the source range grow with the output position.
PixelRange needed(const Axis& axis, PixelRange outputs) {
  return {axis.begin_of(outputs.begin), axis.end_of(outputs.end - 1)};
}

}  // namespace

struct Resampler::Impl {
  // The current image.
  const Kernels* kernels = nullptr;
  Resize resize{};
  Target target{};
  RowOutput output{};
  StoreRow store = nullptr;
  ResizePlan passes;
  bool planes_are_target = false;  // levels are stored unchanged: kernels write to the target
  bool rows_are_target = false;    // even the source's bytes are stored unchanged
  const Axis* x_axis = nullptr;
  const Axis* y_axis = nullptr;
  PixelRange need_x, need_y;  // of the box

  int next_source = 0;   // the next row of the box to be fed
  int next_output = 0;   // the next row of the resized image to be made
  int pending = 0;       // rows of the current group that wait in pending_bytes
  int intermediate = 0;  // rows that wait in intermediate_bytes

  // Scratch memory, reused from image to image.
  AxisCache axes;
  AlignedBytes pending_bytes;       // source rows of an incomplete group
  AlignedBytes ring_bytes;          // groups that the vertical pass still needs
  AlignedBytes intermediate_bytes;  // results of a vertical pass that comes first
  AlignedBytes planes_bytes;        // planes of levels of one group of rows, ready to be stored
  AlignedBytes pointers_bytes;
  size_t row_stride = 0, group_bytes = 0, planes_stride = 0;
  int ring_groups = 0, plane_lanes = 0;
  bool measured = false;
  int64_t spent_ns = 0;

  void prepare(const Resize& r, const Target& t);
  void prepare_passes();
  void prepare_scratch();

  void copy_row(const uint8_t* row);
  void take_group(const uint8_t* const* rows, int first, int count);
  bool takes_two() const {
    return kernels->horizontal_to_two != nullptr && passes.vertical && passes.horizontal &&
           !passes.vertical_first;
  }
  void take_two(const uint8_t* first, ptrdiff_t stride);
  void make_outputs(int groups_done);
  void horizontal_rows(const uint8_t* const* rows, int first, int count, int output_row);
  void store_fill(int64_t begin, int64_t end);
  void finish_row(int row, uint8_t* const* planes);
  void choose_planes(int k, int row, uint8_t** planes);

  uint8_t* target_row(int64_t window_row, int channel) const {
    return static_cast<uint8_t*>(target.data) +
           (window_row * target.row_stride + channel * target.channel_stride) * dtype_nbytes(target.dtype);
  }
  // Where a channel of the source is stored, and what is stored there.
  int stored_channel(int channel) const { return target.reversed ? 2 - channel : channel; }
  uint8_t* pending_row(int k) { return pending_bytes.get<uint8_t>() + k * row_stride; }
  uint8_t* intermediate_row(int k) { return intermediate_bytes.get<uint8_t>() + k * row_stride; }
  uint8_t* plane(int k, int channel) {
    return planes_bytes.get<uint8_t>() + (3 * k + channel) * planes_stride + kSlack;
  }
  uint8_t* ring_group(int index) { return ring_bytes.get<uint8_t>() + (index % ring_groups) * group_bytes; }
};

void Resampler::Impl::prepare(const Resize& r, const Target& t) {
  const Kernels* now = &kernels_in_use();
  if (now != kernels) {  // tables are specific to an instruction set
    axes.clear();
    output.tables.release();
    kernels = now;
  }
  resize = r;
  target = t;
  output.dtype = t.dtype;
  output.lut = t.lut;
  output.flip = t.flip;
  output.width = r.out_w;
  output.nbytes = int64_t{3} * r.out_w * r.out_h * dtype_nbytes(t.dtype);
  output.pixel_stride = t.pixel_stride;
  output.channel_stride = t.channel_stride;
  store = kernels->store_for(&output);

  need_x = passes.columns;
  need_y = passes.rows;
  if (passes.horizontal || passes.vertical) prepare_passes();
  prepare_scratch();

  next_source = need_y.begin;
  next_output = passes.rows.begin;
  pending = intermediate = 0;
  if (passes.rows.size() < r.out_h) {
    const int64_t top =
        passes.rows.size() > 0 ? static_cast<int64_t>(passes.rows.begin) - r.window_y : r.out_h;
    store_fill(0, top);
    store_fill(top + passes.rows.size(), r.out_h);
  }
}

void Resampler::Impl::prepare_passes() {
  axes.trim();
  const auto axis_of = [this](const SharedAxis* shared, const Extent& in, int out, Pass pass) {
    const AxisKey key{in, out, resize.filter, pass, kernels};
    return shared && shared->key() == key ? shared->get() : axes.get(key);
  };
  if (passes.horizontal) {
    x_axis = axis_of(resize.x_axis, {resize.box_w, resize.lead_x, resize.tail_x}, resize.resized_w,
                     Pass::kHorizontal);
    need_x = needed(*x_axis, passes.columns);
  }
  if (passes.vertical) {
    y_axis = axis_of(resize.y_axis, {resize.box_h, resize.lead_y, resize.tail_y}, resize.resized_h,
                     Pass::kVertical);
    need_y = needed(*y_axis, passes.rows);
  }
}

// No size is above 65535, so nothing here overflows 64 bits, and a group's lanes fit an int.
void Resampler::Impl::prepare_scratch() {
  const size_t rows = kernels->rows;
  const bool levels = target.dtype == Dtype::kUint8 && target.lut == nullptr && !target.flip;
  planes_are_target = levels && target.pixel_stride == 1;
  rows_are_target = levels && !passes.horizontal && !passes.vertical && target.pixel_stride == 3 &&
                    target.channel_stride == 1 && !target.reversed;
  planes_stride = round_up(static_cast<size_t>(resize.out_w) + 2 * kSlack, 64);
  planes_bytes.room_for<uint8_t>(3 * rows * planes_stride);
  if (!planes_are_target && (passes.columns.size() < resize.out_w || passes.rows.size() < resize.out_h)) {
    for (int k = 0; k < kernels->rows; ++k) {
      for (int c = 0; c < 3; ++c) std::memset(plane(k, c), target.fill[c], resize.out_w);
    }
  }
  if (!passes.horizontal && !passes.vertical) return;

  const size_t row_bytes = static_cast<size_t>(need_x.size()) * 3;
  row_stride = round_up(row_bytes + kSlack, 64);
  pending_bytes.room_for<uint8_t>(rows * row_stride);
  if (!passes.vertical) return;

  if (passes.vertical_first) intermediate_bytes.room_for<uint8_t>(rows * row_stride);
  plane_lanes = static_cast<int>(round_up(passes.columns.size(), 16));
  const size_t lanes = passes.vertical_first ? round_up(row_bytes, 64) : 3 * static_cast<size_t>(plane_lanes);
  group_bytes = lanes * kernels->lane_bytes;
  ring_groups = y_axis->vertical.most_groups + (kernels->horizontal_to_two ? 1 : 0);
  ring_bytes.room_for<uint8_t>(ring_groups * group_bytes + kSlack);
  pointers_bytes.room_for<const uint8_t*>(ring_groups);
}

// Stores the fill to the window's rows [begin, end). Call it before the planes hold anything else.
void Resampler::Impl::store_fill(int64_t begin, int64_t end) {
  const uint8_t* const planes[3] = {plane(0, 0), plane(0, 1), plane(0, 2)};
  for (int64_t y = begin; y < end; ++y) {
    if (!planes_are_target) {
      store(output, planes, target_row(y, 0));
      continue;
    }
    for (int c = 0; c < 3; ++c) std::memset(target_row(y, c), target.fill[c], resize.out_w);
  }
}

// Where the levels of a row of the resized image go, by channel of the source; `k`: its index among the rows
// made together.
void Resampler::Impl::choose_planes(int k, int row, uint8_t** planes) {
  const int left = passes.columns.begin - resize.window_x;
  for (int c = 0; c < 3; ++c) {
    const int stored = stored_channel(c);
    planes[c] = (planes_are_target ? target_row(row - resize.window_y, stored) : plane(k, stored)) + left;
  }
}

// Stores a row of the resized image, whose levels are in the planes that choose_planes chose.
void Resampler::Impl::finish_row(int row, uint8_t* const* planes) {
  const int left = passes.columns.begin - resize.window_x;
  if (!planes_are_target) {
    const uint8_t* const whole[3] = {planes[stored_channel(0)] - left, planes[1] - left,
                                     planes[stored_channel(2)] - left};
    store(output, whole, target_row(row - resize.window_y, 0));
    return;
  }
  const int right = resize.out_w - left - passes.columns.size();
  if (left == 0 && right == 0) return;
  for (int c = 0; c < 3; ++c) {
    const uint8_t fill = target.fill[stored_channel(c)];
    std::memset(planes[c] - left, fill, left);
    std::memset(planes[c] + passes.columns.size(), fill, right);
  }
}

void Resampler::Impl::copy_row(const uint8_t* row) {
  const int y = next_source;
  uint8_t* planes[3];
  if (rows_are_target && passes.columns.size() == resize.out_w) {
    std::memcpy(target_row(y - resize.window_y, 0), row, static_cast<size_t>(passes.columns.size()) * 3);
    return;
  }
  choose_planes(0, y, planes);
  kernels->deinterleave(row, passes.columns.size(), planes);
  finish_row(y, planes);
}

// Resizes rows, as wide as the box's need_x, horizontally and stores them. rows[first] is row `output_row`;
// only `count` rows of the group are valid.
void Resampler::Impl::horizontal_rows(const uint8_t* const* rows, int first, int count, int output_row) {
  uint8_t* planes[3 * kMostRows];
  for (int k = 0; k < kernels->rows; ++k) {
    if (k >= first && k < first + count) {
      choose_planes(k, output_row + k - first, planes + 3 * k);
    } else {
      for (int c = 0; c < 3; ++c) planes[3 * k + c] = plane(k, c) + (passes.columns.begin - resize.window_x);
    }
  }
  const RowPart part{passes.columns.begin, passes.columns.size(), need_x.begin, need_x.size()};
  kernels->horizontal_to_planes(x_axis->horizontal, part, rows, planes);
  for (int k = first; k < first + count; ++k) finish_row(output_row + k - first, planes + 3 * k);
}

// Takes a group of source rows: rows[first] is row `next_source` of the box, and `count` rows are valid.
void Resampler::Impl::take_group(const uint8_t* const* rows, int first, int count) {
  const int index = next_source / kernels->rows;
  if (!passes.vertical) {
    horizontal_rows(rows, first, count, next_source);
    return;
  }
  if (passes.vertical_first) {
    kernels->interleave(rows, need_x.size() * 3, ring_group(index));
  } else {
    const RowPart part{passes.columns.begin, passes.columns.size(), need_x.begin, need_x.size()};
    kernels->horizontal_to_group(x_axis->horizontal, part, rows, ring_group(index), plane_lanes);
  }
  make_outputs(index);
}

// Takes the next two groups of source rows, all of which are needed.
void Resampler::Impl::take_two(const uint8_t* first, ptrdiff_t stride) {
  const int index = next_source / kernels->rows;
  const uint8_t* rows[2 * kMostRows];
  for (int k = 0; k < 2 * kernels->rows; ++k) rows[k] = first + stride * k;
  uint8_t* const groups[2] = {ring_group(index), ring_group(index + 1)};
  const RowPart part{passes.columns.begin, passes.columns.size(), need_x.begin, need_x.size()};
  kernels->horizontal_to_two(x_axis->horizontal, part, rows, groups, plane_lanes);
  make_outputs(index + 1);
  next_source += 2 * kernels->rows;
}

// Makes every row of the resized image that needs no group after `index`.
void Resampler::Impl::make_outputs(int index) {
  const VerticalTable& table = y_axis->vertical;
  const uint8_t** groups = pointers_bytes.get<const uint8_t*>();
  const ptrdiff_t plane_bytes = static_cast<ptrdiff_t>(plane_lanes) * kernels->lane_bytes;
  uint8_t* planes[3];
  for (; next_output < passes.rows.end && table.last_of(next_output) <= index; ++next_output) {
    const int y = next_output, count = table.groups_of(y);
    const int32_t* words = table.words_of(y);
    for (int g = 0; g < count; ++g) groups[g] = ring_group(table.first_of(y) + g);
    if (!passes.vertical_first) {
      choose_planes(0, y, planes);
      for (int c = 0; c < 3; ++c) {
        kernels->vertical(groups, count, words, passes.columns.size(), planes[c]);
        for (int g = 0; g < count; ++g) groups[g] += plane_bytes;
      }
      finish_row(y, planes);
      continue;
    }
    kernels->vertical(groups, count, words, need_x.size() * 3, intermediate_row(intermediate));
    if (!passes.horizontal) {
      choose_planes(0, y, planes);
      kernels->deinterleave(intermediate_row(0), passes.columns.size(), planes);
      finish_row(y, planes);
    } else if (++intermediate == kernels->rows || y + 1 == passes.rows.end) {
      const uint8_t* rows[kMostRows];
      for (int k = 0; k < kernels->rows; ++k) rows[k] = intermediate_row(std::min(k, intermediate - 1));
      horizontal_rows(rows, 0, intermediate, y + 1 - intermediate);
      intermediate = 0;
    }
  }
}

// Adds the duration of a call to spent_ns.
struct Resampler::ScopedTimer {
  explicit ScopedTimer(Impl* impl) : impl_(impl), begin_(impl->measured ? now_ns() : 0) {}
  ~ScopedTimer() {
    if (begin_ != 0) impl_->spent_ns += now_ns() - begin_;
  }
  ScopedTimer(const ScopedTimer&) = delete;

 private:
  Impl* const impl_;
  const int64_t begin_;
};

Resampler::Resampler() : impl_(new Impl) {}
Resampler::~Resampler() {
  delete impl_;
}

void Resampler::measure(bool on) {
  impl_->measured = on;
  impl_->spent_ns = 0;
}

int64_t Resampler::spent_ns() const {
  return impl_->spent_ns;
}

bool Resampler::begin(const Resize& r, const Target& t) {
  const ScopedTimer lap(impl_);
  impl_->need_x = impl_->need_y = {};
  if (!make_plan(r, &impl_->passes) || t.data == nullptr || (t.lut == nullptr && t.dtype != Dtype::kUint8)) {
    return false;
  }
  try {
    impl_->prepare(r, t);
  } catch (const std::bad_alloc&) {
    impl_->need_x = impl_->need_y = {};
    return false;
  }
  return true;
}

int Resampler::need_x0() const {
  return impl_->need_x.begin;
}
int Resampler::need_x1() const {
  return impl_->need_x.end;
}
int Resampler::need_y0() const {
  return impl_->need_y.begin;
}
int Resampler::need_y1() const {
  return impl_->need_y.end;
}

void Resampler::rows(const uint8_t* first, ptrdiff_t stride, int count) {
  Impl& s = *impl_;
  const ScopedTimer lap(impl_);
  count = std::min(count, s.need_y.end - s.next_source);
  if (!s.passes.horizontal && !s.passes.vertical) {
    for (; count > 0; --count, ++s.next_source, first += stride) s.copy_row(first);
    return;
  }
  const int group_rows = s.kernels->rows;
  const uint8_t* rows[kMostRows];
  while (count > 0) {
    const int at = s.next_source % group_rows;
    if (at == 0 && count >= 2 * group_rows && s.takes_two()) {
      s.take_two(first, stride);
      first += stride * 2 * group_rows;
      count -= 2 * group_rows;
      continue;
    }
    const int fresh = std::min(group_rows - at, count);
    const bool complete = at + fresh == group_rows || s.next_source + fresh == s.need_y.end;
    // Rows that do not exist (before the first or after the last needed one) have no weight: use any row.
    if (complete && s.pending == 0) {
      for (int k = 0; k < group_rows; ++k)
        rows[k] = first + stride * (std::clamp(k, at, at + fresh - 1) - at);
      s.take_group(rows, at, fresh);
      s.next_source += fresh;
    } else {
      const size_t nbytes = static_cast<size_t>(s.need_x.size()) * 3;
      for (int k = 0; k < fresh; ++k) std::memcpy(s.pending_row(at + k), first + stride * k, nbytes);
      s.pending += fresh;
      s.next_source += fresh;
      if (complete) {
        const int held = s.pending, begin = at + fresh - held;
        for (int k = 0; k < group_rows; ++k) rows[k] = s.pending_row(std::clamp(k, begin, at + fresh - 1));
        s.next_source -= held;
        s.take_group(rows, begin, held);
        s.next_source += held;
        s.pending = 0;
      }
    }
    first += stride * fresh;
    count -= fresh;
  }
}

void Resampler::finish() {
  // An image of extreme proportions may have needed a large ring; free it.
  constexpr size_t kKeep = size_t{16} << 20;
  if (impl_->ring_bytes.size() > kKeep) impl_->ring_bytes.release();
}

}  // namespace fastload
