// Decodes batches: everything that works on many samples at once.
//
// What it does. BatchJob reads, checks, decodes, resamples and stores every sample of a batch into its slice
// of the caller's output. ProbeJob reads image sizes from headers. gather.h reads whole files for packing.
// cache_fill.h adds decoded samples to a cache. pool.h is the process's one thread pool, which runs the jobs;
// thread_state.h holds what each of its threads reuses from sample to sample.
//
// Guarantees
//   exactness      a sample's bytes do not depend on the other samples, the thread or the number of threads
//   bounds         a job writes only to the slices, statuses, details and times that the caller passed
//   errors         each sample has its own Status; no exception leaves a thread
//   thread safety  one thread handles a sample; threads take no locks while they decode
//   ownership      the caller keeps the output arrays alive until the job is done; a job shares its Files
//
// Tests: tests/native/test_batch.py, test_pool.py, test_arguments.py, test_sample_params.py,
// test_begun_views.py, tests/transforms/test_views.py, tests/engine/cache/test_memory_file.py,
// tests/loader/test_exactness.py.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/kind.h"
#include "base/status.h"
#include "batch/cache_fill.h"
#include "batch/pool.h"
#include "io/files.h"
#include "jpeg/huffman_index.h"
#include "pixels/sample_params.h"
#include "resample/resample.h"

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
  Filter filter;
  int64_t row;  // of the batch, that it is stored in
  bool large;   // a side exceeds kMaxSide, or there are too many pixels: Pillow decodes this sample
};

// Settings that all samples of a batch share.
struct BatchOutput {
  uint8_t* data;  // rows of channels * out_h * out_w elements of `dtype`, owned by the caller
  int channels;   // 3; or 1 for gray images: their three channels are equal, so one is stored
  Dtype dtype;
  int out_w, out_h;
  bool channels_last;
  Filter filter;  // of samples that name none
  PassOrder order;
  uint8_t fill[3];
  std::vector<uint8_t> lut;  // empty: none
  bool scaled;               // Placement::scaled
};

// Nanoseconds summed over threads. augment: crop stages and pixel operations after the first one, and
// erasing.
struct StageTimes {
  std::atomic<int64_t> read{0}, check{0}, decode{0}, resize{0}, augment{0};
};

// When and on which thread a sample was processed: nanoseconds of the steady clock, and the system's thread
// number. `resized` is a duration: rows are resized while later rows are still being decoded.
struct SampleTimes {
  int64_t thread, begin, read, checked, resized, decoded, end;
};

// The part of the source that all views of a sample need, in pixels. w == 0: there is none, and each view
// decodes the sample by itself.
struct Region {
  int32_t x, y, w, h;
};

// The caller keeps output.data, status, detail and times alive until the job is done.
class BatchJob final : public Job {
 public:
  // times: one entry per sample, or nullptr. cache_fill: which samples go into a cache, or nullptr.
  BatchJob(std::shared_ptr<Files> files, std::vector<Sample> samples, BatchOutput output, SampleParams params,
           Erasing erasing, int32_t* status, int32_t* detail, SampleTimes* times, int threads,
           std::shared_ptr<const CacheFill> cache_fill);

  // Call before submitting. Makes this job fill `views` too: batches of the same records that are never
  // submitted themselves. Each sample is then read once, and decoded once if it has a region. regions: one
  // per sample.
  void set_views(std::vector<std::shared_ptr<BatchJob>> views, std::vector<Region> regions) {
    views_ = std::move(views);
    regions_ = std::move(regions);
  }

  // Call before submitting. Lets decoders use entry points of earlier decodes; records[i] is the row of
  // sample i in the table.
  void use_entry_points(std::shared_ptr<EntryTable> entries, std::vector<int64_t> records) {
    entries_ = std::move(entries);
    records_ = std::move(records);
  }

  void run(int64_t item) noexcept override;

  // Whether the region lies inside the image of sample `item` and contains its box.
  bool contains_box(size_t item, const Region& region) const {
    const Sample& s = samples_[item];
    // Pillow decodes large samples, so their boxes were not checked.
    return s.large || (region.x <= s.box_x && region.y <= s.box_y &&
                       s.box_x + s.box_w <= region.x + region.w && s.box_y + s.box_h <= region.y + region.h &&
                       region.x + region.w <= s.source_w && region.y + region.h <= s.source_h);
  }

  int64_t count() const { return static_cast<int64_t>(samples_.size()); }
  const StageTimes& stages() const { return stages_; }

 private:
  class Clock;

  // The status of the sample; for a job with views, kOk once each view has its own status.
  Status decode(int64_t item, int* error);
  Status read(int64_t item, const Clock& clock, Span* span, int64_t* at, int* error);
  // Decodes the sample from `span` and stores it. `at`: when this step begins. begun: the thread's canvas
  // holds it after its first crop stage and operations already; nothing is decoded.
  Status make(const Sample& sample, int64_t item, const Span& span, Kind kind, const Clock& clock, int64_t at,
              bool begun, int* error);
  // Whether sample `item` of `view` begins with what this job leaves in the canvas. See begin_alike().
  bool begins(const BatchJob& view, int64_t item) const;
  // Whether all views of sample `item` resize the same box alike, and want at least as many pixels of that as
  // it has: it is resized once.
  bool resizes_for_all(int64_t item) const;
  // What decoders are told of `sample`, but for the target.
  void place(const Sample& sample, int64_t item, int out_w, int out_h, Placement* placement) const;
  // Makes all views of a sample and sets their statuses. Any result but kOk: no view was made. A view that
  // differs from the one before only after the first operations goes on with that one's canvas.
  Status make_views(int64_t item, const Span& span, const Clock& clock, int64_t at, int* error);
  void note(int64_t item, Status status, int error) {
    detail_[item] = error;
    status_[item] = static_cast<int32_t>(status);
  }

  std::shared_ptr<Files> files_;
  std::vector<Sample> samples_;
  BatchOutput output_;
  SampleParams params_;
  Erasing erasing_;
  int32_t* status_;
  int32_t* detail_;
  SampleTimes* times_;
  std::shared_ptr<const CacheFill> cache_fill_;
  struct Axes {
    std::shared_ptr<const resampling::SharedAxis> x, y;
  };
  std::vector<Axes> axes_;  // one per sample; empty if nothing is resized
  std::vector<std::shared_ptr<BatchJob>> views_;
  std::vector<Region> regions_;
  std::shared_ptr<EntryTable> entries_;
  std::vector<int64_t> records_;  // one per sample if there are entries_
  StageTimes stages_;
};

struct ProbeSample {
  int32_t file;
  Kind kind;
  int64_t offset, nbytes;
};

// Reads image sizes from headers. size: (width, height) per sample, owned by the caller; written if the
// status is kOk.
class ProbeJob final : public Job {
 public:
  ProbeJob(std::shared_ptr<Files> files, std::vector<ProbeSample> samples, int32_t* size, int32_t* status,
           int threads);

  void run(int64_t item) noexcept override;

 private:
  std::shared_ptr<Files> files_;
  std::vector<ProbeSample> samples_;
  int32_t* size_;
  int32_t* status_;
};

}  // namespace fastload
