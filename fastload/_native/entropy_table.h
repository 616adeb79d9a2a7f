// Look-up tables for one Huffman code of a baseline JPEG (ITU-T T.81 annex C and F.2.2).
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>

#include <jpeglib.h>

namespace fastload {

// What the zig-zag index grows by at the end of a block, so that this end is a symbol like any other: an
// index of kEndOfBlock and more has passed one.
constexpr int kEndOfBlock = 128;

// A symbol: the coefficient it stands for is preceded by advance - 1 zeros and coded in the `size` bits
// behind the code's `length`. advance is 0 for the DC difference; length 0: there is no such code.
struct HuffmanSymbol {
  uint8_t length, size, advance;
};

struct HuffmanTable {
  // Bits looked up at once. Measured: docs/performance.md.
  static constexpr int kBits = 11;
  static constexpr int kEntries = 1 << kBits;

  // By the next kBits bits: as many whole symbols with their values as lie in them, up to two. Bits 0 to 7
  // are how many bits they take, 8 to 15 and 16 to 23 the advance after all and after the first, 32 to 47 and
  // 48 to 63 the values, last and first. 0: not one symbol with its value lies in them.
  uint64_t whole[kEntries];
  // The code alone, where it lies in kBits.
  HuffmanSymbol first[kEntries];

  // False where libjpeg should do it: codes that 8-bit baseline files do not have.
  bool build(const JHUFF_TBL& table, bool ac);

  // The symbol at the top of `bits`, whatever its length.
  HuffmanSymbol find(uint64_t bits) const {
    const HuffmanSymbol symbol = first[bits >> (64 - kBits)];
    return __builtin_expect(symbol.length != 0, 1) ? symbol : find_long(bits);
  }

 private:
  HuffmanSymbol find_long(uint64_t bits) const;
  HuffmanSymbol symbol(int value, int length) const;
  bool same(const JHUFF_TBL& table, bool ac) const;
  void pair_up(const uint64_t* alone);

  bool built_ = false, ac_ = false;
  uint8_t counts_[17], symbols_[256];  // bits and huffval of the JHUFF_TBL
  int last_[17];                       // the greatest code of each length, -1: none
  int offset_[17];                     // index into symbols_, less the code
};

}  // namespace fastload
