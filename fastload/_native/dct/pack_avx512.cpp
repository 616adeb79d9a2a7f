// Packing with AVX-512 VBMI2: all values of a block at once, without a loop over coefficients.
#include "dct/pack.h"

#include "base/x86.h"

#ifdef FASTLOAD_X86

#include "dct/block.h"

namespace fastload {
namespace {

// Which values have no code of `width` bits of their own: those outside 1 - half .. half.
FASTLOAD_AVX512_CALL inline uint64_t without_code(__m512i values, int width) {
  const int half = 1 << (width - 1);
  const __m512i above = _mm512_add_epi8(values, _mm512_set1_epi8(static_cast<char>(half - 1)));
  return _mm512_cmpgt_epu8_mask(above, _mm512_set1_epi8(static_cast<char>(2 * half - 1)));
}

FASTLOAD_AVX512_CALL uint8_t* pack(const JCOEF* zigzag, int16_t* prediction, uint8_t* out) {
  const __m512i low = _mm512_loadu_si512(zigzag), high = _mm512_loadu_si512(zigzag + 32);
  const auto beyond = [low, high](int most) FASTLOAD_AVX512_CALL {
    const __m512i limit = _mm512_set1_epi16(static_cast<short>(most));
    const uint32_t in_low = _mm512_cmpgt_epi16_mask(_mm512_abs_epi16(low), limit) & ~1u;
    return in_low | static_cast<uint64_t>(_mm512_cmpgt_epi16_mask(_mm512_abs_epi16(high), limit)) << 32;
  };
  const uint64_t wide = beyond(127);
  if (zigzag[0] < kDctMinDc || zigzag[0] > kDctMaxDc || (wide != 0 && beyond(kDctMaxAc) != 0)) return nullptr;
  __m512i all =
      _mm512_inserti64x4(_mm512_castsi256_si512(_mm512_cvtepi16_epi8(low)), _mm512_cvtepi16_epi8(high), 1);
  all = _mm512_mask_mov_epi8(all, wide, _mm512_set1_epi8(kDctWideEscape));
  const uint64_t mask = _mm512_test_epi8_mask(all, all) & ~uint64_t{1};
  const int count = __builtin_popcountll(mask);
  const __m512i values = _mm512_maskz_compress_epi8(mask, all);

  const __m512i above = _mm512_add_epi8(values, _mm512_set1_epi8(2));
  uint32_t costs = _mm512_cmpgt_epu8_mask(above, _mm512_set1_epi8(4)) != 0;
  for (int width = kDctMinWidth + 1; width <= kDctMaxWidth; width++) {
    const int escapes = __builtin_popcountll(without_code(values, width)) + 2 * __builtin_popcountll(wide);
    costs |= static_cast<uint32_t>(escapes) << (8 * (width - kDctMinWidth));
  }
  int escape_nbytes = 0;
  const int width = best_width(costs, count, &escape_nbytes);
  out = write_block_header(zigzag[0], prediction, mask >> 1, width, escape_nbytes, out);

  const uint64_t escaped = without_code(values, width);  // with 2 bits also those of -2, whose code is zero
  const int range = 1 << width;
  alignas(64) uint8_t codes[64];
  _mm512_store_si512(codes, _mm512_maskz_mov_epi8(~escaped, values));
  const uint64_t lanes = 0x0101010101010101u * static_cast<uint64_t>(range - 1);
  for (int i = 0; i < count; i += 8)  // eight codes take `width` bytes
    store_le(out + i / 8 * width, _pext_u64(load_le<uint64_t>(codes + i), lanes));
  out += (count * width + 7) / 8;
  _mm512_storeu_si512(out, _mm512_maskz_compress_epi8(escaped, values));
  uint8_t* const end = out + escape_nbytes;
  out = end - 2 * __builtin_popcountll(wide);
  for (uint64_t left = wide; left; left &= left - 1, out += 2)
    store_le(out, static_cast<uint16_t>(zigzag[__builtin_ctzll(left)]));
  return end;
}

}  // namespace

DctPacker dct_packer_avx512() {
  return pack;
}

}  // namespace fastload

#endif  // FASTLOAD_X86
