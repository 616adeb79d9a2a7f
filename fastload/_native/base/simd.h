// Instruction sets: which ones this processor runs, and which one is in use.
//
// Every kernel has a scalar version. The faster ones belong to one of these sets, so that one choice decides
// for the whole core, and the tests run all of it with each set that the machine has.
#pragma once

// Processor families for which there are kernels; those of other families are not compiled.
#if defined(__x86_64__)
#define FASTLOAD_X86 1
#elif defined(__aarch64__) && __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
#define FASTLOAD_ARM 1
#endif

namespace fastload {

// The kernels of a set may use everything that its processors have: kAvx2 stands for BMI2 and FMA too, and
// kAvx512 for BW, DQ, VL, VBMI, VBMI2 and VNNI.
enum class Simd : int { kScalar = 0, kNeon = 1, kAvx2 = 2, kAvx512 = 3 };

// "scalar", "neon", "avx2", "avx512".
const char* simd_name(Simd simd);

// The set in use: the best one here, or the one that FASTLOAD_SIMD names, which the first call reads. A name
// that is unknown, or of a set that does not run here, changes nothing.
Simd simd_in_use();

// Chooses the set for images begun from now on, in all threads; "": the best one here. False, and changes
// nothing: the name is unknown, or this machine lacks the set. For tests.
bool set_simd(const char* name);

}  // namespace fastload

// What the set in use has: NAME_scalar(), NAME_neon(), NAME_avx2() or NAME_avx512().
#if defined(FASTLOAD_X86)
#define FASTLOAD_IN_USE(name)                                               \
  (::fastload::simd_in_use() == ::fastload::Simd::kAvx512 ? name##_avx512() \
   : ::fastload::simd_in_use() == ::fastload::Simd::kAvx2 ? name##_avx2()   \
                                                          : name##_scalar())
#elif defined(FASTLOAD_ARM)
#define FASTLOAD_IN_USE(name) \
  (::fastload::simd_in_use() == ::fastload::Simd::kNeon ? name##_neon() : name##_scalar())
#else
#define FASTLOAD_IN_USE(name) name##_scalar()
#endif
