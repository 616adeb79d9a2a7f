#include "io/cache_fill.h"

#include <string>

#include "batch/thread_state.h"
#include "dct/record.h"

namespace fastload {
namespace {

// What a thread's memory for records in the making keeps between samples.
constexpr size_t kMadeKept = size_t{16} << 20;

// The resampler may read so far behind the last pixel.
constexpr size_t kSlack = Scratch::kSlack;

void trim(ThreadState* worker) {
  if (worker->made.capacity() > kMadeKept) std::vector<uint8_t>().swap(worker->made);
}

// The right to keep a record, given back unless it was used.
class Claim {
 public:
  Claim(Arena* arena, int64_t record) : arena_(arena), record_(record), held_(arena->claim(record)) {}
  ~Claim() {
    if (held_) arena_->release(record_);
  }
  Claim(const Claim&) = delete;
  Claim& operator=(const Claim&) = delete;

  bool held() const { return held_; }
  void put(const Span& span, Kind kind, int width, int height, bool converted) {
    if (held_) arena_->put(record_, span.data, span.nbytes, kind, width, height, converted);
    held_ = false;
  }

 private:
  Arena* const arena_;
  const int64_t record_;
  bool held_;
};

bool is_jpeg(const Span& span) {
  return span.nbytes >= 2 && span.data[0] == 0xFF && span.data[1] == 0xD8;
}

Status decode_and_keep_pixels(const CacheFill& keep, const CacheFillSample& sample, const Origin& origin,
                              const Span& span, Kind kind, const Placement& placement, ThreadState* worker) {
  const size_t w = static_cast<size_t>(sample.w), nbytes = 3 * w * static_cast<size_t>(sample.h);
  worker->made.resize(nbytes + kSlack);
  Placement whole{};
  whole.source_w = sample.source_w;
  whole.source_h = sample.source_h;
  whole.box_x = sample.box_x;
  whole.box_y = sample.box_y;
  whole.resize = Resize{sample.box_w,    sample.box_h, sample.resized_w, sample.resized_h, sample.window_x,
                        sample.window_y, sample.w,     sample.h,         keep.filter,      keep.order};
  whole.target.data = worker->made.data();
  whole.target.dtype = Dtype::kUint8;
  whole.target.row_stride = 3 * static_cast<int64_t>(w);
  whole.target.pixel_stride = 3;
  whole.target.channel_stride = 1;
  for (int c = 0; c < 3; c++) whole.target.fill[c] = keep.fill[c];
  Status status = decode_span(span, kind, whole, worker);
  if (status != Status::kOk) return status;
  const Span pixels{worker->made.data(), nbytes, nbytes + kSlack};
  status = decode_span(pixels, Kind::kRaw, placement, worker);
  if (status == Status::kOk && origin.whole()) {
    Claim(keep.arena.get(), sample.record).put(pixels, Kind::kRaw, sample.w, sample.h, true);
  }
  return status;
}

}  // namespace

Status decode_and_keep(const CacheFill& keep, size_t item, const Origin& origin, const Span& span, Kind kind,
                       const Placement& placement, ThreadState* worker) {
  const CacheFillSample& sample = keep.samples[item];
  if (keep.form == Form::kPixels) {
    const Status status = decode_and_keep_pixels(keep, sample, origin, span, kind, placement, worker);
    trim(worker);
    return status;
  }
  Claim claim(keep.arena.get(), sample.record);
  if (claim.held() && keep.form == Form::kDct && kind == Kind::kEncoded && is_jpeg(span)) {
    std::string why;
    const bool made = dct_encode(span.data, span.nbytes, DctOptions(), &worker->made, &why);
    // The record instead of the file, so that Huffman codes are decoded once.
    const Span record{worker->made.data(), worker->made.size(), worker->made.size()};
    const bool done = made && decode_span(record, Kind::kDct, placement, worker) == Status::kOk;
    if (done && origin.whole()) claim.put(record, Kind::kDct, placement.source_w, placement.source_h, true);
    trim(worker);
    if (done) return Status::kOk;
  }
  const Status status = decode_span(span, kind, placement, worker);
  // What lies in memory already, in whatever order, is not kept once more.
  if (status == Status::kOk && claim.held() && span.layout == nullptr) {
    // First to our own memory: reading the rest of the record may be what finds its file cut short.
    worker->made.assign(span.data, span.data + span.nbytes);
    const Span copy{worker->made.data(), worker->made.size(), worker->made.size()};
    if (origin.whole()) claim.put(copy, kind, placement.source_w, placement.source_h, false);
    trim(worker);
  }
  return status;
}

}  // namespace fastload
