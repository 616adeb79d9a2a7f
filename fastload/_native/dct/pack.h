// Packs one block into its smallest form.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>

#include <jpeglib.h>

namespace fastload {

// Bytes that must be writable at the destination of a block; it takes fewer.
constexpr size_t kDctPackedRoom = 320;

// Packs `zigzag`, a block's quantised coefficients in zig-zag order, to `out` (SPECIFICATION.md, "A block").
// The DC is coded as the difference from `*prediction`, which becomes the block's DC. Returns the end;
// nullptr: a coefficient is outside the range of baseline JPEG.
uint8_t* dct_pack_block(const JCOEF* zigzag, int16_t* prediction, uint8_t* out);

// Faster versions; all write the same bytes.
using DctPacker = uint8_t* (*)(const JCOEF* zigzag, int16_t* prediction, uint8_t* out);
// nullptr if not compiled (another processor family). Call it only if the processor has the instructions.
DctPacker dct_packer_avx512();

// The fastest packer on this machine.
DctPacker dct_packer();

}  // namespace fastload
