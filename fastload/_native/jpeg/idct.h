// Inverse DCT, bit for bit what libjpeg-turbo's SIMD code computes for JDCT_ISLOW on x86-64.
#pragma once

#include <cstddef>
#include <cstdint>

namespace fastload {

// Transforms `count` blocks of quantised coefficients (64 each, row-major), which lie side by side in a row
// of blocks, to 8 rows of 8 * count samples, `stride` bytes apart. `quant` is in the order of the
// coefficients. Blocks and quant must be 64-byte aligned; samples need no alignment, and nothing else is
// written.
//
// Source of the arithmetic: libjpeg-turbo, simd/x86_64/jidctint-sse2.asm: products of 16 bits that wrap, sums
// of 16 bits that wrap, packing that saturates, and its shortcut for a block whose rows 1 to 7 are zero.
using InverseDct = void (*)(const int16_t* blocks, int count, const uint16_t* quant, uint8_t* samples,
                            ptrdiff_t stride);

// That of simd_in_use().
InverseDct inverse_dct();

InverseDct inverse_dct_scalar();
InverseDct inverse_dct_avx2();
InverseDct inverse_dct_avx512();
InverseDct inverse_dct_neon();

}  // namespace fastload
