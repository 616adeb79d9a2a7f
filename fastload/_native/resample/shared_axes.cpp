#include "resample/shared_axes.h"

#include <algorithm>
#include <mutex>
#include <new>
#include <unordered_map>
#include <utility>
#include <vector>

#include "resample/kernels.h"

namespace fastload::resampling {

namespace {

std::atomic<size_t> nbytes_held{0};  // by all shared axes

}  // namespace

SharedAxis::SharedAxis(const AxisKey& key) : key_(key) {
  nbytes_held.fetch_add(sizeof(*this), std::memory_order_relaxed);
}

SharedAxis::~SharedAxis() {
  const Axis* existing = axis_.load(std::memory_order_acquire);
  nbytes_held.fetch_sub(sizeof(*this) + (existing ? existing->nbytes() : 0), std::memory_order_relaxed);
  delete existing;
}

const Axis* SharedAxis::get() const {
  const Axis* existing = axis_.load(std::memory_order_acquire);
  if (existing != nullptr) return existing;
  std::unique_ptr<const Axis> fresh = make_axis(key_);
  if (!axis_.compare_exchange_strong(existing, fresh.get(), std::memory_order_acq_rel)) return existing;
  nbytes_held.fetch_add(fresh->nbytes(), std::memory_order_relaxed);
  return fresh.release();
}

struct SharedAxes::Cache {
  struct Entry {
    std::shared_ptr<const SharedAxis> axis;
    uint64_t last_used = 0;
  };
  std::mutex mutex;
  std::unordered_map<uint64_t, Entry> entries;
  const Kernels* kernels = nullptr;
  uint64_t batch = 0;

  void trim();
};

void SharedAxes::Cache::trim() {
  if (nbytes_held.load(std::memory_order_relaxed) <= kLimit) return;
  std::vector<std::pair<uint64_t, uint64_t>> by_age;  // (last_used, key)
  by_age.reserve(entries.size());
  for (const auto& [key, entry] : entries) by_age.emplace_back(entry.last_used, key);
  std::sort(by_age.begin(), by_age.end());
  for (const auto& [age, key] : by_age) {
    // The current batch needs its own tables: evicting them would sort more than kLimit bytes each time.
    if (age == batch || nbytes_held.load(std::memory_order_relaxed) <= kLimit / 4 * 3) break;
    entries.erase(key);
  }
}

// Never destroyed, because threads may outlive static objects.
SharedAxes::Cache& SharedAxes::cache() {
  static Cache* const kCache = new Cache;
  return *kCache;
}

SharedAxes::SharedAxes() {
  Cache& all = cache();
  all.mutex.lock();
  const Kernels* now = &kernels_in_use();
  if (now != all.kernels) all.entries.clear();
  all.kernels = now;
  all.batch++;
}

SharedAxes::~SharedAxes() {
  try {
    cache().trim();
  } catch (const std::bad_alloc&) {
    // There is no memory for sorting by age: evict when the next batch ends.
  }
  cache().mutex.unlock();
}

std::shared_ptr<const SharedAxis> SharedAxes::axis(int in, int out, Filter filter, Pass pass) {
  if (in == out || in < 1 || out < 1 || in > kMaxSide || out > kMaxSide) return nullptr;
  Cache& all = cache();
  const AxisKey key{{in, 0, 0}, out, filter, pass, all.kernels};
  Cache::Entry& entry = all.entries[key.packed()];
  if (!entry.axis) entry.axis = std::make_shared<const SharedAxis>(key);
  entry.last_used = all.batch;
  return entry.axis;
}

}  // namespace fastload::resampling
