// One block in its smallest form.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>

#include <jpeglib.h>

namespace fastload {

// Bytes that must be writable where a block is packed to; fewer are taken.
constexpr size_t kDctPackedRoom = 320;

// Packs `zigzag`, a block's quantised coefficients in zig-zag order, to `out`, its DC value told against
// `*prediction`, which becomes that value (docs/dct.md, "A block"). Returns the end; nullptr: a coefficient
// that no baseline JPEG holds.
uint8_t* dct_pack_block(const JCOEF* zigzag, int16_t* prediction, uint8_t* out);

// The same in less time; all give the same bytes.
using DctPacker = uint8_t* (*)(const JCOEF* zigzag, int16_t* prediction, uint8_t* out);
// Only where the processor has the instructions; nullptr where they were not compiled.
DctPacker dct_packer_avx512();

// The fastest one on this machine.
DctPacker dct_packer();

}  // namespace fastload
