// Pillow's box blur with a fractional radius, and its Gaussian blur, which is three of them in each
// direction. Sources: Pillow, BoxBlur.c; Gwosdek et al., "Theoretical foundations of Gaussian convolution by
// extended box filtering", SSVM 2011, equations 7, 11 and 14 (the box that has the variance of a Gaussian).
#include <algorithm>
#include <cmath>
#include <vector>

#include "pixels/internal.h"

namespace fastload {

namespace {

// The radius of each of three boxes, rounded to float where Pillow rounds it.
float gaussian_box(float sigma) {
  const float variance = sigma * sigma / 3;
  const float length = static_cast<float>(std::sqrt(12.0 * static_cast<double>(variance) + 1.0));
  const float whole = static_cast<float>(std::floor((static_cast<double>(length) - 1.0) / 2.0));
  float part = (2 * whole + 1) * (whole * (whole + 1) - 3 * variance);
  part /= 6 * (variance - (whole + 1) * (whole + 1));
  return whole + part;
}

// The weights of the pixels inside a box and of the two at its ends, in 24 bits of fraction.
struct Box {
  int radius;
  uint32_t inside, end;

  explicit Box(float wanted)
      : radius(static_cast<int>(wanted)),
        inside(static_cast<uint32_t>(static_cast<float>(1 << 24) / (wanted * 2 + 1))),
        end(((1u << 24) - (static_cast<uint32_t>(radius) * 2 + 1) * inside) / 2) {}
};

// Blurs columns. Rows outside are those at the edge. `sums`: one for each column.
void down(const uint8_t* from, uint8_t* to, int width, int height, const Box& box, uint32_t* sums) {
  const auto row = [=](int64_t y) {
    return from + std::clamp<int64_t>(y, 0, height - 1) * static_cast<ptrdiff_t>(width);
  };
  const int64_t radius = box.radius;
  // The sums of the row above the first one. All rows below the last one are the same, so no radius takes
  // more than `height` steps.
  const uint8_t* const first = row(0);
  const uint8_t* const last = row(height - 1);
  const uint32_t below = static_cast<uint32_t>(std::max<int64_t>(radius - height, 0));
  const uint32_t above = static_cast<uint32_t>(radius + 1);
  vectorised([=]() FASTLOAD_LOOP {
    for (int x = 0; x < width; ++x) sums[x] = above * first[x] + below * last[x];
  });
  for (int64_t y = 0; y < std::min<int64_t>(radius, height); ++y) {
    const uint8_t* const levels = row(y);
    vectorised([=]() FASTLOAD_LOOP {
      for (int x = 0; x < width; ++x) sums[x] += levels[x];
    });
  }
  const uint32_t inside = box.inside, end = box.end;
  for (int64_t y = 0; y < height; ++y) {
    const uint8_t *const before = row(y - radius - 1), *const added = row(y + radius);
    const uint8_t* const after = row(y + radius + 1);
    uint8_t* const out = to + y * static_cast<ptrdiff_t>(width);
    vectorised([=]() FASTLOAD_LOOP {
      for (int x = 0; x < width; ++x) {
        const uint32_t sum = sums[x] + added[x] - before[x];
        sums[x] = sum;
        const uint32_t ends = static_cast<uint32_t>(before[x]) + after[x];
        out[x] = static_cast<uint8_t>((sum * inside + ends * end + (1u << 23)) >> 24);
      }
    });
  }
}

void down(Canvas* canvas, float radius, int passes) {
  const Box box(radius);
  std::vector<uint32_t> sums(static_cast<size_t>(canvas->width()));
  for (int pass = 0; pass < passes; ++pass) {
    canvas->begin_next(canvas->width(), canvas->height());
    for (int c = 0; c < 3; ++c) {
      down(canvas->plane(c), canvas->next_plane(c), canvas->width(), canvas->height(), box, sums.data());
    }
    canvas->swap();
  }
}

void transpose(Canvas* canvas) {
  const ptrdiff_t width = canvas->width(), height = canvas->height();
  canvas->begin_next(canvas->height(), canvas->width());
  constexpr ptrdiff_t kBlock = 32;  // rows of both images that stay in the cache
  for (int c = 0; c < 3; ++c) {
    const uint8_t* const from = canvas->plane(c);
    uint8_t* const to = canvas->next_plane(c);
    for (ptrdiff_t top = 0; top < height; top += kBlock) {
      const ptrdiff_t bottom = std::min(top + kBlock, height);
      for (ptrdiff_t x = 0; x < width; ++x) {
        for (ptrdiff_t y = top; y < bottom; ++y) to[x * height + y] = from[y * width + x];
      }
    }
  }
  canvas->swap();
}

}  // namespace

void box_blur(Canvas* canvas, const double* values) {
  const bool gaussian = values[2] != 0;
  float radius[2];
  for (int axis = 0; axis < 2; ++axis) {
    const float given = static_cast<float>(values[axis]);
    radius[axis] = gaussian ? gaussian_box(given) : given;
  }
  const int passes = gaussian ? 3 : 1;
  // Columns are summed side by side, rows only one after another: so rows are made columns.
  if (radius[0] != 0) {
    transpose(canvas);
    down(canvas, radius[0], passes);
    transpose(canvas);
  }
  if (radius[1] != 0) down(canvas, radius[1], passes);
}

}  // namespace fastload
