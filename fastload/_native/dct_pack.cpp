// Coefficients -> a block's bytes. docs/dct.md, "A block", specifies them.
#include "dct_pack.h"

#include <cstring>

#include "dct_block.h"
#include "dct_bytes.h"

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace fastload {
namespace {

// What a baseline JPEG can say, so that dct_to_jpeg can say it again (ITU-T T.81 F.1.2).
constexpr int kMaxAc = 1023, kMinDc = -1024, kMaxDc = 1023;

constexpr int kMaxWidth = kDctMinWidth + 3;

// A code of `width` bits is its value's last bits. Of the values that do not fit, -2 in two bits is the only
// one with a code.
constexpr bool escapes(int value, int width) {
  const int half = 1 << (width - 1);
  return value <= -half || value > half;
}

// Whether one byte does for an escaped value.
constexpr bool narrow(int value) {
  return value > kDctWideEscape && value <= 127;
}

// For each value, four bytes: how many bytes its escape takes in codes of 3, 4 and 5 bits, and whether it
// has no code of two bits. The sums over a block's 63 fit into a byte each.
struct Costs {
  uint32_t at[2 * kMaxAc + 1];
  constexpr Costs() : at() {
    for (int value = -kMaxAc; value <= kMaxAc; value++) {
      uint32_t costs = value < -2 || value > 2;
      for (int width = kDctMinWidth + 1; width <= kMaxWidth; width++)
        if (escapes(value, width)) costs |= (narrow(value) ? 1u : 3u) << (8 * (width - kDctMinWidth));
      at[value + kMaxAc] = costs;
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

// The width that takes the fewest bytes; of equals, the one with the fewest escapes.
int best_width(uint32_t costs, int count, int* escape_nbytes) {
  int best = 0, least = 1 << 30;
  for (int width = kMaxWidth; width > kDctMinWidth; width--) {
    const int escaped = static_cast<int>(costs >> (8 * (width - kDctMinWidth)) & 255);
    const int nbytes = (count * width + 7) / 8 + escaped + (escaped > 0);
    if (nbytes >= least) continue;
    least = nbytes;
    best = width;
    *escape_nbytes = escaped;
  }
  if ((costs & 255) != 0 || (count * kDctMinWidth + 7) / 8 >= least) return best;
  *escape_nbytes = 0;
  return kDctMinWidth;
}

}  // namespace

uint8_t* dct_pack_block(const JCOEF* zigzag, int16_t* prediction, uint8_t* out) {
  const uint64_t mask = nonzero(zigzag) >> 1;
  int16_t values[63];
  int count = 0;
  uint32_t costs = 0;
  for (uint64_t left = mask; left; left &= left - 1) {
    const int value = zigzag[1 + __builtin_ctzll(left)];
    if (value < -kMaxAc || value > kMaxAc) return nullptr;
    values[count++] = static_cast<int16_t>(value);
    costs += kCosts.at[value + kMaxAc];
  }
  if (zigzag[0] < kMinDc || zigzag[0] > kMaxDc) return nullptr;
  int escape_nbytes = 0;
  const int width = best_width(costs, count, &escape_nbytes);

  const int mask_nbytes = mask ? (63 - __builtin_clzll(mask)) / 8 + 1 : 0;
  const int difference = zigzag[0] - *prediction;
  const bool wide_dc = difference < -128 || difference > 127;
  *prediction = zigzag[0];
  *out++ = static_cast<uint8_t>(mask_nbytes | wide_dc << kDctWideDc | (escape_nbytes > 0) << kDctEscapes |
                                (width - kDctMinWidth) << kDctWidth);
  store_le(out, static_cast<uint16_t>(difference));
  out += 1 + wide_dc;
  *out = static_cast<uint8_t>(escape_nbytes);
  out += escape_nbytes > 0;
  store_le(out, mask);
  out += mask_nbytes;

  const int half = 1 << (width - 1);
  const unsigned codes = (1u << width) - 1;
  uint8_t one_byte[64], two_bytes[2 * 63];
  int escaped = 0, wide_nbytes = 0;
  uint64_t held = 0;
  int held_bits = 0;
  for (int i = 0; i < count; i++) {
    const int value = values[i];
    const bool escape = static_cast<unsigned>(value + half - 1) > codes;  // escapes(value, width)
    held |= static_cast<uint64_t>(escape ? 0u : static_cast<unsigned>(value) & codes) << held_bits;
    held_bits += width;
    if (held_bits >= 32) {
      store_le(out, static_cast<uint32_t>(held));
      out += 4;
      held >>= 32;
      held_bits -= 32;
    }
    one_byte[escaped] = static_cast<uint8_t>(narrow(value) ? value : kDctWideEscape);
    escaped += escape;
    if (escape && !narrow(value)) {
      store_le(two_bytes + wide_nbytes, static_cast<uint16_t>(value));
      wide_nbytes += 2;
    }
  }
  store_le(out, held);
  out += (held_bits + 7) / 8;
  if (escape_nbytes == 0) return out;
  std::memcpy(out, one_byte, static_cast<size_t>(escaped));
  out += escaped;
  std::memcpy(out, two_bytes, static_cast<size_t>(wide_nbytes));
  return out + wide_nbytes;
}

}  // namespace fastload
