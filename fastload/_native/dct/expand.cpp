// The portable expander, and the choice among all.
#include "dct/expand.h"

#include <atomic>
#include <cstdlib>
#include <cstring>

#include "dct/block.h"
#include "dct/format.h"
#include "dct/record.h"

namespace fastload {
namespace {

bool expand_block(const DctBlockHeader& header, int16_t dc, JCOEF* block) {
  const int width = header.width;
  const unsigned codes = (1u << width) - 1;
  // A code up to half the range is the value itself; a larger one is the value plus the range. Code 0, which
  // no non-zero coefficient needs, is the escape. In 2 bits it is -2 instead, because an escape there would
  // push too many blocks to a larger width.
  const int half = 1 << (width - 1), range = 1 << width;
  const int zero_code = width == kDctMinWidth ? -2 : 0;
  uint64_t escaped = 0;
  unsigned bit = 0;
  for (uint64_t left = header.mask; left; left &= left - 1, bit += width) {
    const int code = static_cast<int>(load_le<uint16_t>(header.values + (bit >> 3)) >> (bit & 7) & codes);
    const int value = code == 0 ? zero_code : code > half ? code - range : code;
    if (value == 0)
      escaped |= left & -left;
    else
      block[kNaturalOrder[__builtin_ctzll(left)]] = static_cast<JCOEF>(value);
  }
  block[0] = dc;
  return put_escapes(header, escaped, block, kNaturalOrder);
}

bool expand(DctCursor* cursor, const int* component, int count, JBLOCKROW* blocks) {
  return for_each_block(cursor, component, count, [&](const DctBlockHeader& header, int16_t dc, int b) {
    return expand_block(header, dc, blocks[b][0]);
  });
}

bool skip(DctCursor* cursor, const int* component, int count) {
  return for_each_block(cursor, component, count, [](const DctBlockHeader&, int16_t, int) { return true; });
}

const DctExpander* from_environment() {
  const char* name = std::getenv("FASTLOAD_SIMD");
  const DctExpander* named = name ? dct_expander_named(name) : nullptr;
  return named ? named : dct_expander_named("");
}

std::atomic<const DctExpander*> chosen{nullptr};

}  // namespace

const DctExpander& dct_expander_scalar() {
  static const DctExpander kScalar = {"scalar", expand, skip};
  return kScalar;
}

const DctExpander* dct_expander_named(const char* name) {
  const bool any = *name == '\0';
  const bool up_to_avx512 = any || std::strcmp(name, "avx512") == 0;
  const bool up_to_avx2 = up_to_avx512 || std::strcmp(name, "avx2") == 0;
  const bool up_to_neon = up_to_avx2 || std::strcmp(name, "neon") == 0;
#if defined(__x86_64__)
  __builtin_cpu_init();
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("bmi2");
  const bool avx512 = avx2 && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vbmi") &&
                      __builtin_cpu_supports("avx512vbmi2");
  if (avx512 && up_to_avx512) return dct_expander_avx512();
  if (avx2 && up_to_avx2) return dct_expander_avx2();
#endif
  const DctExpander* neon = dct_expander_neon();
  if (neon && up_to_neon) return neon;
  return up_to_neon || std::strcmp(name, "scalar") == 0 ? &dct_expander_scalar() : nullptr;
}

const DctExpander& dct_expander() {
  const DctExpander* expander = chosen.load(std::memory_order_relaxed);
  if (expander == nullptr) {
    expander = from_environment();
    chosen.store(expander, std::memory_order_relaxed);
  }
  return *expander;
}

bool dct_set_simd(const char* name) {
  const DctExpander* expander = dct_expander_named(name);
  if (!expander) return false;
  chosen.store(expander, std::memory_order_relaxed);
  return true;
}

}  // namespace fastload
