// Shared by the AVX-512 files. Each function names its instruction set, so that the build needs no flags and
// one wheel serves every x86-64 machine.
#pragma once

#include "resample/kernels.h"

#ifdef FASTLOAD_X86

// GCC 12 warns about its own _mm512_undefined_epi32() (GCC bug 105593).
#if !defined(__clang__)
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif

#define FASTLOAD_AVX512_CALL                                                               \
  __attribute__((                                                                          \
      target("avx512f,avx512bw,avx512vl,avx512dq,avx512vbmi,avx512vnni,avx2,fma,bmi,bmi2," \
             "popcnt")))
#define FASTLOAD_AVX512 FASTLOAD_AVX512_CALL __attribute__((always_inline)) inline

namespace fastload::resampling {

void avx512_deinterleave(const uint8_t* rgb, int count, uint8_t* const* planes);
StoreRow avx512_store_for(RowOutput* output);

}  // namespace fastload::resampling

#endif  // FASTLOAD_X86
