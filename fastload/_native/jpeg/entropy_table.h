// Look-up tables for one Huffman code of a baseline JPEG (ITU-T T.81 annex C and F.2.2).
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>

#include <jpeglib.h>

namespace fastload {

// The zig-zag index grows by this at the end of a block, so that the end of block is a symbol like any other.
// It exceeds every other index: the largest is 62 plus two symbols of 16.
constexpr int kEndOfBlock = 95;

// By how much an AC symbol advances the zig-zag index.
inline int huffman_advance(int symbol) {
  return symbol == 0 ? kEndOfBlock : (symbol >> 4) + 1;
}

// A symbol: advance - 1 zeros, then a coefficient whose value is coded in the `size` bits after the code of
// `length` bits. advance is 0 for a DC difference; length 0: there is no such code.
struct HuffmanSymbol {
  int length, size, advance;
};

class HuffmanTable {
 public:
  // Bits looked up at once: more bits take longer to build and less time to decode. Training crops of photos
  // on a Zen 5 took 473-481 us with 10 bits, 467-474 with 11 (slower below 192 pixels, and twice the cache),
  // 495 with 12, and 547 with 9. 12 bits decode large photos 8 to 14 % faster than 10; 13 bits are no faster.
  static constexpr int kBits = 10, kWideBits = 12;
  // The most bits that one skip entry stands for: a code of kWideBits and an AC value.
  static constexpr int kMaxSkipBits = kWideBits + 10;
  // The most bits of one symbol: its code and a DC value.
  static constexpr int kMaxSymbol = 16 + 11;

  // Builds the tables for a code of a file. False if libjpeg should decode the file: it has codes that 8-bit
  // baseline files do not have, or, with kLazy, the code is neither the one built last nor the last one
  // refused (kLazy refuses a code the first time). kWide: tables of kWideBits.
  enum Effort { kLazy, kEager, kWide };
  bool build(const JHUFF_TBL& table, bool ac, Effort effort);

  // The leading bits that index the tables.
  uint64_t index(uint64_t bits) const { return bits >> shift_; }

  // Up to two whole symbols with their values, if they fit into the bits looked up: see SymbolPair. 0: none
  // fits.
  uint32_t pair(uint64_t bits) const { return pairs_[index(bits)]; }

  // Up to three symbols whose codes lie within the bits looked up, without values. Bits 0 to 5: their length
  // including the values; the others: the advance. 0: none. AC only.
  uint32_t skip_entry(uint64_t bits) const { return skips_[index(bits)]; }

  // The next symbol, whatever its length.
  HuffmanSymbol find(uint64_t bits) const {
    const int known = first_[index(bits)];
    return __builtin_expect(known != 0, 1) ? symbol(known & 255, known >> 8) : find_long(bits);
  }

 private:
  struct Code {
    bool ac;
    uint8_t counts[17], symbols[256];  // bits and huffval of the JHUFF_TBL
    bool is(const JHUFF_TBL& table, bool with_ac) const;
  };

  bool fill();
  void pair_up(const uint32_t* alone);
  HuffmanSymbol find_long(uint64_t bits) const;
  HuffmanSymbol symbol(int value, int length) const {
    return {length, value & 15, code_.ac ? huffman_advance(value) : 0};
  }

  static constexpr int kMostEntries = 1 << kWideBits;

  int shift_ = 64 - kBits;  // leaves the bits that are looked up
  uint32_t pairs_[kMostEntries];
  uint16_t skips_[kMostEntries];
  uint16_t first_[kMostEntries];  // the first code: its symbol in bits 0 to 7, its length above; 0: none fits
  int last_[17];                  // the greatest code of each length, -1: none
  int offset_[17];                // index into code_.symbols, minus the code
  Code code_{}, refused_{};       // the one built, and the last one refused
  bool built_ = false;
};

// An entry of pair(). From bit 0 on: the number of bits (6 bits), the advance after all symbols (7) and after
// the first (5), the values of the last and of the first (7 each, signed). A single symbol is stored as both.
// The end of a block counts as a zero after the last coefficient. A DC difference is stored in 16 bits from
// bit 16 on.
struct SymbolPair {
  static constexpr int kAdvance = 6, kFirstAdvance = 13, kValue = 18, kFirstValue = 25;
  static constexpr int kMaxSize = 6;  // of AC values: -63 to 63

  static constexpr uint32_t pack(int nbits, int advance, int first_advance, int value, int first_value) {
    return static_cast<uint32_t>(nbits) | static_cast<uint32_t>(advance) << kAdvance |
           static_cast<uint32_t>(first_advance) << kFirstAdvance |
           static_cast<uint32_t>(value & 127) << kValue |
           static_cast<uint32_t>(first_value & 127) << kFirstValue;
  }
  static constexpr uint32_t pack_dc(int nbits, int value) {
    return static_cast<uint32_t>(nbits) | static_cast<uint32_t>(value) << 16;
  }
  static constexpr int dc_value(uint32_t entry) { return static_cast<int32_t>(entry) >> 16; }
  static constexpr int nbits(uint32_t entry) { return static_cast<int>(entry & 63); }
  static constexpr uint32_t advance(uint32_t entry) { return entry >> kAdvance & 127; }
  static constexpr uint32_t first_advance(uint32_t entry) { return entry >> kFirstAdvance & 31; }
  static constexpr int value(uint32_t entry) {
    return static_cast<int32_t>(entry << (32 - kFirstValue)) >> 25;
  }
  static constexpr int first_value(uint32_t entry) { return static_cast<int32_t>(entry) >> kFirstValue; }
};

}  // namespace fastload
