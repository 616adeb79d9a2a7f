// Where coefficients come from: DCT records (dct/record.h) or Huffman codes (jpeg/entropy.h).
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
  // The MCUs of columns [first, last) of a row into blocks of zeros, in the order of a scan. Rows, and
  // columns in a row, only grow from call to call. False: damaged.
  virtual bool read(int row, int first, int last, const BlockRun& to) = 0;

 protected:
  ~CoefficientSource() = default;
};

}  // namespace fastload
