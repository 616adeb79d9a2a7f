// Hue: to HSV in 8 bits, a shift modulo 256, and back, as Pillow's Convert.c computes both ways.
//
// Where Pillow mixes float and double, so does this: each intermediate has Pillow's type.
#include <algorithm>

#include "pixels_internal.h"

namespace fastload {

namespace {

constexpr int kBlock = 256;  // pixels whose intermediates stay in the L1 cache

// Rounds halves away from zero, as round() does; for values from 0 to 255.
FASTLOAD_LOOP inline int rounded(double value) {
  const int whole = static_cast<int>(value);
  return whole + (value - static_cast<double>(whole) >= 0.5 ? 1 : 0);
}

FASTLOAD_LOOP inline void shift_block(uint8_t* red, uint8_t* green, uint8_t* blue, int count, int shift,
                                      const float* fraction, const int32_t* sextant) {
  float hue[kBlock];
  int32_t turned[kBlock], saturation[kBlock], value[kBlock];
  for (int i = 0; i < count; ++i) {
    const int r = red[i], g = green[i], b = blue[i];
    const int most = std::max(r, std::max(g, b)), least = std::min(r, std::min(g, b));
    const float range = static_cast<float>(std::max(most - least, 1));
    const float rc = static_cast<float>(most - r) / range;
    const float gc = static_cast<float>(most - g) / range;
    const float bc = static_cast<float>(most - b) / range;
    const float from_red = bc - gc;
    const float from_green = static_cast<float>(2.0 + static_cast<double>(rc) - static_cast<double>(bc));
    const float from_blue = static_cast<float>(4.0 + static_cast<double>(gc) - static_cast<double>(rc));
    hue[i] = r == most ? from_red : g == most ? from_green : from_blue;
    value[i] = most;
    const float s = static_cast<float>(most - least) / static_cast<float>(std::max(most, 1));
    saturation[i] = static_cast<int>(static_cast<double>(s) * 255.0);
  }
  for (int i = 0; i < count; ++i) {
    double turn = static_cast<double>(hue[i]) / 6.0 + 1.0;
    turn = turn >= 1.0 ? turn - 1.0 : turn;  // fmod(turn, 1) for turns below 2, which these are
    const float h = static_cast<float>(turn);
    turned[i] = (static_cast<int>(static_cast<double>(h) * 255.0) + shift) & 255;
  }
  for (int i = 0; i < count; ++i) {
    const double v = static_cast<double>(static_cast<float>(value[i]));
    const float f = fraction[turned[i]];
    const float fs = static_cast<float>(static_cast<double>(static_cast<float>(saturation[i])) / 255.0);
    const int p = rounded(v * (1.0 - static_cast<double>(fs)));
    const int q = rounded(v * (1.0 - static_cast<double>(fs * f)));
    const int t = rounded(v * (1.0 - static_cast<double>(fs) * (1.0 - static_cast<double>(f))));
    const int sixth = sextant[turned[i]], most = value[i];
    const int r = sixth == 0 || sixth == 5 ? most : sixth == 1 ? q : sixth == 4 ? t : p;
    const int g = sixth == 1 || sixth == 2 ? most : sixth == 0 ? t : sixth == 3 ? q : p;
    const int b = sixth == 3 || sixth == 4 ? most : sixth == 2 ? t : sixth == 5 ? q : p;
    // gray has no hue: no saturation leaves p, q and t at the value
    red[i] = static_cast<uint8_t>(r);
    green[i] = static_cast<uint8_t>(g);
    blue[i] = static_cast<uint8_t>(b);
  }
}

}  // namespace

void hue(Canvas* canvas, int shift) {
  float fraction[256];
  int32_t sextant[256];
  for (int h = 0; h < 256; ++h) {
    const double sixths = static_cast<double>(static_cast<float>(h)) * 6.0 / 255.0;
    const int whole = static_cast<int>(sixths);
    fraction[h] = static_cast<float>(sixths - static_cast<double>(static_cast<float>(whole)));
    sextant[h] = whole % 6;
  }
  uint8_t *red = canvas->plane(0), *green = canvas->plane(1), *blue = canvas->plane(2);
  const size_t area = canvas->area();
  vectorised([&]() FASTLOAD_LOOP {
    for (size_t at = 0; at < area; at += kBlock) {
      const int count = static_cast<int>(std::min<size_t>(kBlock, area - at));
      shift_block(red + at, green + at, blue + at, count, shift, fraction, sextant);
    }
  });
}

}  // namespace fastload
