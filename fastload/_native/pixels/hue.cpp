// Hue: conversion to HSV in 8 bits, a shift modulo 256, and back, as in Pillow's Convert.c.
//
// Pillow mixes float and double; each intermediate here has Pillow's type.
#include <algorithm>

#include "pixels/internal.h"

namespace fastload {

namespace {

constexpr int kBlock = 256;  // pixels whose intermediates stay in the L1 cache

// Rounds halves away from zero, like round(), for values from 0 to 255.
FASTLOAD_LOOP inline int rounded(double value) {
  const int whole = static_cast<int>(value);
  return whole + (value - static_cast<double>(whole) >= 0.5 ? 1 : 0);
}

FASTLOAD_LOOP inline void shift_block(uint8_t* __restrict red, uint8_t* __restrict green,
                                      uint8_t* __restrict blue, int count, int shift, const float* fraction,
                                      const int32_t* sextant, const float* share) {
  float plus[kBlock], minus[kBlock], base[kBlock], shares[kBlock], parts[kBlock];
  int32_t value[kBlock], hues[kBlock], saturation[kBlock], p[kBlock], q[kBlock], t[kBlock];
  for (int i = 0; i < count; ++i) {
    const int r = red[i], g = green[i], b = blue[i];
    const int upper = r > g ? r : g, lower = r > g ? g : r;
    const int most = upper > b ? upper : b, least = lower < b ? lower : b;
    const float range = static_cast<float>(most - least + (most == least));
    // The hue is bc - gc, 2 + rc - bc or 4 + gc - rc, depending on the largest channel; rc is (most - r) /
    // range. By masks, because GCC vectorises no loop with branches.
    const int is_red = -static_cast<int>(r == most), is_green = -static_cast<int>(g == most) & ~is_red;
    const int is_blue = ~(is_red | is_green);
    plus[i] = static_cast<float>(most - ((b & is_red) | (r & is_green) | (g & is_blue))) / range;
    minus[i] = static_cast<float>(most - ((g & is_red) | (b & is_green) | (r & is_blue))) / range;
    base[i] = static_cast<float>((2 & is_green) | (4 & is_blue));
    value[i] = most;
    shares[i] = static_cast<float>(most - least) / static_cast<float>(most + (most == 0));
  }
  for (int i = 0; i < count; ++i) {
    // In double Pillow's bc - gc is exact, so it is rounded once here too.
    const float hue = static_cast<float>(static_cast<double>(base[i]) + static_cast<double>(plus[i]) -
                                         static_cast<double>(minus[i]));
    double turn = static_cast<double>(hue) / 6.0 + 1.0;
    turn = turn >= 1.0 ? turn - 1.0 : turn;  // fmod(turn, 1), because turn is below 2
    const float h = static_cast<float>(turn);
    hues[i] = (static_cast<int>(static_cast<double>(h) * 255.0) + shift) & 255;
    saturation[i] = static_cast<int>(static_cast<double>(shares[i]) * 255.0);
  }
  for (int i = 0; i < count; ++i) {
    parts[i] = fraction[hues[i]];
    shares[i] = share[saturation[i]];
    hues[i] = sextant[hues[i]];
  }
  // For gray, the saturation is 0, so p, q and t equal the value whatever the hue.
  for (int i = 0; i < count; ++i) {
    const double v = static_cast<double>(value[i]), fs = static_cast<double>(shares[i]);
    p[i] = rounded(v * (1.0 - fs));
    q[i] = rounded(v * (1.0 - static_cast<double>(shares[i] * parts[i])));
    t[i] = rounded(v * (1.0 - fs * (1.0 - static_cast<double>(parts[i]))));
  }
  for (int i = 0; i < count; ++i) {
    int is[6];
    for (int k = 0; k < 6; ++k) is[k] = -static_cast<int>(hues[i] == k);
    const int v = value[i];
    red[i] = static_cast<uint8_t>((v & (is[0] | is[5])) | (q[i] & is[1]) | (p[i] & (is[2] | is[3])) |
                                  (t[i] & is[4]));
    green[i] = static_cast<uint8_t>((t[i] & is[0]) | (v & (is[1] | is[2])) | (q[i] & is[3]) |
                                    (p[i] & (is[4] | is[5])));
    blue[i] = static_cast<uint8_t>((p[i] & (is[0] | is[1])) | (t[i] & is[2]) | (v & (is[3] | is[4])) |
                                   (q[i] & is[5]));
  }
}

}  // namespace

void hue(Canvas* canvas, int shift) {
  float fraction[256], share[256];  // share: level / 255
  int32_t sextant[256];
  for (int h = 0; h < 256; ++h) {
    const double sixths = static_cast<double>(static_cast<float>(h)) * 6.0 / 255.0;
    const int whole = static_cast<int>(sixths);
    fraction[h] = static_cast<float>(sixths - static_cast<double>(static_cast<float>(whole)));
    sextant[h] = whole % 6;
    share[h] = static_cast<float>(static_cast<double>(h) / 255.0);
  }
  uint8_t *red = canvas->plane(0), *green = canvas->plane(1), *blue = canvas->plane(2);
  const size_t area = canvas->area();
  const float *fractions = fraction, *shares = share;
  const int32_t* sextants = sextant;
  vectorised([=]() FASTLOAD_LOOP {
    for (size_t at = 0; at < area; at += kBlock) {
      const int count = static_cast<int>(std::min<size_t>(kBlock, area - at));
      shift_block(red + at, green + at, blue + at, count, shift, fractions, sextants, shares);
    }
  });
}

}  // namespace fastload
