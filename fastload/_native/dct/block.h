// The layout of a block (SPECIFICATION.md, "A block"), shared by all instruction sets: reading and writing
// its header, and the loop over the blocks of an MCU.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "base/bytes.h"
#include "dct/expand.h"

namespace fastload {

// An expansion may load this many bytes after a block's first byte, whether they belong to the block or not.
// If fewer are left in the record, the block is expanded from a copy: Note [End of the record].
constexpr ptrdiff_t kDctReadAhead = 128;

// Fields of a block's first byte.
constexpr int kDctMaskBits = 15, kDctWideDc = 4, kDctEscapes = 5, kDctWidth = 6;
// A value is coded in kDctMinWidth + (first byte >> kDctWidth) bits.
constexpr int kDctMinWidth = 2, kDctMaxWidth = kDctMinWidth + 3;
// An 8-bit escape with this value means that the value follows in the list of 16-bit escapes.
constexpr int kDctWideEscape = -128;

struct DctBlockHeader {
  int dc_difference;
  uint64_t mask;  // bit k: zig-zag coefficient k is not zero; bit 0 (the DC) is never set
  int count;      // set bits
  int width;      // bits per value
  const uint8_t* values;
  const uint8_t* escapes;  // one byte each, then two bytes for each that is kDctWideEscape
  const uint8_t* next;     // the following block
};

// Needs kDctReadAhead readable bytes. False: the header is invalid, or the block ends after `end`.
inline __attribute__((always_inline)) bool read_block_header(const uint8_t* at, const uint8_t* end,
                                                             DctBlockHeader* header) {
  const int fields = *at++;
  const int wide = fields >> kDctWideDc & 1, has_escapes = fields >> kDctEscapes & 1;
  const int mask_nbytes = fields & kDctMaskBits;
  const int dc = load_le<int16_t>(at);
  header->dc_difference = wide ? dc : static_cast<int8_t>(dc);
  at += 1 + wide;
  const int escape_nbytes = *at & -has_escapes;
  at += has_escapes;
  const uint64_t loaded = load_le<uint64_t>(at);
  // The shift drops the bytes after the mask. For an empty mask it would be 64, which is undefined.
  const int drop = (64 - 8 * mask_nbytes) & 63;
  const uint64_t mask = mask_nbytes ? loaded << drop >> drop : 0;
  if (__builtin_expect(mask_nbytes > 8 || mask >> 63, 0)) return false;
  at += mask_nbytes;
  header->mask = mask << 1;
  header->count = __builtin_popcountll(mask);
  header->width = kDctMinWidth + (fields >> kDctWidth);
  header->values = at;
  header->escapes = at + ((header->count * header->width + 7) >> 3);
  header->next = header->escapes + escape_nbytes;
  return header->next <= end;
}

// Note [End of the record]
// A mapped record may end where its page does, so no byte after it may be loaded, even if it would be
// ignored. Within kDctReadAhead of the end, a block is expanded from a zero-padded copy instead. The same
// code runs on the copy, with the copy's end as the limit.
//
// `block`: bool(const DctBlockHeader&, int16_t dc, int index_in_mcu).
template <typename Block>
inline __attribute__((always_inline)) bool for_each_block(DctCursor* cursor, const int* component, int count,
                                                          Block block) {
  alignas(64) uint8_t copy[2 * kDctReadAhead];
  const uint8_t* at = cursor->at;
  for (int b = 0; b < count; b++) {
    const uint8_t* from = at;
    const uint8_t* end = cursor->end;
    if (__builtin_expect(end - from < kDctReadAhead, 0)) {
      const size_t left = static_cast<size_t>(end - from);
      if (left == 0) return false;
      std::memcpy(copy, from, left);
      std::memset(copy + left, 0, sizeof(copy) - left);
      from = copy;
      end = copy + left;
    }
    DctBlockHeader header;
    if (__builtin_expect(!read_block_header(from, end, &header), 0)) return false;
    int16_t& prediction = cursor->prediction[component[b]];
    prediction = static_cast<int16_t>(prediction + header.dc_difference);
    if (__builtin_expect(!block(header, prediction, b), 0)) return false;
    at += header.next - from;
  }
  cursor->at = at;
  return true;
}

// Stores the escaped values at the positions in `lanes` (bits in zig-zag order). False: their bytes do not
// fit.
inline __attribute__((always_inline)) bool put_escapes(const DctBlockHeader& header, uint64_t lanes,
                                                       JCOEF* block, const uint8_t* natural_order) {
  const ptrdiff_t nbytes = header.next - header.escapes;
  const int narrow = __builtin_popcountll(lanes);
  if (narrow > nbytes) return false;
  const uint8_t* escape = header.escapes;
  const uint8_t* wide = header.escapes + narrow;
  for (; lanes; lanes &= lanes - 1) {
    int value = static_cast<int8_t>(*escape++);
    if (value == kDctWideEscape) {
      if (header.next - wide < 2) return false;
      value = load_le<int16_t>(wide);
      wide += 2;
    }
    block[natural_order[__builtin_ctzll(lanes)]] = static_cast<JCOEF>(value);
  }
  return wide == header.next;
}

// --- Writing ---

// The range of a baseline JPEG, so that dct_to_jpeg can write every value (ITU-T T.81 F.1.2).
constexpr int kDctMinDc = -1024, kDctMaxDc = 1023, kDctMaxAc = 1023;

// The width that takes the fewest bytes for `count` values; among equals, the one with the fewest escapes.
// `costs`, one byte each from the lowest: the number of values without a code of 2 bits, then the bytes of
// escapes with codes of 3, 4 and 5 bits. 63 values of at most three bytes fit.
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

// Writes everything before the values. `mask`: as stored, without a bit for the DC. May write 8 bytes more.
inline __attribute__((always_inline)) uint8_t* write_block_header(int dc, int16_t* prediction, uint64_t mask,
                                                                  int width, int escape_nbytes,
                                                                  uint8_t* out) {
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
