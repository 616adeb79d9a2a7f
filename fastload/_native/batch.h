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

// The caller keeps output.data, status, detail and times alive until the job is done.
class Batch final : public Job {
 public:
  // times: one per sample, or nullptr. keep: what of it goes into a cache, or nullptr.
  Batch(std::shared_ptr<Files> files, std::vector<Sample> samples, Output output, Recipe recipe,
        Erasing erasing, int32_t* status, int32_t* detail, Times* times, int threads,
        std::shared_ptr<const Keep> keep);

  void run(int64_t item) noexcept override;

  const Stages& stages() const { return stages_; }

 private:
  Status decode(const Sample& sample, int64_t item, int* error);

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
