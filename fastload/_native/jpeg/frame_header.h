// What an image's header says about converting coefficients to pixels, for the common kinds of JPEG.
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
  int h, v;        // blocks of luma in an MCU, across and down; chroma has one each
  int mcus_per_row, mcu_rows;
  alignas(64) uint16_t quant[3][64];  // row by row

  int mcu_width() const { return 8 * h; }
  int mcu_height() const { return 8 * v; }
  int blocks_in_mcu() const { return components == 1 ? 1 : h * v + 2; }
};

// Reads a frame header, after jpeg_read_header or from a DCT record. False: libjpeg must decode this kind of
// image. Supported are gray and YCbCr with 8 bits in a single sequential scan, chroma sampled 1 x 1 and luma
// up to 2 x 2, unless the image is so narrow that libjpeg upsamples by repeating samples.
bool read_frame_header(const jpeg_decompress_struct& cinfo, FrameHeader* frame);
bool read_frame_header(const DctImage& image, FrameHeader* frame);

}  // namespace fastload
