// Expansion with NEON: sixteen codes per step, and the zig-zag order in four look-ups.
#include "dct/expand.h"

#include "base/simd.h"

#ifdef FASTLOAD_ARM

#include <arm_neon.h>

#include "dct/block.h"
#include "dct/format.h"

namespace fastload {
namespace {

constexpr uint8_t kNoSource = 0x80;  // an index outside its table gives zero
constexpr int kWidths = 4;

struct Tables {
  // For each width, where the 16 codes are: the byte in which each begins and its right shift (a negative
  // left shift), and the same for the byte after it.
  alignas(16) uint8_t byte[kWidths][16], behind[kWidths][16];
  alignas(16) int8_t shift[kWidths][16], shift_behind[kWidths][16];
  // For each byte of the mask, which of the next eight values goes to which position.
  alignas(64) uint8_t spread[256][8];
  // Row-major position to zig-zag position.
  alignas(64) uint8_t zigzag[64];

  constexpr Tables() : byte(), behind(), shift(), shift_behind(), spread(), zigzag() {
    for (int w = 0; w < kWidths; w++)
      for (int i = 0; i < 16; i++) {
        const int bit = i * (w + kDctMinWidth);
        byte[w][i] = static_cast<uint8_t>(bit / 8);
        behind[w][i] = static_cast<uint8_t>(bit / 8 + 1);
        shift[w][i] = static_cast<int8_t>(-(bit % 8));
        shift_behind[w][i] = static_cast<int8_t>(8 - bit % 8);
      }
    for (int mask = 0; mask < 256; mask++) {
      int next = 0;
      for (int bit = 0; bit < 8; bit++)
        spread[mask][bit] = mask >> bit & 1 ? static_cast<uint8_t>(next++) : kNoSource;
    }
    for (int k = 0; k < 64; k++) zigzag[kNaturalOrder[k]] = static_cast<uint8_t>(k);
  }
};

constexpr Tables kTables;

// One bit for each of the 16 lanes, which are all ones or all zeros.
inline uint64_t bits_of(uint8x16_t lanes) {
  static constexpr uint8_t kBits[16] = {1, 2, 4, 8, 16, 32, 64, 128, 1, 2, 4, 8, 16, 32, 64, 128};
  const uint8x16_t bits = vandq_u8(lanes, vld1q_u8(kBits));
  return static_cast<uint64_t>(vaddv_u8(vget_low_u8(bits))) |
         static_cast<uint64_t>(vaddv_u8(vget_high_u8(bits))) << 8;
}

// Unpacks the codes, sixteen at a time, and converts them to values; those from `count` on are bytes that
// follow in the record. Returns which of the first `count` are escapes.
inline uint64_t unpack(const DctBlockHeader& header, int8_t* values) {
  const int width = header.width, w = width - kDctMinWidth, range = 1 << width;
  const uint8x16_t byte = vld1q_u8(kTables.byte[w]), behind = vld1q_u8(kTables.behind[w]);
  const int8x16_t shift = vld1q_s8(kTables.shift[w]), shift_behind = vld1q_s8(kTables.shift_behind[w]);
  const uint8x16_t ones = vdupq_n_u8(static_cast<uint8_t>(range - 1));
  const int8x16_t half = vdupq_n_s8(static_cast<int8_t>(range / 2));
  const uint8x16_t wrap = vdupq_n_u8(static_cast<uint8_t>(-range));
  const uint8x16_t zero_code = vdupq_n_u8(static_cast<uint8_t>(width == kDctMinWidth ? -2 : 0));
  uint64_t escaped = 0;
  for (int i = 0; i < header.count; i += 16) {
    const uint8x16_t packed = vld1q_u8(header.values + i / 8 * width);
    const uint8x16_t codes = vandq_u8(vorrq_u8(vshlq_u8(vqtbl1q_u8(packed, byte), shift),
                                               vshlq_u8(vqtbl1q_u8(packed, behind), shift_behind)),
                                      ones);
    const uint8x16_t zero = vceqzq_u8(codes);
    const uint8x16_t negative = vandq_u8(vcgtq_s8(vreinterpretq_s8_u8(codes), half), wrap);
    const uint8x16_t value = vorrq_u8(vaddq_u8(codes, negative), vandq_u8(zero, zero_code));
    vst1q_s8(values + i, vreinterpretq_s8_u8(value));
    if (width != kDctMinWidth) escaped |= bits_of(zero) << i;
  }
  const uint64_t valid = header.count == 0 ? 0 : ~uint64_t{0} >> (64 - header.count);
  return escaped & valid;
}

// Spreads the next values to the positions of two bytes of the mask: 16 coefficients in zig-zag order.
inline uint8x16_t spread(const int8_t** values, uint64_t mask, int bit) {
  const unsigned low = mask >> bit & 255, high = mask >> (bit + 8) & 255;
  const int8_t* at = *values;
  const int8_t* then = at + __builtin_popcount(low);
  *values = then + __builtin_popcount(high);
  const uint8x8_t first = vtbl1_u8(vreinterpret_u8_s8(vld1_s8(at)), vld1_u8(kTables.spread[low]));
  const uint8x8_t second = vtbl1_u8(vreinterpret_u8_s8(vld1_s8(then)), vld1_u8(kTables.spread[high]));
  return vcombine_u8(first, second);
}

// Deposits the low bits of `which` at the set bits of `mask`, in order (as pdep does).
inline uint64_t deposit(uint64_t which, uint64_t mask) {
  uint64_t found = 0;
  for (; which; which >>= 1, mask &= mask - 1)
    if (which & 1) found |= mask & -mask;
  return found;
}

bool expand_block(const DctBlockHeader& header, int16_t dc, JCOEF* block) {
  if (header.mask) {
    alignas(16) int8_t values[64 + 8];
    const uint64_t escaped = unpack(header, values);
    const int8_t* next = values;
    uint8x16x4_t in_zigzag;
    for (int q = 0; q < 4; q++) in_zigzag.val[q] = spread(&next, header.mask, 16 * q);
    for (int q = 0; q < 4; q++) {
      const int8x16_t row = vreinterpretq_s8_u8(vqtbl4q_u8(in_zigzag, vld1q_u8(kTables.zigzag + 16 * q)));
      vst1q_s16(block + 16 * q, vmovl_s8(vget_low_s8(row)));
      vst1q_s16(block + 16 * q + 8, vmovl_high_s8(row));
    }
    if (!put_escapes(header, deposit(escaped, header.mask), block, kNaturalOrder)) return false;
  } else if (header.next != header.escapes) {
    return false;
  }
  block[0] = dc;
  return true;
}

bool expand(DctCursor* cursor, const int* component, int count, JBLOCKROW* blocks) {
  return for_each_block(cursor, component, count, [&](const DctBlockHeader& header, int16_t dc, int b) {
    return expand_block(header, dc, blocks[b][0]);
  });
}

bool skip(DctCursor* cursor, const int* component, int count) {
  return for_each_block(cursor, component, count, [](const DctBlockHeader&, int16_t, int) { return true; });
}

}  // namespace

const DctExpander& dct_expander_neon() {
  static const DctExpander kNeon = {expand, skip};
  return kNeon;
}

}  // namespace fastload

#endif  // FASTLOAD_ARM
