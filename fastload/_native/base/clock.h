// The clocks of all times that Python sees.
#pragma once

#include <time.h>

#include <chrono>
#include <cstdint>

namespace fastload {

// time.perf_counter_ns()
inline int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

// time.thread_time_ns()
inline int64_t thread_cpu_ns() {
  timespec spent{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &spent);
  return int64_t{spent.tv_sec} * 1'000'000'000 + spent.tv_nsec;
}

}  // namespace fastload
