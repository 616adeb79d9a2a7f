// What an image's header says of how its coefficients become pixels, for the common kinds.
#pragma once

#include <cstdint>
#include <cstdio>

#include <jpeglib.h>

#include "jpeg/ycc.h"

namespace fastload {

struct DctImage;

struct FrameHeader {
  int width, height;  // pixels
  Sampling sampling;
  int components;  // 1 or 3
  int h, v;        // blocks of luma in an MCU, across and down; of chroma there is one of each
  int mcus_per_row, mcu_rows;
  alignas(64) uint16_t quant[3][64];  // row by row

  int mcu_width() const { return 8 * h; }
  int mcu_height() const { return 8 * v; }
  int blocks_in_mcu() const { return components == 1 ? 1 : h * v + 2; }
};

// False: of another kind, which is for libjpeg. The kinds are gray and YCbCr of 8 bits in a single sequential
// scan, chroma sampled with 1 x 1 and luma with up to 2 x 2, and not so narrow that libjpeg upsamples by
// repeating samples.
// After jpeg_read_header.
bool frame_of(const jpeg_decompress_struct& cinfo, FrameHeader* frame);
bool frame_of(const DctImage& image, FrameHeader* frame);

}  // namespace fastload
