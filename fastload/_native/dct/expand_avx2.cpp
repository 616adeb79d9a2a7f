// Expansion with AVX2 and BMI2: 32 codes per step, 16 coefficients per shuffle.
//
// What gained 1 % of the expansion of photos or nothing: fewer shuffles for blocks without late coefficients,
// more places for escapes, several MCUs a call, and prefetching the next row.
#include "dct/expand.h"

#include "base/x86.h"

#ifdef FASTLOAD_X86

#include "dct/block.h"
#include "dct/format.h"

namespace fastload {
namespace {

constexpr uint8_t kNoSource = 0x80;  // pshufb writes zero

struct Tables {
  // For each byte of the mask, which of the next eight values goes to which position.
  alignas(64) uint8_t spread[256][8];
  // Zig-zag to row-major order: to half h (32 coefficients), from quarter q of the zig-zag (16 coefficients).
  alignas(64) uint8_t natural[2][4][32];

  constexpr Tables() : spread(), natural() {
    for (int mask = 0; mask < 256; mask++) {
      int next = 0;
      for (int bit = 0; bit < 8; bit++)
        spread[mask][bit] = mask >> bit & 1 ? static_cast<uint8_t>(next++) : kNoSource;
    }
    for (int half = 0; half < 2; half++)
      for (int quarter = 0; quarter < 4; quarter++)
        for (int i = 0; i < 32; i++) natural[half][quarter][i] = kNoSource;
    for (int k = 0; k < 64; k++) {
      const int place = kNaturalOrder[k];
      natural[place / 32][k / 16][place % 32] = static_cast<uint8_t>(k % 16);
    }
  }
};

constexpr Tables kTables;

// Unpacks 64 codes and converts them to values; those from `count` on are bytes that follow in the record.
// Returns which of the first `count` are escapes.
constexpr uint64_t kOnes = 0x0101010101010101;

// Unpacks 32 codes from the `first` on and converts them to values; those from `count` on are bytes that
// follow in the record. Sets which of the others are escapes.
FASTLOAD_AVX2_CALL inline __m256i unpack(const DctBlockHeader& header, int first, uint64_t* escaped) {
  const int width = header.width, range = 1 << width;
  const uint64_t lanes = kOnes * static_cast<uint64_t>(range - 1);
  const __m256i half = _mm256_set1_epi8(static_cast<char>(range / 2));
  const __m256i wrap = _mm256_set1_epi8(static_cast<char>(-range));
  const __m256i zero_code = _mm256_set1_epi8(width == kDctMinWidth ? -2 : 0);
  // Eight codes take `width` bytes.
  const auto eight = [&](int group) FASTLOAD_AVX2_CALL {
    return static_cast<long long>(
        _pdep_u64(load_le<uint64_t>(header.values + (first / 8 + group) * width), lanes));
  };
  const __m256i codes = _mm256_set_epi64x(eight(3), eight(2), eight(1), eight(0));
  const __m256i zero = _mm256_cmpeq_epi8(codes, _mm256_setzero_si256());
  const __m256i negative = _mm256_and_si256(_mm256_cmpgt_epi8(codes, half), wrap);
  const uint64_t zeros = static_cast<uint32_t>(_mm256_movemask_epi8(zero));
  *escaped = width == kDctMinWidth ? 0 : _bzhi_u64(zeros, static_cast<unsigned>(header.count - first));
  return _mm256_or_si256(_mm256_add_epi8(codes, negative), _mm256_and_si256(zero, zero_code));
}

// The escapes of the first 16 codes, in their places.
FASTLOAD_AVX2_CALL inline __m256i first_escapes(const DctBlockHeader& header, uint64_t escaped) {
  const auto eight = [&](int group) FASTLOAD_AVX2_CALL {
    const uint64_t lanes = _pdep_u64(escaped >> (8 * group), kOnes) * 255;
    const int before = group == 0 ? 0 : __builtin_popcountll(escaped & 255);
    return static_cast<long long>(_pdep_u64(load_le<uint64_t>(header.escapes + before), lanes));
  };
  return _mm256_set_epi64x(0, 0, eight(1), eight(0));
}

// Spreads the next values to the positions of two bytes of the mask: 16 coefficients in zig-zag order.
FASTLOAD_AVX2_CALL inline __m128i spread(const int8_t* values, uint64_t mask, int bit) {
  const unsigned low = mask >> bit & 255, high = mask >> (bit + 8) & 255;
  const int before = __builtin_popcountll(_bzhi_u64(mask, static_cast<unsigned>(bit)));
  const int8_t* at = values + before;
  const __m128i first =
      _mm_shuffle_epi8(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(at)),
                       _mm_loadl_epi64(reinterpret_cast<const __m128i*>(kTables.spread[low])));
  const __m128i second =
      _mm_shuffle_epi8(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(at + __builtin_popcount(low))),
                       _mm_loadl_epi64(reinterpret_cast<const __m128i*>(kTables.spread[high])));
  return _mm_unpacklo_epi64(first, second);
}

struct ExpandBlock {
  JBLOCKROW* blocks;

  FASTLOAD_AVX2_CALL bool operator()(const DctBlockHeader& header, int16_t dc, int b) const {
    JCOEF* block = blocks[b][0];
    if (header.mask) {
      alignas(32) int8_t values[64 + 8];
      __m256i* const stored = reinterpret_cast<__m256i*>(values);
      uint64_t escaped, more = 0;
      const __m256i first = unpack(header, 0, &escaped);
      // Nearly all escapes are here. Without a branch on their number, a batch took 2 % less time.
      const __m256i escapes = first_escapes(header, escaped);
      const __m256i wide = _mm256_cmpeq_epi8(escapes, _mm256_set1_epi8(static_cast<char>(kDctWideEscape)));
      _mm256_store_si256(stored, _mm256_or_si256(first, escapes));
      if (header.count > 32) _mm256_store_si256(stored + 1, unpack(header, 32, &more));
      escaped |= more << 32;
      __m256i quarter[4];
      for (int q = 0; q < 4; q++)
        quarter[q] = _mm256_broadcastsi128_si256(spread(values, header.mask, 16 * q));
      for (int h = 0; h < 2; h++) {
        __m256i half = _mm256_setzero_si256();
        for (int q = 0; q < 4; q++)
          half = _mm256_or_si256(
              half,
              _mm256_shuffle_epi8(
                  quarter[q], _mm256_load_si256(reinterpret_cast<const __m256i*>(kTables.natural[h][q]))));
        __m256i* to = reinterpret_cast<__m256i*>(block + 32 * h);
        _mm256_storeu_si256(to, _mm256_cvtepi8_epi16(_mm256_castsi256_si128(half)));
        _mm256_storeu_si256(to + 1, _mm256_cvtepi8_epi16(_mm256_extracti128_si256(half, 1)));
      }
      if (__builtin_expect(escaped >> 16 != 0 || !_mm256_testz_si256(wide, wide), 0)) {
        if (!put_escapes(header, _pdep_u64(escaped, header.mask), block, kNaturalOrder)) return false;
      } else if (__builtin_popcountll(escaped) != header.next - header.escapes) {
        return false;
      }
    } else if (header.next != header.escapes) {
      return false;
    }
    block[0] = dc;
    return true;
  }
};

FASTLOAD_AVX2_CALL bool expand(DctCursor* cursor, const int* component, int count, JBLOCKROW* blocks) {
  return for_each_block(cursor, component, count, ExpandBlock{blocks});
}

struct SkipBlock {
  FASTLOAD_AVX2_CALL bool operator()(const DctBlockHeader&, int16_t, int) const { return true; }
};

FASTLOAD_AVX2_CALL bool skip(DctCursor* cursor, const int* component, int count) {
  return for_each_block(cursor, component, count, SkipBlock{});
}

}  // namespace

const DctExpander& dct_expander_avx2() {
  static const DctExpander kAvx2 = {expand, skip};
  return kAvx2;
}

}  // namespace fastload

#endif  // FASTLOAD_X86
