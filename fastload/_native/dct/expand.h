// Expansion of a record's blocks into libjpeg's coefficient blocks, one MCU at a time.
#pragma once

#include <cstdint>
#include <cstdio>

#include <jpeglib.h>

namespace fastload {

// Where the next block begins, and what its DC value is told against.
struct DctCursor {
  const uint8_t* at;
  const uint8_t* end;  // of the record's data: nothing from here on is read
  int16_t prediction[3];
};

// One instruction set's way to expand. All give the same coefficients, and refuse the same blocks.
struct DctExpander {
  const char* name;
  // Fills blocks[0..count), which hold zeros, and moves the cursor behind them. False, with the cursor and
  // the blocks in any state: the data breaks the format.
  bool (*expand)(DctCursor* cursor, const int* component, int count, JBLOCKROW* blocks);
  // The same without storing.
  bool (*walk)(DctCursor* cursor, const int* component, int count);
};

const DctExpander& dct_expander_scalar();
// Only where the processor has them; nullptr where they were not compiled (another processor family).
const DctExpander* dct_expander_avx2();
const DctExpander* dct_expander_avx512();
const DctExpander* dct_expander_neon();  // every 64-bit ARM has it

// The fastest that this processor runs and that stands no higher than `name` ("": all of them) among scalar,
// neon, avx2, avx512. nullptr: there is no such name.
const DctExpander* dct_expander_named(const char* name);

// The fastest that this processor runs, no higher than FASTLOAD_SIMD or dct_set_simd says.
const DctExpander& dct_expander();

}  // namespace fastload
