// Hue: conversion to HSV in 8 bits, a shift modulo 256, and back, as in Pillow's Convert.c.
//
// Note [Single precision]
// Pillow mixes float and double. Here all is float, of which a register holds twice as many, and some of it
// is arranged otherwise. The levels are Pillow's: tests/native/test_hue.py tries every colour, and
// `make test-long` every colour with every shift.
//   To HSV    Of the two differences from the largest channel that Pillow divides by the range, one is the
//             range itself. So one division is enough, and the only sum that rounds is the last.
//   To RGB    255 hues are six sextants of 42.5 hues each: the fraction of a sextant is a number of 85ths.
//             Pillow's p, q and t are then quotients of integers below 2^24, which floats hold exactly, by
//             255 * 85. These are never nearer than 2.3e-5 to where rounding changes.
#include <algorithm>

#include "pixels/internal.h"

namespace fastload {

namespace {

constexpr int kBlock = 256;  // pixels whose intermediates stay in the L1 cache

constexpr float kWhole = 255.0f * 85.0f;

FASTLOAD_LOOP inline int rounded_part(float value, float parts) {
  return static_cast<int>(value * parts * (1.0f / kWhole) + 0.5f);
}

FASTLOAD_LOOP inline void shift_block(uint8_t* __restrict red, uint8_t* __restrict green,
                                      uint8_t* __restrict blue, int count, int shift) {
  float value[kBlock], saturation[kBlock];
  int32_t hues[kBlock];
  for (int i = 0; i < count; ++i) {
    const int r = red[i], g = green[i], b = blue[i];
    const int upper = r > g ? r : g, lower = r > g ? g : r;
    const int most = upper > b ? upper : b, least = lower < b ? lower : b;
    const int middle = r + g + b - most - least;
    // Red, yellow, green ... are whole numbers: 0, 1, 2 ... From one of the even ones, that of the largest
    // channel, the hue goes up or down, by 1 less the share of the middle channel. By masks, because GCC
    // vectorises no loop with branches.
    const int is_red = -static_cast<int>(r == most), is_green = -static_cast<int>(g == most) & ~is_red;
    const int is_blue = ~(is_red | is_green);
    const int before = (b & is_red) | (r & is_green) | (g & is_blue);
    const int up = before == least ? 1 : -1;
    const int middle_hue = ((2 & is_green) | (4 & is_blue)) + up;
    const float share =
        static_cast<float>(most - middle) / static_cast<float>(most - least + (most == least));
    const float signed_turn = (static_cast<float>(middle_hue) - static_cast<float>(up) * share) / 6.0f;
    const float turn = signed_turn + static_cast<float>(signed_turn < 0.0f);
    hues[i] = (static_cast<int>(turn * 255.0f) + shift) & 255;
    const float part = static_cast<float>(most - least) / static_cast<float>(most + (most == 0));
    saturation[i] = static_cast<float>(static_cast<int>(part * 255.0f));
    value[i] = static_cast<float>(most);
  }
  // For gray, the saturation is 0, so p, q and t equal the value whatever the hue.
  for (int i = 0; i < count; ++i) {
    const int sextant = (2 * hues[i] * 772) >> 16;  // 2 * hue / 85; 6 for a hue of 255
    const float over = static_cast<float>(2 * hues[i] - 85 * sextant);
    const int v = static_cast<int>(value[i]);
    const int p = rounded_part(value[i], kWhole - saturation[i] * 85.0f);
    const int q = rounded_part(value[i], kWhole - saturation[i] * over);
    const int t = rounded_part(value[i], kWhole - saturation[i] * (85.0f - over));
    of_sextant(sextant, v, p, q, t, red + i, green + i, blue + i);
  }
}

}  // namespace

void hue(Canvas* canvas, int shift) {
  uint8_t *red = canvas->plane(0), *green = canvas->plane(1), *blue = canvas->plane(2);
  const size_t area = canvas->area();
  vectorised([=]() FASTLOAD_LOOP {
    for (size_t at = 0; at < area; at += kBlock) {
      const int count = static_cast<int>(std::min<size_t>(kBlock, area - at));
      shift_block(red + at, green + at, blue + at, count, shift);
    }
  });
}

}  // namespace fastload
