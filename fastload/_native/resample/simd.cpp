// Chooses the resampler's instruction set: the best one here, or a lower one that FASTLOAD_SIMD names.
#include <atomic>
#include <cstdlib>
#include <cstring>

#include "resample/kernels.h"
#include "resample/resample.h"

namespace fastload {

namespace resampling {

namespace {

// From the best to the one that runs everywhere.
const Kernels* const kAllKernels[] = {
#ifdef FASTLOAD_X86
    &kAvx512Kernels,
    &kAvx2Kernels,
#endif
    &kScalarKernels,
};

bool runs_here(const Kernels* kernels) {
#ifdef FASTLOAD_X86
  __builtin_cpu_init();
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("bmi2");
  if (kernels == &kAvx2Kernels) return avx2;
  if (kernels == &kAvx512Kernels) {
    return avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("avx512vbmi") && __builtin_cpu_supports("avx512vnni");
  }
#endif
  return kernels == &kScalarKernels;
}

// The kernels of that name, the best ones for an empty name; nullptr if this machine cannot run them.
const Kernels* kernels_named(const char* name) {
  const bool best = name == nullptr || *name == '\0';
  for (const Kernels* kernels : kAllKernels) {
    if ((best || std::strcmp(name, kernels->name) == 0) && runs_here(kernels)) return kernels;
  }
  return nullptr;
}

std::atomic<const Kernels*> chosen{nullptr};

}  // namespace

const Kernels& kernels_in_use() {
  const Kernels* kernels = chosen.load(std::memory_order_relaxed);
  if (kernels == nullptr) {
    kernels = kernels_named(std::getenv("FASTLOAD_SIMD"));
    if (kernels == nullptr) kernels = kernels_named("");  // unknown name, or not supported here
    chosen.store(kernels, std::memory_order_relaxed);
  }
  return *kernels;
}

}  // namespace resampling

const char* Resampler::simd() {
  return resampling::kernels_in_use().name;
}

bool set_simd(const char* name) {
  const resampling::Kernels* kernels = resampling::kernels_named(name);
  if (kernels == nullptr) return false;
  resampling::chosen.store(kernels, std::memory_order_relaxed);
  return true;
}

}  // namespace fastload
