// The inner loops of the Huffman decoder: bits to coefficients, and past what nobody asked for.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>

#include <jpeglib.h>

#include "jpeg/coefficients.h"
#include "jpeg/entropy_table.h"

namespace fastload {

// Readable bytes that must follow the data: more than a block can take.
constexpr size_t kEntropySlack = 512;

// The next bits of the data, the first at the top of `bits`; `count` of them are valid.
struct BitReader {
  uint64_t bits;
  int count;
  const uint8_t* at;
};

struct EntropyBlock {
  const HuffmanTable* dc;
  const HuffmanTable* ac;
  int component;
};

// A scan under way.
struct EntropyScan {
  BitReader reader;
  const uint8_t *begin, *end;  // of the data, without stuffing
  int prediction[3];           // DC value of each component's block before
  int blocks_in_mcu;
  EntropyBlock blocks[D_MAX_BLOCKS_IN_MCU];
};

// Each gives false where libjpeg must be asked: impossible data, or a DC value beyond 16 bits.
struct EntropyCoder {
  // One MCU into blocks of zeros.
  bool (*decode)(EntropyScan* scan, JBLOCKROW* blocks);
  // The same in zig-zag order.
  bool (*decode_zigzag)(EntropyScan* scan, JCOEF (*blocks)[DCTSIZE2]);
  // MCUs that lie side by side.
  bool (*decode_run)(EntropyScan* scan, const BlockRun& to, int mcus);
  // Past so many MCUs.
  bool (*pass)(EntropyScan* scan, int64_t mcus);
};

// The fastest one on this machine.
const EntropyCoder& entropy_coder();

// Stands before a bit of the data.
inline void entropy_seek(EntropyScan* scan, int64_t bit) {
  const int inside = static_cast<int>(bit & 7);
  const uint8_t* const at = scan->begin + (bit >> 3);
  scan->reader = BitReader{uint64_t{*at} << 56 << inside, 8 - inside, at + 1};
}

// Bits taken from the data so far, more than there are if it ended early.
inline int64_t entropy_position(const EntropyScan& scan) {
  return (scan.reader.at - scan.begin) * 8 - scan.reader.count;
}

}  // namespace fastload
