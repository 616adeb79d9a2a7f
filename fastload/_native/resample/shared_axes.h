// Weight tables that the threads of a batch share.
//
// Each thread with tables of its own takes memory for each, and computes each. So a batch takes hold of its
// samples' tables when it is made, of those that earlier batches had where they are the same. They are filled
// by the first thread that needs them, and never changed: no thread waits for another.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include "resample/axis.h"

namespace fastload::resampling {

class SharedAxis {
 public:
  explicit SharedAxis(const AxisKey& key);
  ~SharedAxis();
  SharedAxis(const SharedAxis&) = delete;
  SharedAxis& operator=(const SharedAxis&) = delete;

  const AxisKey& key() const { return key_; }
  // Made now, unless another thread has made it. Throws std::bad_alloc.
  const Axis* get() const;

 private:
  const AxisKey key_;
  mutable std::atomic<const Axis*> made_{nullptr};
};

// Holds the process's shelf of shared axes while a batch takes its own.
class SharedAxes {
 public:
  SharedAxes();
  // Drops what was used longest ago, while all tables together take more than kLimit bytes. What a batch
  // still holds lives on with it.
  ~SharedAxes();
  SharedAxes(const SharedAxes&) = delete;
  SharedAxes& operator=(const SharedAxes&) = delete;

  // nullptr where there is nothing to resize. For whole pixels only. Throws std::bad_alloc.
  std::shared_ptr<const SharedAxis> axis(int in, int out, Filter filter, Pass pass);

  // 500 photos of about 470 x 400 pixels need some 300 widths and heights, at 3 to 7 KB each. Measured: 2 MB
  // instead of 4 saves 2 MB and takes 3 % more time.
  static constexpr size_t kLimit = size_t{4} << 20;

 private:
  struct Shelf;
  static Shelf& shelf();
};

}  // namespace fastload::resampling
