// Expands a record's blocks into libjpeg's coefficient blocks, one MCU at a time.
#pragma once

#include <cstdint>
#include <cstdio>

#include <jpeglib.h>

namespace fastload {

// Position of the next block, and the DC values that it is predicted from.
struct DctCursor {
  const uint8_t* at;
  const uint8_t* end;  // of the record's data: no byte from here on is read
  int16_t prediction[3];
};

// The functions of one instruction set. All give the same coefficients and reject the same blocks.
struct DctExpander {
  // Expands into blocks[0..count), which must hold zeros, and advances the cursor. False: the data is
  // invalid; the cursor and the blocks may be in any state.
  bool (*expand)(DctCursor* cursor, const int* component, int count, JBLOCKROW* blocks);
  // Advances the cursor without storing coefficients.
  bool (*skip)(DctCursor* cursor, const int* component, int count);
};

const DctExpander& dct_expander_scalar();
const DctExpander& dct_expander_avx2();
const DctExpander& dct_expander_avx512();
const DctExpander& dct_expander_neon();

// The expander of simd_in_use().
const DctExpander& dct_expander();

}  // namespace fastload
