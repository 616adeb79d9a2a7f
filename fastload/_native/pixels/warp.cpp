// Affine and perspective maps as in Pillow's Geometry.c. Affine: nearest in 16.16 fixed point (in double for
// maps without rotation or shear, and for coordinates beyond fixed point), bilinear and bicubic in double.
// Perspective: everything in double.
#include <algorithm>
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

// Interpolates four pixels of a row at distance d from the second.
FASTLOAD_LOOP inline double cubic(double v1, double v2, double v3, double v4, double d) {
  const double p2 = -v1 + v3;
  const double p3 = 2 * (v1 - v2) + v3 - v4;
  const double p4 = -v1 + v2 - v3 + v4;
  return v2 + d * (p2 + d * (p3 + d * p4));
}

// From the centre of a pixel of the result to its source.
struct AffineMap {
  explicit AffineMap(const double* from) { std::copy_n(from, 6, a); }
  FASTLOAD_LOOP double x(double x, double y) const { return a[0] * x + a[1] * y + a[2]; }
  FASTLOAD_LOOP double y(double x, double y) const { return a[3] * x + a[4] * y + a[5]; }
  double a[6];
};

struct PerspectiveMap {
  explicit PerspectiveMap(const double* from) { std::copy_n(from, 8, a); }
  FASTLOAD_LOOP double x(double x, double y) const {
    return (a[0] * x + a[1] * y + a[2]) / (a[6] * x + a[7] * y + 1);
  }
  FASTLOAD_LOOP double y(double x, double y) const {
    return (a[3] * x + a[4] * y + a[5]) / (a[6] * x + a[7] * y + 1);
  }
  double a[8];
};

// Note [Interpolating]
// Pillow interpolates in double, so the loops do too: fewer bits would round some levels to others. They work
// on blocks of a row of the result: where each pixel comes from, then its neighbours, then each channel. The
// first and the last step have no branches and the compiler vectorises them; the second one only copies. The
// source is copied before, with the three levels of a pixel side by side and its edges repeated on all sides,
// so that no neighbour is outside and a row of them is one load.

constexpr int kBlock = 64;  // pixels

// The part of the source that is copied.
struct Part {
  int x0, y0, x1, y1;
};

// Columns or rows from `low` to `high`, both between pixels, with one more on both sides for the rounding.
void cover(double low, double high, int size, int* begin, int* end) {
  *begin = static_cast<int>(std::clamp(std::floor(low) - 2, 0.0, static_cast<double>(size - 1)));
  *end = static_cast<int>(std::clamp(std::ceil(high) + 2, *begin + 1.0, static_cast<double>(size)));
}

// The extremes of an affine map are at the corners. The last block of a row may reach beyond the result.
Part covered(const Images& images, const AffineMap& map) {
  double low[2] = {1e300, 1e300}, high[2] = {-1e300, -1e300};
  const int blocks = (images.out_width + kBlock - 1) / kBlock;
  for (const double x : {0.5, blocks * kBlock - 0.5}) {
    for (const double y : {0.5, images.out_height - 0.5}) {
      const double at[2] = {map.x(x, y), map.y(x, y)};
      for (int axis = 0; axis < 2; ++axis) {
        low[axis] = std::min(low[axis], at[axis]);
        high[axis] = std::max(high[axis], at[axis]);
      }
    }
  }
  Part part;
  cover(low[0], high[0], images.width, &part.x0, &part.x1);
  cover(low[1], high[1], images.height, &part.y0, &part.y1);
  return part;
}

Part covered(const Images& images, const PerspectiveMap&) {
  return {0, 0, images.width, images.height};
}

// Copies a part of the source, with `border` more pixels on each side: (red | green << 8 | blue << 16).
void copy_bordered(const Images& images, const Part& part, int border, uint32_t* to) {
  const ptrdiff_t stride = part.x1 - part.x0 + 2 * ptrdiff_t{border};
  const ptrdiff_t first = border * stride;
  for (int y = part.y0; y < part.y1; ++y) {
    const ptrdiff_t at = static_cast<ptrdiff_t>(y) * images.width + part.x0;
    const uint8_t *red = images.from[0] + at, *green = images.from[1] + at, *blue = images.from[2] + at;
    uint32_t* row = to + first + (y - part.y0) * stride + border;
    const int width = part.x1 - part.x0;
    vectorised([=]() FASTLOAD_LOOP {
      for (int x = 0; x < width; ++x) {
        row[x] = uint32_t{red[x]} | uint32_t{green[x]} << 8 | uint32_t{blue[x]} << 16;
      }
    });
    std::fill_n(row - border, border, row[0]);
    std::fill_n(row + width, border, row[width - 1]);
  }
  const ptrdiff_t last = first + (part.y1 - part.y0 - 1) * stride;
  for (int k = 0; k < border; ++k) {
    std::copy_n(to + first, stride, to + k * stride);
    std::copy_n(to + last, stride, to + last + (k + 1) * stride);
  }
}

// Where the pixels of a block come from: their first neighbours, their distances from the first (bilinear) or
// the second (bicubic) of them in x and y, and whether they are inside.
struct Block {
  double dx[kBlock], dy[kBlock];
  int32_t column[kBlock], row[kBlock];
  int32_t inside[kBlock];  // 0 or 1
  int32_t mask[kBlock];    // 255; 0 for no number, which Pillow makes level 0
};

// The pixel whose centre is the last one before each position, and the distance from it. A position outside
// gets the edge that it lies beyond: an affine map reaches that edge, so covered() includes it. One that is
// no number, which only perspective maps have, gets the first pixel.
FASTLOAD_LOOP inline void nearest_before(const double* positions, double size, double* distance,
                                         int32_t* pixel) {
  double at[kBlock];
  for (int i = 0; i < kBlock; ++i) at[i] = positions[i] >= 0.0 ? positions[i] : 0.0;
  for (int i = 0; i < kBlock; ++i) at[i] = at[i] < size ? at[i] : size - 0.5;
  for (int i = 0; i < kBlock; ++i) at[i] -= 0.5;
  for (int i = 0; i < kBlock; ++i) {
    const int32_t towards = static_cast<int32_t>(at[i]);
    pixel[i] = towards - (at[i] < towards ? 1 : 0);
    distance[i] = at[i] - pixel[i];
  }
}

// Returns whether any pixel is inside. In steps, since a loop that compares and converts is not vectorised.
template <typename Map>
FASTLOAD_LOOP inline bool locate(const Map& map, int x, int y, double width, double height, Block* block) {
  const double in_y = y + 0.5;
  double source_x[kBlock], source_y[kBlock];
  for (int i = 0; i < kBlock; ++i) {
    const double in_x = (x + i) + 0.5;
    source_x[i] = map.x(in_x, in_y);
    source_y[i] = map.y(in_x, in_y);
  }
  int32_t any = 0;
  for (int i = 0; i < kBlock; ++i) {
    const int32_t outside =
        (source_x[i] < 0.0) | (source_x[i] >= width) | (source_y[i] < 0.0) | (source_y[i] >= height);
    block->inside[i] = 1 - outside;
    any |= 1 - outside;
  }
  if (any == 0) return false;
  for (int i = 0; i < kBlock; ++i) {
    const int32_t number =
        (source_x[i] >= 0.0) & (source_x[i] < width) & (source_y[i] >= 0.0) & (source_y[i] < height);
    block->mask[i] = number * 255;
  }
  nearest_before(source_x, width, block->dx, block->column);
  nearest_before(source_y, height, block->dy, block->row);
  return true;
}

// Level `byte` of two pixels that lie side by side, plus 2^52, as a double: exact, and without a conversion,
// which most instruction sets lack. Differences of two such numbers are differences of levels.
constexpr double kOffset = 4503599627370496.0;

FASTLOAD_LOOP inline double raised(uint64_t pixels, int byte) {
  const uint64_t bits = (pixels >> (8 * byte) & 255) | 0x4330000000000000u;
  double value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

// The neighbours of a block, two of a row in each word; channel c of the block.
template <int kTaps>
struct Neighbours;

template <>
struct Neighbours<2> {
  uint64_t rows[2][kBlock];

  FASTLOAD_LOOP void load(int i, int k, const uint32_t* from) { std::memcpy(&rows[k][i], from, 8); }

  FASTLOAD_LOOP void levels(const Block& at, int c, int32_t* out) const {
    for (int i = 0; i < kBlock; ++i) {
      double across[2];
      for (int k = 0; k < 2; ++k) {
        const double left = raised(rows[k][i], c), right = raised(rows[k][i], c + 4);
        across[k] = (left - kOffset) + (right - left) * at.dx[i];
      }
      out[i] = static_cast<int32_t>(across[0] + (across[1] - across[0]) * at.dy[i]);
    }
  }
};

template <>
struct Neighbours<4> {
  uint64_t left[4][kBlock], right[4][kBlock];

  FASTLOAD_LOOP void load(int i, int k, const uint32_t* from) {
    std::memcpy(&left[k][i], from, 8);
    std::memcpy(&right[k][i], from + 2, 8);
  }

  FASTLOAD_LOOP void levels(const Block& at, int c, int32_t* out) const {
    for (int i = 0; i < kBlock; ++i) {
      double across[4];
      for (int k = 0; k < 4; ++k) {
        // cubic() of integers, whose sums are exact in any order.
        const double v1 = raised(left[k][i], c), v2 = raised(left[k][i], c + 4);
        const double v3 = raised(right[k][i], c), v4 = raised(right[k][i], c + 4);
        const double first = v1 - v2, last = v3 - v4, d = at.dx[i];
        across[k] = (v2 - kOffset) + d * ((v3 - v1) + d * ((first + first + last) - d * (first + last)));
      }
      const double value = cubic(across[0], across[1], across[2], across[3], at.dy[i]);
      const double above = value <= 0.0 ? 0.0 : value;
      out[i] = static_cast<int32_t>(above >= 255.0 ? 255.0 : above);
    }
  }
};

template <int kTaps, typename Map>
void interpolated(Canvas* canvas, const Images& images, const Map& map) {
  constexpr int kBorder = kTaps / 2;
  const Part part = covered(images, map);
  const ptrdiff_t stride = part.x1 - part.x0 + 2 * ptrdiff_t{kBorder};
  const ptrdiff_t rows = part.y1 - part.y0 + 2 * ptrdiff_t{kBorder};
  uint32_t* const copy = canvas->words(static_cast<size_t>(stride * rows));
  copy_bordered(images, part, kBorder, copy);
  // The first neighbour of the pixel at (0, 0).
  const ptrdiff_t before = kTaps / 2 - 1;
  const uint32_t* const origin = copy + (kBorder - part.y0 - before) * stride + (kBorder - part.x0 - before);
  vectorised([=]() FASTLOAD_LOOP {
    Block block;
    Neighbours<kTaps> neighbours;
    int32_t levels[kBlock];
    for (int y = 0; y < images.out_height; ++y) {
      for (int x = 0; x < images.out_width; x += kBlock) {
        if (!locate(map, x, y, images.width, images.height, &block)) continue;
        for (int i = 0; i < kBlock; ++i) {
          const uint32_t* from = origin + block.row[i] * stride + block.column[i];
          for (int k = 0; k < kTaps; ++k) neighbours.load(i, k, from + k * stride);
        }
        const int count = std::min(kBlock, images.out_width - x);
        for (int c = 0; c < 3; ++c) {
          neighbours.levels(block, c, levels);
          uint8_t* to = images.to[c] + static_cast<ptrdiff_t>(y) * images.out_width + x;
          for (int i = 0; i < count; ++i) {
            const int32_t level = levels[i] & block.mask[i];
            to[i] = static_cast<uint8_t>(block.inside[i] ? level : to[i]);
          }
        }
      }
    }
  });
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
    interpolated<2>(canvas, images, AffineMap(a));
  } else if (a[6] == 3) {
    interpolated<4>(canvas, images, AffineMap(a));
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
  const PerspectiveMap map(a);
  if (a[8] == 2) {
    interpolated<2>(canvas, images, map);
  } else if (a[8] == 3) {
    interpolated<4>(canvas, images, map);
  } else {
    nearest_perspective(images, map);
  }
  canvas->swap();
}

}  // namespace fastload
