// Rows of every colour type as RGB, with Pillow's conversions: alpha and tRNS are dropped, 16-bit colours
// keep their high byte, and 16-bit gray levels above 255 become 255.
#pragma once

#include <cstddef>
#include <cstdint>

#include "png/chunks.h"

namespace fastload {

// Bytes past the last needed pixel that may be read, and past the last RGB pixel that may be written.
constexpr size_t kExpandSlack = 16;

class Expander {
 public:
  // Reads the palette. The file must outlive this object.
  explicit Expander(const PngFile& file);

  // `count` pixels from pixel `first` of a row without its filter.
  void rgb(const uint8_t* row, int first, int count, uint8_t* to);

  // The same for an image with one channel of up to 8 bits: its palette's indices or its gray levels.
  void levels(const uint8_t* row, int first, int count, uint8_t* to) const;

  // Whether a pixel was no entry of the palette. Versions of Pillow differ in its colour.
  bool outside_palette() const { return (seen_ & kAbsent) != 0; }

 private:
  static constexpr uint32_t kAbsent = 0xFF000000;

  const PngFile& file_;
  uint32_t palette_[256];
  uint32_t seen_ = 0;
};

}  // namespace fastload
