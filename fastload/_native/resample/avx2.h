// Shared by the AVX2 files. Each function names its instruction set, so that the build needs no flags and one
// wheel serves every x86-64 machine.
#pragma once

#include "resample/kernels.h"

#ifdef FASTLOAD_X86

#define FASTLOAD_AVX2_CALL __attribute__((target("avx2,fma,bmi,bmi2,popcnt")))
#define FASTLOAD_AVX2 FASTLOAD_AVX2_CALL __attribute__((always_inline)) inline

namespace fastload::resampling {

void avx2_deinterleave(const uint8_t* rgb, int count, uint8_t* const* planes);
StoreRow avx2_store_for(RowOutput* output);

}  // namespace fastload::resampling

#endif  // FASTLOAD_X86
