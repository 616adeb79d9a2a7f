// The interface between sources of coefficients, which are DCT records (dct/record.h) and Huffman codes
// (jpeg/entropy.h), and PlaneDecoder (jpeg/planes.h).
#pragma once

#include <cstdint>

namespace fastload {

// Destination of the blocks of several MCUs side by side: where each block of the first MCU goes, and the
// distance in coefficients to the same block of the next MCU.
struct BlockRun {
  static constexpr int kMostBlocks = 6;  // in an MCU
  int16_t* first[kMostBlocks];
  int step[kMostBlocks];
};

class CoefficientSource {
 public:
  // Reads the MCUs of columns [first, last) of a row into blocks of zeros, in scan order. Rows only increase
  // from call to call, and so do columns within a row. False: the data is damaged.
  virtual bool read(int row, int first, int last, const BlockRun& to) = 0;

 protected:
  ~CoefficientSource() = default;
};

}  // namespace fastload
