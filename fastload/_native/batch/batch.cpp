#include "batch/batch.h"

#include <errno.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <new>
#include <utility>

#include "base/clock.h"
#include "base/limits.h"
#include "batch/thread_state.h"
#include "dct/record.h"
#include "image/header.h"
#include "io/crc32c.h"
#include "resample/shared_axes.h"

namespace fastload {
namespace {

// Most headers fit; if one does not, the whole file is read.
constexpr size_t kHeaderBytes = 4096;

// Without a timeline the clock is read for one sample in kStampEvery, which stands for its neighbours:
// reading it for each would cost 2 % of a 32 x 32 JPEG. The middle one is measured, because the first sample
// of a batch runs on a thread that has just woken up.
constexpr int64_t kStampEvery = 16;

// How many samples ahead records are prefetched.
constexpr int64_t kPrefetch = 2;

// The same number as threading.get_native_id() and system tools show.
int64_t thread_id() {
#ifdef __linux__
  static thread_local const int64_t id = syscall(SYS_gettid);
  return id;
#else
  return 0;
#endif
}

// Bytes that a thread keeps for the pixels that views share.
constexpr size_t kRegionKept = size_t{16} << 20;

bool resizes(const Sample& s) {
  return s.resized_w != s.box_w || s.resized_h != s.box_h;
}

// Frees a larger buffer however the sample ends.
struct RegionTrim {
  std::vector<uint8_t>* region;
  ~RegionTrim() {
    if (region->capacity() > kRegionKept) std::vector<uint8_t>().swap(*region);
  }
};

}  // namespace

// Reads the clock for measured samples; returns 0 for the others.
class BatchJob::Clock {
 public:
  explicit Clock(int64_t weight) : weight_(weight) {}
  bool on() const { return weight_ != 0; }
  int64_t now() const { return on() ? now_ns() : 0; }
  void add(std::atomic<int64_t>* stage, int64_t nanoseconds) const {
    if (on()) stage->fetch_add(weight_ * nanoseconds, std::memory_order_relaxed);
  }

 private:
  const int64_t weight_;  // number of samples that this one stands for
};

BatchJob::BatchJob(std::shared_ptr<Files> files, std::vector<Sample> samples, BatchOutput output,
                   SampleParams params, Erasing erasing, int32_t* status, int32_t* detail, SampleTimes* times,
                   int threads, std::shared_ptr<const CacheFill> cache_fill)
    : Job(static_cast<int64_t>(samples.size()), threads),
      files_(std::move(files)),
      samples_(std::move(samples)),
      output_(std::move(output)),
      params_(std::move(params)),
      erasing_(std::move(erasing)),
      status_(status),
      detail_(detail),
      times_(times),
      cache_fill_(std::move(cache_fill)) {
  if (std::none_of(samples_.begin(), samples_.end(), resizes)) return;
  axes_.reserve(samples_.size());
  resampling::SharedAxes shared;
  for (const Sample& s : samples_) {
    axes_.push_back({shared.axis(s.box_w, s.resized_w, s.filter, resampling::Pass::kHorizontal),
                     shared.axis(s.box_h, s.resized_h, s.filter, resampling::Pass::kVertical)});
  }
}

void BatchJob::run(int64_t item) noexcept {
  int error = 0;
  try {
    const Status status = decode(item, &error);
    if (status != Status::kOk || views_.empty()) note(item, status, error);
    if (status != Status::kOk) {
      for (const auto& view : views_) view->note(item, status, error);
    }
  } catch (const std::bad_alloc&) {
    note(item, Status::kIo, ENOMEM);
    for (const auto& view : views_) view->note(item, Status::kIo, ENOMEM);
  }
}

Status BatchJob::decode(int64_t item, int* error) {
  const Sample& sample = samples_[static_cast<size_t>(item)];
  ThreadState& state = thread_state();
  const int64_t first = item - item % kStampEvery, neighbours = std::min(kStampEvery, count() - first);
  const int64_t stands_for = item == first + neighbours / 2 ? neighbours : 0;
  const Clock clock(times_ != nullptr ? 1 : stands_for);
  Span span;
  int64_t at = 0;
  // Records of a shuffled batch are anywhere in memory, so small ones would cost a cache miss per line: raw
  // images of 3 KB took 3.2 to 3.4 us without prefetching, 2.5 to 3.1 with it.
  if (item + kPrefetch < count()) {
    const Sample& later = samples_[static_cast<size_t>(item + kPrefetch)];
    files_->prefetch(later.file, later.offset, later.nbytes);
  }
  Status status = read(item, clock, &span, &at, error);
  if (status == Status::kOk) {
    if (views_.empty()) {
      status = make(sample, item, span, sample.kind, clock, at, false, error);
    } else {
      status = make_views(item, span, clock, at, error);
    }
  }
  state.scratch.trim();
  state.workspace.canvas.trim();
  if (files_->truncated(sample.file, sample.offset, sample.nbytes)) status = Status::kTruncated;
  return status;
}

Status BatchJob::read(int64_t item, const Clock& clock, Span* span, int64_t* at, int* error) {
  const Sample& sample = samples_[static_cast<size_t>(item)];
  const int64_t begin = clock.now();
  Status status =
      files_->read(sample.file, sample.offset, sample.nbytes, SIZE_MAX, &thread_state().scratch, span, error);
  // A sample that is cached in another form is not decoded from these bytes again: no entry points.
  const bool once = cache_fill_ && cache_fill_->form != CacheForm::kBytes &&
                    cache_fill_->samples[static_cast<size_t>(item)].wanted;
  if (entries_ && !once) span->entries = {entries_.get(), records_[static_cast<size_t>(item)]};
  *at = clock.now();
  clock.add(&stages_.read, *at - begin);
  const int64_t read = *at;
  if (status == Status::kOk && sample.check) {
    const bool same = crc32c(0, span->data, span->nbytes) == sample.checksum;
    const int64_t checked = clock.now();
    clock.add(&stages_.check, checked - *at);
    *at = checked;
    if (!same) status = Status::kChecksum;
  }
  if (times_ != nullptr) times_[item] = {thread_id(), begin, read, *at, 0, *at, *at};
  return status;
}

bool BatchJob::begins(const BatchJob& view, int64_t item) const {
  const Sample& a = samples_[static_cast<size_t>(item)];
  const Sample& b = view.samples_[static_cast<size_t>(item)];
  const BatchOutput& out = view.output_;
  return !view.cache_fill_ && !a.large && a.box_x == b.box_x && a.box_y == b.box_y && a.box_w == b.box_w &&
         a.box_h == b.box_h && a.resized_w == b.resized_w && a.resized_h == b.resized_h &&
         a.window_x == b.window_x && a.window_y == b.window_y && a.flip == b.flip && a.filter == b.filter &&
         output_.order == out.order && output_.scaled == out.scaled &&
         std::equal(output_.fill, output_.fill + 3, out.fill) && begin_alike(params_, view.params_, item);
}

bool BatchJob::resizes_for_all(int64_t item) const {
  const Sample& a = samples_[static_cast<size_t>(item)];
  if (!resizes(a) || output_.scaled) return false;
  int64_t wanted = 0;  // pixels of all windows
  const auto add = [&](const BatchJob& view) {
    const size_t at = 2 * static_cast<size_t>(item);
    const bool staged = !view.params_.empty();
    wanted += std::min<int64_t>(a.resized_w, staged ? view.params_.first_size[at] : view.output_.out_w) *
              std::min<int64_t>(a.resized_h, staged ? view.params_.first_size[at + 1] : view.output_.out_h);
  };
  add(*this);
  for (const auto& view : views_) {
    const Sample& b = view->samples_[static_cast<size_t>(item)];
    if (a.box_x != b.box_x || a.box_y != b.box_y || a.box_w != b.box_w || a.box_h != b.box_h ||
        a.resized_w != b.resized_w || a.resized_h != b.resized_h || a.filter != b.filter ||
        output_.order != view->output_.order || view->output_.scaled) {
      return false;
    }
    add(*view);
  }
  return wanted >= int64_t{a.resized_w} * a.resized_h;
}

void BatchJob::place(const Sample& sample, int64_t item, int out_w, int out_h, Placement* placement) const {
  placement->source_w = sample.source_w;
  placement->source_h = sample.source_h;
  placement->box_x = sample.box_x;
  placement->box_y = sample.box_y;
  placement->resize =
      Resize{sample.box_w, sample.box_h, sample.resized_w, sample.resized_h, sample.window_x, sample.window_y,
             out_w,        out_h,        sample.filter,    output_.order};
  if (!axes_.empty() && resizes(sample)) {
    placement->resize.x_axis = axes_[static_cast<size_t>(item)].x.get();
    placement->resize.y_axis = axes_[static_cast<size_t>(item)].y.get();
  }
}

Status BatchJob::make_views(int64_t item, const Span& span, const Clock& clock, int64_t at, int* error) {
  const Sample& sample = samples_[static_cast<size_t>(item)];
  ThreadState& state = thread_state();
  const bool caching = cache_fill_ && cache_fill_->samples[static_cast<size_t>(item)].wanted;
  // A header can claim any size. Decoders refuse images above kMaxPixels; leave that to each view, before
  // memory is allocated for the shared region.
  const bool larger = sample.large || int64_t{sample.source_w} * sample.source_h > kMaxPixels;
  const BatchJob* before = this;
  bool one_canvas = true;
  for (const auto& view : views_) {
    one_canvas = one_canvas && before->begins(*view, item);
    before = view.get();
  }
  const bool shared = !caching && !larger && !one_canvas;
  const Region region = shared ? regions_[static_cast<size_t>(item)] : Region{};
  const RegionTrim trim{&state.region};
  Span source = span;
  Kind kind = sample.kind;
  const bool resized = region.w > 0 && resizes_for_all(item);
  if (region.w > 0) {
    Placement pixels{};
    pixels.source_w = sample.source_w;
    pixels.source_h = sample.source_h;
    if (resized) {
      place(sample, item, sample.resized_w, sample.resized_h, &pixels);
      pixels.resize.window_x = pixels.resize.window_y = 0;
    } else {
      pixels.box_x = region.x;
      pixels.box_y = region.y;
      pixels.resize = Resize{region.w, region.h, region.w, region.h,       0,
                             0,        region.w, region.h, output_.filter, output_.order};
    }
    const int w = pixels.resize.out_w, h = pixels.resize.out_h;
    const size_t nbytes = size_t{3} * static_cast<size_t>(w) * static_cast<size_t>(h);
    if (state.region.size() < nbytes + Scratch::kSlack) state.region.resize(nbytes + Scratch::kSlack);
    pixels.target.data = state.region.data();
    pixels.target.dtype = Dtype::kUint8;
    pixels.target.row_stride = int64_t{3} * w;
    pixels.target.pixel_stride = 3;
    pixels.target.channel_stride = 1;
    const Status status = decode_span(span, kind, pixels, &state);
    if (status == Status::kIo) *error = ENOMEM;
    if (status != Status::kOk) return status;
    source = Span{state.region.data(), nbytes, state.region.size()};
    kind = Kind::kRaw;
  }
  Status made = Status::kUnsupported;  // of the view before
  for (size_t view = 0; view <= views_.size(); ++view) {
    BatchJob& batch = view == 0 ? *this : *views_[view - 1];
    const bool begun = made == Status::kOk && before->begins(batch, item);
    before = &batch;
    Sample moved = batch.samples_[static_cast<size_t>(item)];
    if (resized) {
      moved.source_w = moved.box_w = moved.resized_w;
      moved.source_h = moved.box_h = moved.resized_h;
      moved.box_x = moved.box_y = 0;
    } else if (region.w > 0) {
      moved.source_w = region.w;
      moved.source_h = region.h;
      moved.box_x -= region.x;
      moved.box_y -= region.y;
    }
    *error = 0;
    made = batch.make(moved, item, source, kind, clock, at, begun, error);
    batch.note(item, made, *error);
    at = clock.now();
  }
  return Status::kOk;
}

Status BatchJob::make(const Sample& sample, int64_t item, const Span& span, Kind kind, const Clock& clock,
                      int64_t at, bool begun, int* error) {
  if (sample.large) return Status::kUnsupported;
  ThreadState& state = thread_state();
  const int64_t w = output_.out_w, h = output_.out_h;
  Placement placement;
  place(sample, item, output_.out_w, output_.out_h, &placement);
  const bool gray = output_.channels == 1, planar = gray || !output_.channels_last;
  placement.target.data = output_.data + sample.row * output_.channels * w * h * dtype_nbytes(output_.dtype);
  placement.target.dtype = output_.dtype;
  placement.target.row_stride = planar ? w : w * 3;
  placement.target.pixel_stride = planar ? 1 : 3;
  placement.target.channel_stride = gray ? 0 : planar ? w * h : 1;  // 0: all three channels go to one plane
  placement.target.lut = output_.lut.empty() ? nullptr : output_.lut.data();
  placement.target.flip = sample.flip;
  for (int c = 0; c < 3; c++) placement.target.fill[c] = output_.fill[c];
  placement.scaled = output_.scaled;

  const Target target = placement.target;
  if (!params_.empty() && !begun) begin_stages(params_, item, &state.workspace, &placement);
  state.resampler.measure(clock.on());
  const bool caching = cache_fill_ && cache_fill_->samples[static_cast<size_t>(item)].wanted;
  const RecordOrigin origin{*files_, sample.file, sample.offset, sample.nbytes};
  Status status = Status::kOk;
  if (!begun) {
    status = caching ? decode_and_cache(*cache_fill_, static_cast<size_t>(item), origin, span, kind,
                                        placement, &state)
                     : decode_span(span, kind, placement, &state);
  }
  const bool augmented = !params_.empty() || !erasing_.fills.empty();
  const int64_t resized = state.resampler.spent_ns();
  int64_t decoded = augmented ? clock.now() : 0;
  state.resampler.measure(false);
  if (status == Status::kOk && !params_.empty()) {
    if (!run_stages(params_, item, output_.order, target, begun, &state.workspace, &state.resampler)) {
      status = Status::kIo;
    } else if (state.workspace.canvas.declined()) {
      status = Status::kUnsupported;
    }
  }
  if (status == Status::kOk && !erasing_.fills.empty()) {
    erase(erasing_, item, target, output_.channels, static_cast<int>(dtype_nbytes(output_.dtype)));
  }
  // See Note [Past the cache] in resample/kernels.h.
  std::atomic_thread_fence(std::memory_order_seq_cst);
  if (status == Status::kIo) *error = ENOMEM;  // decoders fail by themselves only when memory runs out
  const int64_t end = clock.now();
  if (!augmented) decoded = end;
  clock.add(&stages_.decode, decoded - at - resized);
  clock.add(&stages_.resize, resized);
  if (augmented) clock.add(&stages_.augment, end - decoded);
  if (times_ != nullptr) {
    times_[item].resized = resized;
    times_[item].decoded = decoded;
    times_[item].end = end;
  }
  return status;
}

ProbeJob::ProbeJob(std::shared_ptr<Files> files, std::vector<ProbeSample> samples, int32_t* size,
                   int32_t* status, int threads)
    : Job(static_cast<int64_t>(samples.size()), threads),
      files_(std::move(files)),
      samples_(std::move(samples)),
      size_(size),
      status_(status) {}

void ProbeJob::run(int64_t item) noexcept {
  const ProbeSample& sample = samples_[static_cast<size_t>(item)];
  Status status;
  int width = 0, height = 0, error = 0;
  try {
    ThreadState& state = thread_state();
    // Read the first bytes; if they were not enough, the whole file. A DCT record needs all of its own
    // header.
    size_t limit = sample.kind == Kind::kDct ? SIZE_MAX : kHeaderBytes;
    for (;;) {
      Span span;
      status = files_->read(sample.file, sample.offset, sample.nbytes, limit, &state.scratch, &span, &error);
      if (status != Status::kOk) break;
      if (sample.kind == Kind::kEncoded) {
        status = probe_size(span.data, span.nbytes, &width, &height);
      } else if (sample.kind == Kind::kDct) {
        status = dct_size(span.data, span.nbytes, &width, &height) ? Status::kOk : Status::kCorrupt;
      } else {
        status = Status::kUnsupported;  // raw pixels have no header; rotated images are Pillow's
      }
      const bool jpeg = is_jpeg(span.data, span.nbytes);
      if (status == Status::kOk || !jpeg || span.nbytes < limit || limit == SIZE_MAX) break;
      limit = SIZE_MAX;
    }
    state.scratch.trim();
  } catch (const std::bad_alloc&) {
    status = Status::kIo;
  }
  if (files_->truncated(sample.file, sample.offset, sample.nbytes)) status = Status::kTruncated;
  if (status == Status::kOk) {
    size_[2 * item] = width;
    size_[2 * item + 1] = height;
  }
  status_[item] = static_cast<int32_t>(status);
}

}  // namespace fastload
