#include "jpeg/entropy_blocks.h"

#include <cstring>

#include "dct/expand.h"
#include "dct/format.h"

namespace fastload {
namespace {

#define FASTLOAD_INLINE inline __attribute__((always_inline))
#define FASTLOAD_LAMBDA __attribute__((always_inline))

// Where a coefficient goes, by its zig-zag index. Indices beyond the block, those of its end among them,
// stand for its last coefficient.
struct Order {
  uint8_t at[63 + 16 + kEndOfBlock];
  constexpr explicit Order(bool natural) : at() {
    for (int k = 0; k < static_cast<int>(sizeof(at)); k++) {
      const int inside = k < 64 ? k : 63;
      at[k] = natural ? kDctNaturalOrder[inside] : static_cast<uint8_t>(inside);
    }
  }
};
constexpr Order kNatural(true), kZigzag(false);

// Brings the reader to 56 bits or more, without a branch. Reads 8 bytes.
FASTLOAD_INLINE void refill(BitReader* reader) {
  uint64_t next;
  std::memcpy(&next, reader->at, sizeof(next));
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
  next = __builtin_bswap64(next);
#endif
  reader->bits |= next >> reader->count;
  reader->at += (63 - reader->count) >> 3;
  reader->count |= 56;
}

FASTLOAD_INLINE void take(BitReader* reader, int count) {
  reader->bits <<= count;
  reader->count -= count;
}

// The value in the bits behind the code: F.2.2.1, EXTEND.
FASTLOAD_INLINE int value_of(uint64_t bits, HuffmanSymbol symbol) {
  const uint64_t at = bits << symbol.length;
  const int magnitude = static_cast<int>(at >> 1 >> (63 - symbol.size));
  const int negative = ~static_cast<int>(static_cast<int64_t>(at) >> 63);
  return magnitude - (negative & ((1 << symbol.size) - 1));
}

// The DC difference. Needs no refill before, and leaves 29 bits. False: no such code, or data at its end.
FASTLOAD_INLINE bool difference(BitReader* reader, const uint8_t* end, const HuffmanTable& table,
                                int* value) {
  if (__builtin_expect(reader->at > end + sizeof(uint64_t), 0)) return false;
  refill(reader);
  const uint32_t entry = table.whole(reader->bits);
  if (__builtin_expect(entry != 0, 1)) {
    *value = Whole::dc_value(entry);
    take(reader, Whole::nbits(entry));
    return true;
  }
  const HuffmanSymbol symbol = table.find(reader->bits);
  *value = value_of(reader->bits, symbol);
  take(reader, symbol.length + symbol.size);
  return symbol.length != 0;
}

FASTLOAD_INLINE bool ended_well(uint32_t k) {
  return k == 63 || k - kEndOfBlock < 63;
}

// One symbol, whatever its length, and whatever it does to the index; `out` may be null.
template <const Order& kOrder>
FASTLOAD_INLINE bool any_symbol(BitReader* reader, const HuffmanTable& table, int16_t* out, uint32_t* k) {
  const HuffmanSymbol symbol = table.find(reader->bits);
  *k += static_cast<uint32_t>(symbol.advance);
  if (out) {
    out[63] = 0;  // what a second symbol that belongs to the next block may have left there
    out[kOrder.at[*k]] = static_cast<int16_t>(value_of(reader->bits, symbol));
  }
  take(reader, symbol.length + symbol.size);
  return symbol.length != 0;
}

// The AC coefficients of one block. False: not a block.
template <const Order& kOrder>
FASTLOAD_INLINE bool read_coefficients(BitReader* reader, const HuffmanTable& table, int16_t* out) {
  // Two look-ups leave enough bits for any symbol, and so does a third one for the next refill.
  static_assert(56 - 2 * HuffmanTable::kWideBits >= HuffmanTable::kMaxSymbol);
  uint32_t k = 0;
  for (;;) {
    refill(reader);
    for (int i = 0; i < 3; i++) {
      const uint32_t entry = table.whole(reader->bits);
      const uint32_t next = k + Whole::advance(entry);
      if (__builtin_expect(entry != 0, 1)) {
        out[kOrder.at[k + Whole::first_advance(entry)]] = static_cast<int16_t>(Whole::first_value(entry));
        out[kOrder.at[next]] = static_cast<int16_t>(Whole::value(entry));
      }
      // The second symbol may belong to the next block already.
      if (__builtin_expect(entry == 0 || (next >= 63 && !ended_well(next)), 0)) {
        if (!any_symbol<kOrder>(reader, table, out, &k)) return false;
        if (k >= 63) return ended_well(k);
        break;
      }
      take(reader, Whole::nbits(entry));
      k = next;
      if (k >= 63) return true;
    }
  }
}

// Past the AC coefficients of one block. False: not a block.
FASTLOAD_INLINE bool pass_coefficients(BitReader* reader, const HuffmanTable& table) {
  static_assert(56 - HuffmanTable::kMaxPassed >= HuffmanTable::kMaxSymbol);
  uint32_t k = 0;
  for (;;) {
    refill(reader);
    for (int i = 0; i < 2; i++) {
      const uint32_t entry = table.passed(reader->bits);
      const uint32_t next = k + (entry >> 6);
      if (__builtin_expect(entry == 0 || (next >= 63 && !ended_well(next)), 0)) {
        if (!any_symbol<kNatural>(reader, table, nullptr, &k)) return false;
        if (k >= 63) return ended_well(k);
        break;
      }
      take(reader, static_cast<int>(entry & 63));
      k = next;
      if (k >= 63) return true;
    }
  }
}

// `block_of`: where the b-th block goes.
template <const Order& kOrder, typename BlockOf>
FASTLOAD_INLINE bool decode_mcu(EntropyScan* scan, BlockOf block_of) {
  BitReader reader = scan->reader;
  unsigned wild = 0;
  for (int b = 0; b < scan->blocks_in_mcu; b++) {
    const EntropyBlock& block = scan->blocks[b];
    int16_t* out = block_of(b);
    int value;
    if (!difference(&reader, scan->end, *block.dc, &value)) return false;
    value += scan->prediction[block.component];
    scan->prediction[block.component] = value;
    wild |= static_cast<unsigned>(value + 32768);
    out[0] = static_cast<int16_t>(value);
    if (!read_coefficients<kOrder>(&reader, *block.ac, out)) return false;
  }
  scan->reader = reader;
  return wild <= 65535;
}

FASTLOAD_INLINE bool pass_mcus(EntropyScan* scan, int64_t mcus) {
  BitReader reader = scan->reader;
  unsigned wild = 0;
  for (; mcus > 0; mcus--) {
    for (int b = 0; b < scan->blocks_in_mcu; b++) {
      const EntropyBlock& block = scan->blocks[b];
      int value;
      if (!difference(&reader, scan->end, *block.dc, &value)) return false;
      value += scan->prediction[block.component];
      scan->prediction[block.component] = value;
      wild |= static_cast<unsigned>(value + 32768);
      if (!pass_coefficients(&reader, *block.ac)) return false;
    }
    if (wild > 65535) return false;
  }
  scan->reader = reader;
  return true;
}

FASTLOAD_INLINE bool next_dc(BitReader* reader, EntropyScan* scan, const EntropyBlock& block, unsigned* wild,
                             int* value) {
  if (!difference(reader, scan->end, *block.dc, value)) return false;
  *value += scan->prediction[block.component];
  scan->prediction[block.component] = *value;
  *wild |= static_cast<unsigned>(*value + 32768);
  return true;
}

FASTLOAD_INLINE bool decode_run(EntropyScan* scan, const BlockRun& to, int mcus) {
  BitReader reader = scan->reader;
  unsigned wild = 0;
  for (int m = 0; m < mcus; m++) {
    for (int b = 0; b < scan->blocks_in_mcu; b++) {
      const EntropyBlock& block = scan->blocks[b];
      int16_t* out = to.first[b] + m * to.step[b];
      int value;
      if (!next_dc(&reader, scan, block, &wild, &value)) return false;
      out[0] = static_cast<int16_t>(value);
      if (!read_coefficients<kNatural>(&reader, *block.ac, out)) return false;
    }
  }
  scan->reader = reader;
  return wild <= 65535;
}

FASTLOAD_INLINE bool natural_mcu(EntropyScan* scan, JBLOCKROW* blocks) {
  return decode_mcu<kNatural>(scan, [blocks](int b) FASTLOAD_LAMBDA { return blocks[b][0]; });
}

FASTLOAD_INLINE bool zigzag_mcu(EntropyScan* scan, JCOEF (*blocks)[DCTSIZE2]) {
  return decode_mcu<kZigzag>(scan, [blocks](int b) FASTLOAD_LAMBDA { return blocks[b]; });
}

constexpr EntropyCoder kPlain = {
    [](EntropyScan* scan, JBLOCKROW* blocks) { return natural_mcu(scan, blocks); },
    [](EntropyScan* scan, JCOEF (*blocks)[DCTSIZE2]) { return zigzag_mcu(scan, blocks); },
    [](EntropyScan* scan, const BlockRun& to, int mcus) { return decode_run(scan, to, mcus); },
    [](EntropyScan* scan, int64_t mcus) { return pass_mcus(scan, mcus); }};

#if defined(__x86_64__)

#define FASTLOAD_BMI2 __attribute__((target("bmi,bmi2")))

FASTLOAD_BMI2 bool decode_bmi2(EntropyScan* scan, JBLOCKROW* blocks) {
  return natural_mcu(scan, blocks);
}
FASTLOAD_BMI2 bool decode_zigzag_bmi2(EntropyScan* scan, JCOEF (*blocks)[DCTSIZE2]) {
  return zigzag_mcu(scan, blocks);
}
FASTLOAD_BMI2 bool pass_bmi2(EntropyScan* scan, int64_t mcus) {
  return pass_mcus(scan, mcus);
}
FASTLOAD_BMI2 bool decode_run_bmi2(EntropyScan* scan, const BlockRun& to, int mcus) {
  return decode_run(scan, to, mcus);
}
constexpr EntropyCoder kBmi2 = {decode_bmi2, decode_zigzag_bmi2, decode_run_bmi2, pass_bmi2};

#endif

}  // namespace

const EntropyCoder& entropy_coder() {
#if defined(__x86_64__)
  // Every expander of DCT records but the portable one has BMI2; tests choose among them.
  if (&dct_expander() != &dct_expander_scalar()) return kBmi2;
#endif
  return kPlain;
}

}  // namespace fastload
