#include "png/expand.h"

#include <algorithm>
#include <cstring>

#include "base/bytes.h"
#include "base/x86.h"

namespace fastload {
namespace {

// Where a pixel's red, green and blue are, in bytes from its first one.
struct Channels {
  int nbytes, red, green, blue;
};

Channels channels_of(const PngFile& file) {
  const int width = file.depth / 8;
  const bool gray = file.colour == PngColour::kGray || file.colour == PngColour::kGrayAlpha;
  return {file.channels() * width, 0, gray ? 0 : width, gray ? 0 : 2 * width};
}

void pick(const uint8_t* from, const Channels& at, uint8_t* to, int count) {
  for (int i = 0; i < count; i++, from += at.nbytes, to += 3) {
    const uint8_t red = from[at.red], green = from[at.green], blue = from[at.blue];
    to[0] = red;
    to[1] = green;
    to[2] = blue;
  }
}

#ifdef FASTLOAD_X86

__attribute__((target("ssse3"))) void pick_ssse3(const uint8_t* from, const Channels& at, uint8_t* to,
                                                 int count) {
  const int together = std::min(5, 16 / at.nbytes);  // pixels that 16 bytes hold, before and after
  alignas(16) uint8_t order[16] = {};
  for (int pixel = 0; pixel < together; pixel++) {
    order[3 * pixel] = static_cast<uint8_t>(pixel * at.nbytes + at.red);
    order[3 * pixel + 1] = static_cast<uint8_t>(pixel * at.nbytes + at.green);
    order[3 * pixel + 2] = static_cast<uint8_t>(pixel * at.nbytes + at.blue);
  }
  const __m128i shuffle = _mm_load_si128(reinterpret_cast<const __m128i*>(order));
  for (int done = 0; done < count; done += together) {
    const __m128i pixels = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm_shuffle_epi8(pixels, shuffle));
    from += together * at.nbytes;
    to += 3 * together;
  }
}

#endif

void expand_channels(const uint8_t* from, const Channels& at, uint8_t* to, int count) {
#ifdef FASTLOAD_X86
  if (simd_in_use() >= Simd::kAvx2) return pick_ssse3(from, at, to, count);
#endif
  pick(from, at, to, count);
}

// Pixel `x` of a row with less than 8 bits per pixel.
int packed(const uint8_t* row, int x, int depth) {
  const int bit = x * depth;
  return row[bit / 8] >> (8 - depth - bit % 8) & ((1 << depth) - 1);
}

}  // namespace

Expander::Expander(const PngFile& file) : file_(file) {
  if (file.colour == PngColour::kPalette) {
    for (int i = 0; i < file.palette_size; i++) {
      const uint8_t* entry = file.palette + 3 * i;
      palette_[i] = static_cast<uint32_t>(entry[0] | entry[1] << 8 | entry[2] << 16);
    }
    for (int i = file.palette_size; i < 256; i++) palette_[i] = kAbsent;
  } else if (file.colour == PngColour::kGray && file.depth < 8) {
    const uint32_t most = (1u << file.depth) - 1;
    for (uint32_t i = 0; i <= most; i++) palette_[i] = i * (255 / most) * 0x010101u;
  }
}

void Expander::levels(const uint8_t* row, int first, int count, uint8_t* to) const {
  if (file_.depth == 8) {
    std::memcpy(to, row + first, static_cast<size_t>(count));
    return;
  }
  const int scale = file_.colour == PngColour::kPalette ? 1 : 255 / ((1 << file_.depth) - 1);
  for (int i = 0; i < count; i++) to[i] = static_cast<uint8_t>(packed(row, first + i, file_.depth) * scale);
}

void Expander::rgb(const uint8_t* row, int first, int count, uint8_t* to) {
  const bool one = file_.colour == PngColour::kGray || file_.colour == PngColour::kPalette;
  if (one && (file_.depth < 8 || file_.colour == PngColour::kPalette)) {
    uint32_t seen = 0;
    for (int i = 0; i < count; i++) {
      const uint32_t pixel =
          palette_[file_.depth == 8 ? row[first + i] : packed(row, first + i, file_.depth)];
      seen |= pixel;
      store_le(to + 3 * static_cast<ptrdiff_t>(i), pixel);  // the next pixel replaces the fourth byte
    }
    seen_ |= seen;
  } else if (one && file_.depth == 16) {
    const uint8_t* from = row + 2 * static_cast<ptrdiff_t>(first);
    for (int i = 0; i < count; i++, from += 2, to += 3) {
      to[0] = to[1] = to[2] = from[0] == 0 ? from[1] : uint8_t{255};
    }
  } else {
    const Channels at = channels_of(file_);
    expand_channels(row + static_cast<ptrdiff_t>(first) * at.nbytes, at, to, count);
  }
}

}  // namespace fastload
