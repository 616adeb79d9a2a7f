// Undoes the filters of PNG rows (specification, 9.2). All instruction sets give the same bytes.
#pragma once

#include <cstddef>
#include <cstdint>

namespace fastload {

constexpr uint8_t kFilterNone = 0, kFilterSub = 1, kFilterUp = 2, kFilterAverage = 3, kFilterPaeth = 4;

// Bytes past the end of a row that may be read, and in `to` written.
constexpr size_t kRowSlack = 16;

// One row of nbytes from `from`, which follows the filter's byte, to `to`. `above`: the row above without its
// filter, zeros for the first one. `step`: PngFile::step(). The three rows do not overlap.
using Unfilter = void (*)(uint8_t filter, int step, const uint8_t* from, const uint8_t* above, uint8_t* to,
                          size_t nbytes);

// Two rows with Paeth's filter, the second one below the first, in little more time than one: each pixel
// waits for the one to its left, and two rows wait together. `above` is that of the first row. Otherwise as
// above.
using UnfilterTwo = void (*)(int step, const uint8_t* first, const uint8_t* second, const uint8_t* above,
                             uint8_t* to_first, uint8_t* to_second, size_t nbytes);

constexpr int kMostStepOfTwo = 4;  // pixels may be as large as this

// The functions for simd_in_use(); nullptr: there is none for two.
Unfilter unfilter_of_simd();
UnfilterTwo unfilter_two_of_simd();

}  // namespace fastload
