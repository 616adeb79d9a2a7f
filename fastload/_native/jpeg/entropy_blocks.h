// The inner loops of the Huffman decoder: decode coefficients, or skip blocks that are not needed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>

#include <jpeglib.h>

#include "jpeg/coefficients.h"
#include "jpeg/entropy_table.h"

namespace fastload {

// Readable bytes required after the data: more than one block can take.
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

// A scan that is being decoded.
struct EntropyScan {
  BitReader reader;
  const uint8_t *begin, *end;  // of the data, without stuffing
  int prediction[3];           // DC of each component's previous block
  int blocks_in_mcu;
  EntropyBlock blocks[D_MAX_BLOCKS_IN_MCU];
};

// The functions of one instruction set. Each returns false if libjpeg must decode the file: invalid data, or
// a DC value beyond 16 bits.
struct EntropyKernels {
  // Decodes one MCU into blocks of zeros.
  bool (*decode)(EntropyScan* scan, JBLOCKROW* blocks);
  // The same, in zig-zag order.
  bool (*decode_zigzag)(EntropyScan* scan, JCOEF (*blocks)[DCTSIZE2]);
  // Decodes MCUs that lie side by side.
  bool (*decode_run)(EntropyScan* scan, const BlockRun& to, int mcus);
  // Skips MCUs, but keeps the DC predictions.
  bool (*skip)(EntropyScan* scan, int64_t mcus);
};

// The fastest kernels on this machine.
const EntropyKernels& entropy_kernels();

// Moves the reader to a bit of the data.
inline void entropy_seek(EntropyScan* scan, int64_t bit) {
  const int inside = static_cast<int>(bit & 7);
  const uint8_t* const at = scan->begin + (bit >> 3);
  scan->reader = BitReader{uint64_t{*at} << 56 << inside, 8 - inside, at + 1};
}

// Bits consumed so far; more than there are if the data ended early.
inline int64_t entropy_position(const EntropyScan& scan) {
  return (scan.reader.at - scan.begin) * 8 - scan.reader.count;
}

}  // namespace fastload
