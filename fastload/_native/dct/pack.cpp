// Packs coefficients into a block's bytes (SPECIFICATION.md, "A block").
#include "dct/pack.h"

#include <cstring>

#include "base/bytes.h"
#include "base/simd.h"
#include "dct/block.h"

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace fastload {
namespace {

// Whether a value needs an escape. A code of `width` bits is the value's last bits. In 2 bits, -2 has a code
// although it does not fit; best_width and its callers handle that.
constexpr bool escapes(int value, int width) {
  const int half = 1 << (width - 1);
  return value <= -half || value > half;
}

// Whether an escaped value fits one byte.
constexpr bool narrow(int value) {
  return value > kDctWideEscape && value <= 127;
}

// What each value adds to a block's costs: see best_width.
struct Costs {
  uint32_t at[2 * kDctMaxAc + 1];
  constexpr Costs() : at() {
    for (int value = -kDctMaxAc; value <= kDctMaxAc; value++) {
      uint32_t costs = value < -2 || value > 2;
      for (int width = kDctMinWidth + 1; width <= kDctMaxWidth; width++)
        if (escapes(value, width)) costs |= (narrow(value) ? 1u : 3u) << (8 * (width - kDctMinWidth));
      at[value + kDctMaxAc] = costs;
    }
  }
};
constexpr Costs kCosts;

// Bit k: coefficient k is not zero.
uint64_t nonzero(const JCOEF* block) {
#if defined(__SSE2__)
  uint64_t zero = 0;
  for (int k = 0; k < 64; k += 16) {
    const __m128i* at = reinterpret_cast<const __m128i*>(block + k);
    const __m128i bytes = _mm_packs_epi16(_mm_loadu_si128(at), _mm_loadu_si128(at + 1));
    const int found = _mm_movemask_epi8(_mm_cmpeq_epi8(bytes, _mm_setzero_si128()));
    zero |= static_cast<uint64_t>(static_cast<uint32_t>(found)) << k;
  }
  return ~zero;
#else
  uint64_t mask = 0;
  for (int k = 0; k < 64; k++) mask |= static_cast<uint64_t>(block[k] != 0) << k;
  return mask;
#endif
}

}  // namespace

uint8_t* dct_pack_block(const JCOEF* zigzag, int16_t* prediction, uint8_t* out) {
  const uint64_t mask = nonzero(zigzag) >> 1;
  int16_t values[63];
  int count = 0;
  uint32_t costs = 0;
  for (uint64_t left = mask; left; left &= left - 1) {
    const int value = zigzag[1 + __builtin_ctzll(left)];
    if (value < -kDctMaxAc || value > kDctMaxAc) return nullptr;
    values[count++] = static_cast<int16_t>(value);
    costs += kCosts.at[value + kDctMaxAc];
  }
  if (zigzag[0] < kDctMinDc || zigzag[0] > kDctMaxDc) return nullptr;
  int escape_nbytes = 0;
  const int width = best_width(costs, count, &escape_nbytes);
  out = write_block_header(zigzag[0], prediction, mask, width, escape_nbytes, out);

  const int half = 1 << (width - 1);
  const unsigned codes = (1u << width) - 1;
  uint8_t one_byte[64], two_bytes[2 * 63];
  int escaped = 0, wide_nbytes = 0;
  uint64_t pending = 0;
  int pending_bits = 0;
  for (int i = 0; i < count; i++) {
    const int value = values[i];
    const bool escape = static_cast<unsigned>(value + half - 1) > codes;  // escapes(value, width)
    pending |= static_cast<uint64_t>(escape ? 0u : static_cast<unsigned>(value) & codes) << pending_bits;
    pending_bits += width;
    if (pending_bits >= 32) {
      store_le(out, static_cast<uint32_t>(pending));
      out += 4;
      pending >>= 32;
      pending_bits -= 32;
    }
    one_byte[escaped] = static_cast<uint8_t>(narrow(value) ? value : kDctWideEscape);
    escaped += escape;
    if (escape && !narrow(value)) {
      store_le(two_bytes + wide_nbytes, static_cast<uint16_t>(value));
      wide_nbytes += 2;
    }
  }
  store_le(out, pending);
  out += (pending_bits + 7) / 8;
  if (escape_nbytes == 0) return out;
  std::memcpy(out, one_byte, static_cast<size_t>(escaped));
  out += escaped;
  std::memcpy(out, two_bytes, static_cast<size_t>(wide_nbytes));
  return out + wide_nbytes;
}

DctPacker dct_packer() {
#ifdef FASTLOAD_X86
  if (simd_in_use() == Simd::kAvx512) return dct_packer_avx512();
#endif
  return dct_pack_block;
}

}  // namespace fastload
