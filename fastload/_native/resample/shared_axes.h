// Weight tables that the threads of a batch share.
//
// Per-thread tables would cost memory and computation in each thread. So a batch, when it is created, takes
// references to its samples' tables, including those of earlier batches. The first thread that needs a table
// fills it; tables never change afterwards, and no thread waits for another.
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
  // The table; the first call computes it. Throws std::bad_alloc.
  const Axis* get() const;

 private:
  const AxisKey key_;
  mutable std::atomic<const Axis*> axis_{nullptr};
};

// Locks the process's cache of shared axes while a batch takes its tables.
class SharedAxes {
 public:
  SharedAxes();
  // Evicts the least recently used tables while all together take more than kLimit bytes. Tables that a batch
  // still uses live as long as the batch.
  ~SharedAxes();
  SharedAxes(const SharedAxes&) = delete;
  SharedAxes& operator=(const SharedAxes&) = delete;

  // nullptr if nothing is resized. For boxes of whole pixels only. Throws std::bad_alloc.
  std::shared_ptr<const SharedAxis> axis(int in, int out, Filter filter, Pass pass);

  // 500 photos of about 470 x 400 pixels need about 300 widths and heights, 3 to 7 KB each. Training crops of
  // them took 565-574 us with 4 MB, 586-590 with 3 MB, 598-605 with 2 MB, and 578-581 with tables of each
  // thread's own.
  static constexpr size_t kLimit = size_t{4} << 20;

 private:
  struct Cache;
  static Cache& cache();
};

}  // namespace fastload::resampling
