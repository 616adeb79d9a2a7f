// The clock of all times that Python sees: time.perf_counter_ns().
#pragma once

#include <chrono>
#include <cstdint>

namespace fastload {

inline int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

}  // namespace fastload
