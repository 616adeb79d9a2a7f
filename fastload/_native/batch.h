// A batch: every sample read, checked, decoded, resampled and stored into its slice of the output.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "files.h"
#include "keep.h"
#include "kind.h"
#include "pool.h"
#include "recipe.h"
#include "resample.h"
#include "status.h"

namespace fastload {

struct Sample {
  int32_t file;
  Kind kind;
  bool check;         // verify the checksum
  uint32_t checksum;  // CRC32C of the span
  int64_t offset, nbytes;
  int32_t source_w, source_h;  // 0: unknown
  int32_t box_x, box_y, box_w, box_h;
  int32_t resized_w, resized_h;
  int32_t window_x, window_y;
  bool flip;
  bool large;  // a side above kMaxSide: left to Pillow
};

// What all samples of a batch share.
struct Output {
  uint8_t* data;  // count * channels * out_h * out_w elements of `dtype`, the caller's
  int channels;   // 3, or 1: of gray images, whose three channels are equal, one is stored
  Dtype dtype;
  int out_w, out_h;
  bool channels_last;
  Filter filter;
  PassOrder order;
  uint8_t fill[3];
  std::vector<uint8_t> lut;  // empty: none
  bool scaled;               // Placement::scaled
};

size_t dtype_nbytes(Dtype dtype);

// Nanoseconds summed over threads. augment: what a recipe and erasing do behind the first frame.
struct Stages {
  std::atomic<int64_t> read{0}, check{0}, decode{0}, resize{0}, augment{0};
};

// Whether batches read the clock; on from the start. What it costs is measured by turning it off.
void set_stamps(bool on);

// When a sample was worked on, and where: nanoseconds of the steady clock, the system's thread number.
// `resized` is a length of time, not a point in it: rows are resized as they are decoded.
struct Times {
  int64_t thread, begin, read, checked, resized, decoded, end;
};

// What all views of a sample need of its source, in pixels. None where w is 0: each decodes for itself.
struct Region {
  int32_t x, y, w, h;
};

// The caller keeps output.data, status, detail and times alive until the job is done.
class Batch final : public Job {
 public:
  // times: one per sample, or nullptr. keep: what of it goes into a cache, or nullptr.
  Batch(std::shared_ptr<Files> files, std::vector<Sample> samples, Output output, Recipe recipe,
        Erasing erasing, int32_t* status, int32_t* detail, Times* times, int threads,
        std::shared_ptr<const Keep> keep);

  // Before it is submitted: fills `others` too, batches of the same records that are never submitted
  // themselves. Each sample is read once, and decoded once where it has a region (regions: one a sample).
  void lead(std::vector<std::shared_ptr<Batch>> others, std::vector<Region> regions) {
    others_ = std::move(others);
    regions_ = std::move(regions);
  }

  // Before it is submitted: what is remembered of its records, whose numbers in the table these are.
  void remember(std::shared_ptr<EntryTable> entries, std::vector<int64_t> records) {
    entries_ = std::move(entries);
    records_ = std::move(records);
  }

  void run(int64_t item) noexcept override;

  // Whether the region lies in the image of sample `item` and holds its box.
  bool within(size_t item, const Region& region) const {
    const Sample& s = samples_[item];
    // What is beyond the resampler was not checked, and is not decoded either.
    return s.large || (region.x <= s.box_x && region.y <= s.box_y &&
                       s.box_x + s.box_w <= region.x + region.w && s.box_y + s.box_h <= region.y + region.h &&
                       region.x + region.w <= s.source_w && region.y + region.h <= s.source_h);
  }

  int64_t count() const { return static_cast<int64_t>(samples_.size()); }
  const Stages& stages() const { return stages_; }

 private:
  class Clock;

  // The status of the sample, or, where it leads others, of what came before its views.
  Status decode(int64_t item, int* error);
  Status read(int64_t item, const Clock& clock, Span* span, int64_t* at, int* error);
  // The sample out of the bytes in `span`; `at`: when that begins.
  Status make(const Sample& sample, int64_t item, const Span& span, Kind kind, const Clock& clock, int64_t at,
              int* error);
  // All views of a sample, whose outcomes it notes. Another status than kOk: none of them was made.
  Status make_views(int64_t item, const Span& span, const Clock& clock, int64_t at, int* error);
  void note(int64_t item, Status status, int error) {
    detail_[item] = error;
    status_[item] = static_cast<int32_t>(status);
  }

  std::shared_ptr<Files> files_;
  std::vector<Sample> samples_;
  Output output_;
  Recipe recipe_;
  Erasing erasing_;
  int32_t* status_;
  int32_t* detail_;
  Times* times_;
  std::shared_ptr<const Keep> keep_;
  struct Axes {
    std::shared_ptr<const resampling::SharedAxis> x, y;
  };
  std::vector<Axes> axes_;  // one per sample, or none where nothing is resized
  std::vector<std::shared_ptr<Batch>> others_;
  std::vector<Region> regions_;
  std::shared_ptr<EntryTable> entries_;
  std::vector<int64_t> records_;  // one per sample where there are entries_
  Stages stages_;
};

struct ProbeSample {
  int32_t file;
  Kind kind;
  int64_t offset, nbytes;
};

// Image sizes out of headers. size: count pairs (w, h), the caller's; written where the status is kOk.
class Probe final : public Job {
 public:
  Probe(std::shared_ptr<Files> files, std::vector<ProbeSample> samples, int32_t* size, int32_t* status,
        int threads);

  void run(int64_t item) noexcept override;

 private:
  std::shared_ptr<Files> files_;
  std::vector<ProbeSample> samples_;
  int32_t* size_;
  int32_t* status_;
};

}  // namespace fastload
