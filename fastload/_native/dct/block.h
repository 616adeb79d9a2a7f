// What every instruction set shares: a block's head, and the walk over the blocks of an MCU.
// docs/dct.md, "A block", specifies the bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "dct/bytes.h"
#include "dct/expand.h"

namespace fastload {

// The most bytes behind a block's first byte that an expansion may load, whether they belong to the block or
// not. Where the record has fewer left, the block is expanded out of a copy (Note [Tail]).
constexpr ptrdiff_t kDctReadAhead = 128;

// Header bits.
constexpr int kDctMaskBits = 15, kDctWideDc = 4, kDctEscapes = 5, kDctWidth = 6;
// Values come in 2 + (header >> kDctWidth) bits.
constexpr int kDctMinWidth = 2, kDctMaxWidth = kDctMinWidth + 3;
// Marks a value that stands in the list of 16-bit escapes.
constexpr int kDctWideEscape = -128;

struct DctBlockHead {
  int dc_difference;
  uint64_t mask;  // bit k: zig-zag coefficient k is non-zero; bit 0 (the DC) is never set
  int count;      // of set bits
  int width;      // bits per value
  const uint8_t* values;
  const uint8_t* escapes;  // one byte each, then two for each that is kDctWideEscape
  const uint8_t* next;     // the following block
};

// Needs kDctReadAhead readable bytes. False: impossible, or the block reaches beyond `end`.
inline __attribute__((always_inline)) bool read_block_head(const uint8_t* at, const uint8_t* end,
                                                           DctBlockHead* head) {
  const int header = *at++;
  const int wide = header >> kDctWideDc & 1, has_escapes = header >> kDctEscapes & 1;
  const int mask_nbytes = header & kDctMaskBits;
  const int dc = load_le<int16_t>(at);
  head->dc_difference = wide ? dc : static_cast<int8_t>(dc);
  at += 1 + wide;
  const int escape_nbytes = *at & -has_escapes;
  at += has_escapes;
  const uint64_t loaded = load_le<uint64_t>(at);
  // The shift drops the bytes behind the mask; a mask of no bytes would need one by 64, which is undefined.
  const int drop = (64 - 8 * mask_nbytes) & 63;
  const uint64_t mask = mask_nbytes ? loaded << drop >> drop : 0;
  if (__builtin_expect(mask_nbytes > 8 || mask >> 63, 0)) return false;
  at += mask_nbytes;
  head->mask = mask << 1;
  head->count = __builtin_popcountll(mask);
  head->width = kDctMinWidth + (header >> kDctWidth);
  head->values = at;
  head->escapes = at + ((head->count * head->width + 7) >> 3);
  head->next = head->escapes + escape_nbytes;
  return head->next <= end;
}

// Note [Tail]
// A mapped record may end where its page does, so nothing behind it may be loaded, not even to be ignored.
// Within kDctReadAhead of the end a block is expanded out of a zero-padded copy instead; the same code runs
// on it, with the copy's end as the limit.
//
// ExpandBlock: bool(const DctBlockHead&, int16_t dc, JBLOCKROW).
template <typename Block>
inline __attribute__((always_inline)) bool for_each_block(DctCursor* cursor, const int* component, int count,
                                                          Block block) {
  alignas(64) uint8_t tail[2 * kDctReadAhead];
  const uint8_t* at = cursor->at;
  for (int b = 0; b < count; b++) {
    const uint8_t* from = at;
    const uint8_t* end = cursor->end;
    if (__builtin_expect(end - from < kDctReadAhead, 0)) {
      const size_t left = static_cast<size_t>(end - from);
      if (left == 0) return false;
      std::memcpy(tail, from, left);
      std::memset(tail + left, 0, sizeof(tail) - left);
      from = tail;
      end = tail + left;
    }
    DctBlockHead head;
    if (__builtin_expect(!read_block_head(from, end, &head), 0)) return false;
    int16_t& prediction = cursor->prediction[component[b]];
    prediction = static_cast<int16_t>(prediction + head.dc_difference);
    if (__builtin_expect(!block(head, prediction, b), 0)) return false;
    at += head.next - from;
  }
  cursor->at = at;
  return true;
}

// Puts the escaped values where `lanes` (bits in zig-zag order) has them. False: their bytes do not fit.
inline __attribute__((always_inline)) bool put_escapes(const DctBlockHead& head, uint64_t lanes, JCOEF* block,
                                                       const uint8_t* natural_order) {
  const ptrdiff_t nbytes = head.next - head.escapes;
  const int narrow = __builtin_popcountll(lanes);
  if (narrow > nbytes) return false;
  const uint8_t* escape = head.escapes;
  const uint8_t* wide = head.escapes + narrow;
  for (; lanes; lanes &= lanes - 1) {
    int value = static_cast<int8_t>(*escape++);
    if (value == kDctWideEscape) {
      if (head.next - wide < 2) return false;
      value = load_le<int16_t>(wide);
      wide += 2;
    }
    block[natural_order[__builtin_ctzll(lanes)]] = static_cast<JCOEF>(value);
  }
  return wide == head.next;
}

// --- writing ---

// What a baseline JPEG can say, so that dct_to_jpeg can say it again (ITU-T T.81 F.1.2).
constexpr int kDctMinDc = -1024, kDctMaxDc = 1023, kDctMaxAc = 1023;

// The width that takes the fewest bytes for `count` values; of equals, the one with the fewest escapes.
// `costs`: from the lowest byte on, the number of values that have no code of two bits, then the bytes of
// escapes in codes of 3, 4 and 5 bits; 63 values of at most three bytes fit.
inline __attribute__((always_inline)) int best_width(uint32_t costs, int count, int* escape_nbytes) {
  int best = 0, least = 1 << 30;
  for (int width = kDctMaxWidth; width > kDctMinWidth; width--) {
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

// All in front of the values. `mask`: as it is stored, without a bit for the DC. May write 8 bytes more.
inline __attribute__((always_inline)) uint8_t* write_block_head(int dc, int16_t* prediction, uint64_t mask,
                                                                int width, int escape_nbytes, uint8_t* out) {
  const int mask_nbytes = mask ? (63 - __builtin_clzll(mask)) / 8 + 1 : 0;
  const int difference = dc - *prediction;
  const bool wide_dc = difference < -128 || difference > 127;
  *prediction = static_cast<int16_t>(dc);
  *out++ = static_cast<uint8_t>(mask_nbytes | wide_dc << kDctWideDc | (escape_nbytes > 0) << kDctEscapes |
                                (width - kDctMinWidth) << kDctWidth);
  store_le(out, static_cast<uint16_t>(difference));
  out += 1 + wide_dc;
  *out = static_cast<uint8_t>(escape_nbytes);
  out += escape_nbytes > 0;
  store_le(out, mask);
  return out + mask_nbytes;
}

}  // namespace fastload
