// Shared by all files with instructions of x86-64: jpeg/, dct/, png/, image/, pixels/, resample/ and the
// CRC32C of io/. Each function names its instruction set, so that the build needs no flags and one wheel
// serves every machine.
#pragma once

#include "base/simd.h"

#ifdef FASTLOAD_X86

// GCC 12's own header triggers its warnings (GCC bug 105593), of which clang knows only one.
#ifndef __clang__
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#include <immintrin.h>
#ifndef __clang__
#pragma GCC diagnostic pop
#endif

// Functions of a set, and parts of them, which are always inlined.
#define FASTLOAD_AVX2_CALL __attribute__((target("avx2,fma,bmi,bmi2,popcnt")))
#define FASTLOAD_AVX2 FASTLOAD_AVX2_CALL __attribute__((always_inline)) inline
#define FASTLOAD_AVX512_CALL                                                             \
  __attribute__((                                                                        \
      target("avx512f,avx512bw,avx512vl,avx512dq,avx512vbmi,avx512vbmi2,avx512vnni,avx2" \
             ",fma,bmi,bmi2,popcnt")))
#define FASTLOAD_AVX512 FASTLOAD_AVX512_CALL __attribute__((always_inline)) inline

#endif  // FASTLOAD_X86
