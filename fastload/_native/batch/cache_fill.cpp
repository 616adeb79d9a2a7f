#include "batch/cache_fill.h"

#include <string>

#include "batch/thread_state.h"
#include "dct/record.h"
#include "image/header.h"

namespace fastload {
namespace {

// Bytes that a thread keeps for records to be cached.
constexpr size_t kRecordKept = size_t{16} << 20;

// The resampler may read this far past the last pixel.
constexpr size_t kSlack = Scratch::kSlack;

void trim(ThreadState* state) {
  if (state->record.capacity() > kRecordKept) std::vector<uint8_t>().swap(state->record);
}

// The exclusive right to cache a record. Released unless it was used.
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

Status decode_and_cache_pixels(const CacheFill& cache_fill, const CacheFillSample& sample,
                               const RecordOrigin& origin, const Span& span, Kind kind,
                               const Placement& placement, ThreadState* state) {
  const size_t w = static_cast<size_t>(sample.w), nbytes = 3 * w * static_cast<size_t>(sample.h);
  state->record.resize(nbytes + kSlack);
  Placement whole{};
  whole.source_w = sample.source_w;
  whole.source_h = sample.source_h;
  whole.box_x = sample.box_x;
  whole.box_y = sample.box_y;
  whole.resize = Resize{sample.box_w,    sample.box_h, sample.resized_w, sample.resized_h,  sample.window_x,
                        sample.window_y, sample.w,     sample.h,         cache_fill.filter, cache_fill.order};
  whole.target.data = state->record.data();
  whole.target.dtype = Dtype::kUint8;
  whole.target.row_stride = 3 * static_cast<int64_t>(w);
  whole.target.pixel_stride = 3;
  whole.target.channel_stride = 1;
  for (int c = 0; c < 3; c++) whole.target.fill[c] = cache_fill.fill[c];
  Status status = decode_span(span, kind, whole, state);
  if (status != Status::kOk) return status;
  const Span pixels{state->record.data(), nbytes, nbytes + kSlack};
  status = decode_span(pixels, Kind::kRaw, placement, state);
  if (status == Status::kOk && origin.intact()) {
    Claim(cache_fill.arena.get(), sample.record).put(pixels, Kind::kRaw, sample.w, sample.h, true);
  }
  return status;
}

}  // namespace

Status decode_and_cache(const CacheFill& cache_fill, size_t item, const RecordOrigin& origin,
                        const Span& span, Kind kind, const Placement& placement, ThreadState* state) {
  const CacheFillSample& sample = cache_fill.samples[item];
  if (cache_fill.form == CacheForm::kPixels) {
    const Status status = decode_and_cache_pixels(cache_fill, sample, origin, span, kind, placement, state);
    trim(state);
    return status;
  }
  Claim claim(cache_fill.arena.get(), sample.record);
  if (claim.held() && cache_fill.form == CacheForm::kDct && kind == Kind::kEncoded &&
      is_jpeg(span.data, span.nbytes)) {
    std::string why;
    const bool encoded = dct_encode(span.data, span.nbytes, DctOptions(), &state->record, &why);
    // Decode the sample from the new record too: its Huffman codes are then decoded only once.
    const Span record{state->record.data(), state->record.size(), state->record.size()};
    const bool done = encoded && decode_span(record, Kind::kDct, placement, state) == Status::kOk;
    if (done && origin.intact()) claim.put(record, Kind::kDct, placement.source_w, placement.source_h, true);
    trim(state);
    if (done) return Status::kOk;
  }
  const Status status = decode_span(span, kind, placement, state);
  // Pixels that are already in memory are not cached again.
  if (status == Status::kOk && claim.held() && span.layout == nullptr) {
    // Copy to our own memory first: reading the rest of the record may reveal that its file was truncated.
    state->record.assign(span.data, span.data + span.nbytes);
    const Span copy{state->record.data(), state->record.size(), state->record.size()};
    if (origin.intact()) claim.put(copy, kind, placement.source_w, placement.source_h, false);
    trim(state);
  }
  return status;
}

}  // namespace fastload
