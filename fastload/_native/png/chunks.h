// The chunks of a PNG file, read and judged as Pillow does.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "png/inflate.h"

namespace fastload {

// Colour types, as IHDR has them.
enum class PngColour : uint8_t { kGray = 0, kRgb = 2, kPalette = 3, kGrayAlpha = 4, kRgba = 6 };

struct PngFile {
  struct Part {
    const uint8_t* data;
    size_t nbytes;
  };

  int width, height;
  int depth;  // bits per channel
  PngColour colour;
  bool interlaced;
  const uint8_t* palette;  // RGB, 3 bytes per entry; nullptr unless the colour type is kPalette
  int palette_size;
  std::vector<Part> parts;  // the compressed data: consecutive IDAT chunks
  size_t nbytes;            // of all parts

  int channels() const;
  int bits() const { return channels() * depth; }  // per pixel
  // Bytes per pixel, at least 1: the distance of bytes that filters compare.
  int step() const { return (bits() + 7) / 8; }
  // Bytes of a row of `count` pixels, without its filter's byte.
  size_t row_nbytes(int count) const {
    return (static_cast<size_t>(count) * static_cast<size_t>(bits()) + 7) / 8;
  }
};

// False: the file is not a PNG, or is damaged, animated or unusual, so that Pillow decides. What `file`
// refers to lies in data. `inflater` is used to measure compressed profiles and texts.
bool read_png_chunks(const uint8_t* data, size_t nbytes, Inflater* inflater, PngFile* file);

}  // namespace fastload
