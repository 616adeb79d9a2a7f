// Affine and perspective maps as in Pillow's Geometry.c. Affine: nearest in 16.16 fixed point (in double for
// maps without rotation or shear, and for coordinates beyond fixed point), bilinear and bicubic in double.
// Perspective: everything in double.
#include <cmath>
#include <cstring>

#include "pixels/internal.h"

namespace fastload {

namespace {

struct Images {
  const uint8_t* from[3];
  uint8_t* to[3];
  int width, height;          // of `from`
  int out_width, out_height;  // of `to`
};

// Rounds towards minus infinity; for non-negative values, truncation does that.
int64_t floor_of(double v) {
  return v < 0.0 ? static_cast<int64_t>(std::floor(v)) : static_cast<int64_t>(v);
}

int64_t coordinate(double v) {
  return v < 0.0 ? -1 : static_cast<int64_t>(v);
}

// Maps without rotation and shear: the source column of each x is the same in every row.
void scale(const Images& images, const double* a) {
  double across = a[2] + a[0] * 0.5, down = a[5] + a[4] * 0.5;
  const int width = images.width, height = images.height;
  for (int y = 0; y < images.out_height; ++y, down += a[4]) {
    const int64_t source_y = coordinate(down);
    if (source_y < 0 || source_y >= height) continue;
    double at = across;
    for (int x = 0; x < images.out_width; ++x, at += a[0]) {
      const int64_t source_x = coordinate(at);
      if (source_x < 0 || source_x >= width) continue;
      for (int c = 0; c < 3; ++c) {
        images.to[c][static_cast<ptrdiff_t>(y) * images.out_width + x] =
            images.from[c][source_y * width + source_x];
      }
    }
  }
}

bool fits_fixed(const double* a, int x, int y) {
  return std::fabs(x * a[0] + y * a[1] + a[2]) < 32768.0 && std::fabs(x * a[3] + y * a[4] + a[5]) < 32768.0;
}

void nearest_fixed(const Images& images, const double* a) {
  const auto fixed = [](double v) { return floor_of(v * 65536.0 + 0.5); };
  const int64_t a0 = fixed(a[0]), a1 = fixed(a[1]), a3 = fixed(a[3]), a4 = fixed(a[4]);
  int64_t row_x = fixed(a[2] + a[0] * 0.5 + a[1] * 0.5), row_y = fixed(a[5] + a[3] * 0.5 + a[4] * 0.5);
  const int width = images.width, height = images.height;
  for (int y = 0; y < images.out_height; ++y, row_x += a1, row_y += a4) {
    int64_t at_x = row_x, at_y = row_y;
    const ptrdiff_t row = static_cast<ptrdiff_t>(y) * images.out_width;
    for (int x = 0; x < images.out_width; ++x, at_x += a0, at_y += a3) {
      const int64_t source_x = at_x >> 16, source_y = at_y >> 16;
      if (source_x < 0 || source_x >= width || source_y < 0 || source_y >= height) continue;
      const ptrdiff_t source = source_y * width + source_x;
      images.to[0][row + x] = images.from[0][source];
      images.to[1][row + x] = images.from[1][source];
      images.to[2][row + x] = images.from[2][source];
    }
  }
}

void nearest_double(const Images& images, const double* a) {
  double row_x = a[2] + a[1] * 0.5 + a[0] * 0.5, row_y = a[5] + a[4] * 0.5 + a[3] * 0.5;
  const int width = images.width, height = images.height;
  for (int y = 0; y < images.out_height; ++y, row_x += a[1], row_y += a[4]) {
    double at_x = row_x, at_y = row_y;
    for (int x = 0; x < images.out_width; ++x, at_x += a[0], at_y += a[3]) {
      const int64_t source_x = coordinate(at_x), source_y = coordinate(at_y);
      if (source_x < 0 || source_x >= width || source_y < 0 || source_y >= height) continue;
      for (int c = 0; c < 3; ++c) {
        images.to[c][static_cast<ptrdiff_t>(y) * images.out_width + x] =
            images.from[c][source_y * width + source_x];
      }
    }
  }
}

int clipped(int at, int size) {
  return at < 0 ? 0 : at < size ? at : size - 1;
}

// Interpolates four pixels of a row at distance d from the second.
double cubic(double v1, double v2, double v3, double v4, double d) {
  const double p2 = -v1 + v3;
  const double p3 = 2 * (v1 - v2) + v3 - v4;
  const double p4 = -v1 + v2 - v3 + v4;
  return v2 + d * (p2 + d * (p3 + d * p4));
}

uint8_t level_of(double value) {
  return value <= 0.0 ? 0 : value >= 255.0 ? 255 : static_cast<uint8_t>(value);
}

// The source of a pixel: columns and rows of its neighbours, and its distance from the first (bilinear) or
// the second (bicubic) of them.
template <int kTaps>
struct Neighbours {
  ptrdiff_t column[kTaps], row[kTaps];
  double dx, dy;

  Neighbours(double source_x, double source_y, int width, int height) {
    source_x -= 0.5;
    source_y -= 0.5;
    const int x = static_cast<int>(floor_of(source_x)), y = static_cast<int>(floor_of(source_y));
    dx = source_x - x;
    dy = source_y - y;
    constexpr int kBefore = kTaps / 2 - 1;
    for (int k = 0; k < kTaps; ++k) {
      column[k] = clipped(x - kBefore + k, width);
      row[k] = static_cast<ptrdiff_t>(clipped(y - kBefore + k, height)) * width;
    }
  }
};

uint8_t bilinear(const uint8_t* from, const Neighbours<2>& at) {
  const auto across = [&](ptrdiff_t row) {
    const int left = from[row + at.column[0]], right = from[row + at.column[1]];
    return left + (right - left) * at.dx;
  };
  const double upper = across(at.row[0]), lower = across(at.row[1]);
  return static_cast<uint8_t>(upper + (lower - upper) * at.dy);
}

uint8_t bicubic(const uint8_t* from, const Neighbours<4>& at) {
  double rows[4];
  for (int k = 0; k < 4; ++k) {
    const uint8_t* row = from + at.row[k];
    rows[k] = cubic(row[at.column[0]], row[at.column[1]], row[at.column[2]], row[at.column[3]], at.dx);
  }
  return level_of(cubic(rows[0], rows[1], rows[2], rows[3], at.dy));
}

// From the centre of a pixel of the result to its source.
struct AffineMap {
  const double* a;
  double x(double x, double y) const { return a[0] * x + a[1] * y + a[2]; }
  double y(double x, double y) const { return a[3] * x + a[4] * y + a[5]; }
};

struct PerspectiveMap {
  const double* a;
  double x(double x, double y) const { return (a[0] * x + a[1] * y + a[2]) / (a[6] * x + a[7] * y + 1); }
  double y(double x, double y) const { return (a[3] * x + a[4] * y + a[5]) / (a[6] * x + a[7] * y + 1); }
};

template <int kTaps, typename Map>
void interpolated(const Images& images, const Map& map) {
  const int width = images.width, height = images.height;
  for (int y = 0; y < images.out_height; ++y) {
    for (int x = 0; x < images.out_width; ++x) {
      const double in_x = x + 0.5, in_y = y + 0.5;
      const double source_x = map.x(in_x, in_y), source_y = map.y(in_x, in_y);
      if (source_x < 0.0 || source_x >= width || source_y < 0.0 || source_y >= height) continue;
      const ptrdiff_t to = static_cast<ptrdiff_t>(y) * images.out_width + x;
      if (std::isnan(source_x) || std::isnan(source_y)) {  // Pillow converts what comes of it to 0
        for (int c = 0; c < 3; ++c) images.to[c][to] = 0;
        continue;
      }
      const Neighbours<kTaps> at(source_x, source_y, width, height);
      for (int c = 0; c < 3; ++c) {
        if constexpr (kTaps == 2) {
          images.to[c][to] = bilinear(images.from[c], at);
        } else {
          images.to[c][to] = bicubic(images.from[c], at);
        }
      }
    }
  }
}

void nearest_perspective(const Images& images, const PerspectiveMap& map) {
  const int width = images.width, height = images.height;
  for (int y = 0; y < images.out_height; ++y) {
    for (int x = 0; x < images.out_width; ++x) {
      const double in_x = x + 0.5, in_y = y + 0.5;
      const double source_x = map.x(in_x, in_y), source_y = map.y(in_x, in_y);
      // Not a number, which is inside nothing, too.
      if (!(source_x >= 0.0 && source_x < width && source_y >= 0.0 && source_y < height)) continue;
      const ptrdiff_t source = static_cast<ptrdiff_t>(source_y) * width + static_cast<ptrdiff_t>(source_x);
      for (int c = 0; c < 3; ++c) {
        images.to[c][static_cast<ptrdiff_t>(y) * images.out_width + x] = images.from[c][source];
      }
    }
  }
}

// The image and its result, which is filled with the levels at `fill`.
Images begin(Canvas* canvas, const double* fill, int width, int height) {
  canvas->begin_next(width, height);
  Images images{};
  images.width = canvas->width();
  images.height = canvas->height();
  images.out_width = width;
  images.out_height = height;
  for (int c = 0; c < 3; ++c) {
    images.from[c] = canvas->plane(c);
    images.to[c] = canvas->next_plane(c);
    std::memset(images.to[c], static_cast<int>(fill[c]),
                static_cast<size_t>(width) * static_cast<size_t>(height));
  }
  return images;
}

}  // namespace

void affine(Canvas* canvas, const double* a, int width, int height) {
  const Images images = begin(canvas, a + 7, width, height);
  if (a[6] == 2) {
    interpolated<2>(images, AffineMap{a});
  } else if (a[6] == 3) {
    interpolated<4>(images, AffineMap{a});
  } else if (a[1] == 0 && a[3] == 0) {
    scale(images, a);
  } else if (fits_fixed(a, 0, 0) && fits_fixed(a, width, height) && fits_fixed(a, 0, height) &&
             fits_fixed(a, width, 0)) {
    nearest_fixed(images, a);
  } else {
    nearest_double(images, a);
  }
  canvas->swap();
}

void perspective(Canvas* canvas, const double* a) {
  const Images images = begin(canvas, a + 9, static_cast<int>(a[12]), static_cast<int>(a[13]));
  const PerspectiveMap map{a};
  if (a[8] == 2) {
    interpolated<2>(images, map);
  } else if (a[8] == 3) {
    interpolated<4>(images, map);
  } else {
    nearest_perspective(images, map);
  }
  canvas->swap();
}

}  // namespace fastload
