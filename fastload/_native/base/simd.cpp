#include "base/simd.h"

#include <atomic>
#include <cstdlib>
#include <cstring>

namespace fastload {
namespace {

constexpr Simd kBestFirst[] = {Simd::kAvx512, Simd::kAvx2, Simd::kNeon, Simd::kScalar};
constexpr int kNotChosen = -1;

std::atomic<int> chosen{kNotChosen};

// Whether this processor runs the kernels of the set, and they are compiled.
bool runs_here(Simd simd) {
#ifdef FASTLOAD_X86
  __builtin_cpu_init();
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
                    __builtin_cpu_supports("bmi") && __builtin_cpu_supports("bmi2") &&
                    __builtin_cpu_supports("popcnt");
  if (simd == Simd::kAvx2) return avx2;
  if (simd == Simd::kAvx512) {
    return avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("avx512vbmi") && __builtin_cpu_supports("avx512vbmi2") &&
           __builtin_cpu_supports("avx512vnni");
  }
#elif defined(FASTLOAD_ARM)
  if (simd == Simd::kNeon) return true;  // every 64-bit ARM processor has NEON
#endif
  return simd == Simd::kScalar;
}

// The set of that name, the best one for an empty name; kNotChosen if it does not run here.
int named(const char* name) {
  for (const Simd simd : kBestFirst) {
    if ((*name == '\0' || std::strcmp(name, simd_name(simd)) == 0) && runs_here(simd))
      return static_cast<int>(simd);
  }
  return kNotChosen;
}

}  // namespace

const char* simd_name(Simd simd) {
  static constexpr const char* kNames[] = {"scalar", "neon", "avx2", "avx512"};
  return kNames[static_cast<int>(simd)];
}

Simd simd_in_use() {
  int simd = chosen.load(std::memory_order_relaxed);
  if (simd == kNotChosen) {
    const char* wanted = std::getenv("FASTLOAD_SIMD");
    simd = wanted != nullptr ? named(wanted) : kNotChosen;
    if (simd == kNotChosen) simd = named("");
    chosen.store(simd, std::memory_order_relaxed);
  }
  return static_cast<Simd>(simd);
}

bool set_simd(const char* name) {
  const int simd = named(name);
  if (simd == kNotChosen) return false;
  chosen.store(simd, std::memory_order_relaxed);
  return true;
}

}  // namespace fastload
