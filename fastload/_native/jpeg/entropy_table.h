// Look-up tables for one Huffman code of a baseline JPEG (ITU-T T.81 annex C and F.2.2).
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>

#include <jpeglib.h>

namespace fastload {

// What the zig-zag index grows by at the end of a block, so that this end is a symbol like any other. It is
// more than the index can reach otherwise: from 62 by two symbols of 16.
constexpr int kEndOfBlock = 95;

// Of an AC symbol: by how much it moves the zig-zag index.
inline int huffman_advance(int symbol) {
  return symbol == 0 ? kEndOfBlock : (symbol >> 4) + 1;
}

// A symbol: the coefficient it stands for is preceded by advance - 1 zeros and coded in the `size` bits
// behind the code's `length`. advance is 0 for the DC difference; length 0: there is no such code.
struct HuffmanSymbol {
  int length, size, advance;
};

class HuffmanTable {
 public:
  // Bits looked up at once: more of them take longer to build and less to decode with. Measured: 11 bits are
  // 1 % faster than 10 on photos, slower below 192 pixels, and take twice the cache. 12 bits decode large
  // photos 8 to 14 % faster than 10, 13 bits no faster than 12.
  static constexpr int kBits = 10, kWideBits = 12;
  // The most bits that one of passed() stands for: a code within kWideBits, and an AC value.
  static constexpr int kMaxPassed = kWideBits + 10;
  // The most bits of a symbol: its code, and a DC value.
  static constexpr int kMaxSymbol = 16 + 11;

  // Of a code in a file. False where libjpeg should do it: codes that 8-bit baseline files do not have, or,
  // with kLazy, a code that is neither the one built last nor the one last given and not built.
  enum Effort { kLazy, kEager, kWide };
  bool build(const JHUFF_TBL& table, bool ac, Effort effort);

  // Of the next bits those that are looked up.
  uint64_t index(uint64_t bits) const { return bits >> shift_; }

  // The whole symbols within the bits looked up, values included, up to two of them: see Whole. 0: not one.
  uint32_t whole(uint64_t bits) const { return whole_[index(bits)]; }

  // The symbols whose codes lie within the bits looked up, up to three of them, where nobody wants their
  // values: bits 0 to 5 are their length with the values, the others the advance. 0: not one. AC only.
  uint32_t passed(uint64_t bits) const { return passed_[index(bits)]; }

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

  int shift_ = 64 - kBits;  // of the next bits, leaves those looked up
  uint32_t whole_[kMostEntries];
  uint16_t passed_[kMostEntries];
  uint16_t first_[kMostEntries];  // the code within: its symbol, and its length from bit 8 on; or 0
  int last_[17];                  // the greatest code of each length, -1: none
  int offset_[17];                // index into code_.symbols, less the code
  Code code_{}, refused_{};       // the one built, and the last one that was not
  bool built_ = false;
};

// What whole() packs: from bit 0 on the bits they take (6), the advance after all (7) and after the first
// (5), and their values, the last and the first (7 each, signed). A single one is there twice. The end of a
// block counts as a zero behind the last coefficient. A DC difference has 16 bits, from bit 16 on.
struct Whole {
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
