// Where coefficients come from: DCT records (dct.h) or Huffman codes (entropy.h).
#pragma once

#include <cstdint>

namespace fastload {

// Where the blocks of MCUs go that lie side by side: each block of the first one, and how many coefficients
// further that of the next.
struct BlockRun {
  static constexpr int kMostBlocks = 6;  // of an MCU
  int16_t* first[kMostBlocks];
  int step[kMostBlocks];
};

class CoefficientSource {
 public:
  static constexpr int kMostRows = 2;

  // How many rows of MCUs, from this one on, are best read together: 1 to kMostRows.
  virtual int together(int /*row*/) { return 1; }

  // The MCUs of columns [first, last) of `rows` rows into blocks of zeros, in the order of a scan; a run for
  // each row. No more rows than were asked to be read together. Rows, and columns in a row, only grow from
  // call to call. False: damaged.
  virtual bool read(int row, int rows, int first, int last, const BlockRun* to) = 0;

 protected:
  ~CoefficientSource() = default;
};

}  // namespace fastload
