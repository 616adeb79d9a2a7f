// Expansion with AVX-512 VBMI and VBMI2: all values of a block at once, without a loop over coefficients.
#include "dct/expand.h"

#include "base/x86.h"

#ifdef FASTLOAD_X86

#include "dct/block.h"
#include "dct/format.h"

namespace fastload {
namespace {

// Indexed by width - kDctMinWidth.
struct Tables {
  // Unpacking: each 64-bit lane first gets the bytes that hold its eight codes, then each byte its own bits.
  alignas(64) uint8_t gather[4][64];
  alignas(64) uint8_t shift[4][64];
  // Code to value; repeated for the index bits above the width, which hold the next code.
  alignas(64) int8_t value[4][64];
  // Row-major position to zig-zag position.
  alignas(64) uint8_t zigzag[64];

  constexpr Tables() : gather(), shift(), value(), zigzag() {
    for (int w = 0; w < 4; w++) {
      const int width = w + kDctMinWidth, range = 1 << width;
      for (int lane = 0; lane < 64; lane++) {
        gather[w][lane] = static_cast<uint8_t>(lane / 8 * width + lane % 8);
        shift[w][lane] = static_cast<uint8_t>(lane % 8 * width);
        const int code = lane % range;
        value[w][lane] = static_cast<int8_t>(code > range / 2 ? code - range : code);
        if (code == 0 && width == kDctMinWidth) value[w][lane] = -2;
      }
    }
    for (int k = 0; k < 64; k++) zigzag[kNaturalOrder[k]] = static_cast<uint8_t>(k);
  }
};

constexpr Tables kTables;

struct ExpandBlock {
  JBLOCKROW* blocks;

  FASTLOAD_AVX512_CALL bool operator()(const DctBlockHeader& header, int16_t dc, int b) const {
    // Escapes are stored without a branch on whether there are any: over images that were not seen just
    // before, the branch was a little slower (SPECIFICATION.md, "What each choice costs").
    JCOEF* block = blocks[b][0];
    const int w = header.width - kDctMinWidth;
    const __m512i packed = _mm512_loadu_si512(header.values);
    const __m512i gathered = _mm512_permutexvar_epi8(_mm512_load_si512(kTables.gather[w]), packed);
    const __m512i codes = _mm512_multishift_epi64_epi8(_mm512_load_si512(kTables.shift[w]), gathered);
    const __m512i narrow = _mm512_permutexvar_epi8(codes, _mm512_load_si512(kTables.value[w]));
    const uint64_t escaped =
        _bzhi_u64(_mm512_testn_epi8_mask(narrow, narrow), static_cast<unsigned>(header.count));
    const __m512i escapes = _mm512_maskz_expand_epi8(escaped, _mm512_loadu_si512(header.escapes));
    const uint64_t wide = _mm512_mask_cmpeq_epi8_mask(escaped, escapes, _mm512_set1_epi8(kDctWideEscape));
    const int escape_count = __builtin_popcountll(escaped);
    if (__builtin_expect(escape_count + 2 * __builtin_popcountll(wide) != header.next - header.escapes, 0))
      return false;
    __m512i values = _mm512_maskz_expand_epi8(header.mask, _mm512_or_si512(narrow, escapes));
    values = _mm512_permutexvar_epi8(_mm512_load_si512(kTables.zigzag), values);
    _mm512_storeu_si512(block, _mm512_cvtepi8_epi16(_mm512_castsi512_si256(values)));
    _mm512_storeu_si512(block + 32, _mm512_cvtepi8_epi16(_mm512_extracti64x4_epi64(values, 1)));
    if (__builtin_expect(wide != 0, 0)) {
      const uint8_t* at = header.escapes + escape_count;
      for (uint64_t left = _pdep_u64(wide, header.mask); left; left &= left - 1, at += 2)
        block[kNaturalOrder[__builtin_ctzll(left)]] = load_le<int16_t>(at);
    }
    block[0] = dc;
    return true;
  }
};

FASTLOAD_AVX512_CALL bool expand(DctCursor* cursor, const int* component, int count, JBLOCKROW* blocks) {
  return for_each_block(cursor, component, count, ExpandBlock{blocks});
}

struct SkipBlock {
  FASTLOAD_AVX512_CALL bool operator()(const DctBlockHeader&, int16_t, int) const { return true; }
};

FASTLOAD_AVX512_CALL bool skip(DctCursor* cursor, const int* component, int count) {
  return for_each_block(cursor, component, count, SkipBlock{});
}

}  // namespace

const DctExpander& dct_expander_avx512() {
  static const DctExpander kAvx512 = {expand, skip};
  return kAvx512;
}

}  // namespace fastload

#endif  // FASTLOAD_X86
