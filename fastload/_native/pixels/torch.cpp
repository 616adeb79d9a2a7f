// Operations on tensors of levels, and those of AugMix, which torchvision runs on tensors even for PIL input:
// torch's float32 arithmetic, operation by operation, as its kernels for AVX2 and AVX-512 round it. Sources:
// torchvision, transforms/_functional_tensor.py and v2/functional/_color.py, _geometry.py, _misc.py; torch,
// aten/src/ATen/native/cpu/GridSamplerKernel.cpp.
//
// Note [Fused]
// Torch's kernels round a * b + c once if both operations are in one kernel. In double the product of two
// floats is exact, so the sum rounded to float is the same and needs no FMA instruction.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "pixels/internal.h"

namespace fastload {

namespace {

FASTLOAD_LOOP inline float fused(float a, float b, float c) {
  return static_cast<float>(static_cast<double>(a) * static_cast<double>(b) + static_cast<double>(c));
}

// clamp(0, 255), then truncation.
FASTLOAD_LOOP inline uint8_t clip_level(float value) {
  value = value < 0.0f ? 0.0f : value;
  value = value > 255.0f ? 255.0f : value;
  return static_cast<uint8_t>(static_cast<int>(value));
}

// rgb_to_grayscale, truncated to a level.
template <bool kFused>
FASTLOAD_LOOP inline float gray(uint8_t red, uint8_t green, uint8_t blue) {
  const float r = red, g = green, b = blue;
  const float sum =
      kFused ? fused(b, 0.114f, fused(g, 0.587f, r * 0.2989f)) : (0.2989f * r + 0.587f * g) + 0.114f * b;
  return static_cast<float>(static_cast<int>(sum));
}

// The two weights of _blend.
struct Ratio {
  float own, other;
  explicit Ratio(double factor) : own(static_cast<float>(factor)), other(static_cast<float>(1.0 - factor)) {}
};

template <bool kFused>
FASTLOAD_LOOP inline uint8_t mixed(float level, float with, Ratio ratio) {
  return clip_level(kFused ? fused(with, ratio.other, ratio.own * level)
                           : ratio.own * level + ratio.other * with);
}

void brightness(Canvas* canvas, const double* values) {
  const float factor = static_cast<float>(values[0]);
  LevelTables tables;
  for (int i = 0; i < 256; ++i) {
    tables[0][i] = tables[1][i] = tables[2][i] = clip_level(static_cast<float>(i) * factor);
  }
  look_up(tables, canvas);
}

// torch adds the levels of an image in float32: exactly up to 2 to the 24th.
constexpr int64_t kExactSum = int64_t{1} << 24;

// How far torch's mean may be from the exact one above that, as a part of it. ATen's SumKernel adds in 16 or
// more columns, of 4096 levels at a time or, of larger images, of 32,768: fewer are exact. Each such sum that
// is added to its column may be rounded, in the same direction for an image that repeats itself. There are
// one for 65,536 pixels at most, and 256 at most; then all columns are added. torchvision_v2.py looks at what
// torch does.
double mean_off(size_t area) {
  constexpr size_t kLevelsOfSum = 1 << 16, kMostSums = 256, kColumns = 32;
  constexpr double kRounding = 1.0 / (1 << 24);
  return static_cast<double>(kColumns + std::min(area / kLevelsOfSum, kMostSums)) * kRounding;
}

template <bool kFused>
void contrast_as(Canvas* canvas, Ratio ratio, bool certain) {
  const uint8_t *red = canvas->plane(0), *green = canvas->plane(1), *blue = canvas->plane(2);
  const size_t area = canvas->area();
  int64_t sum = 0;
  vectorised([&]() FASTLOAD_LOOP {
    constexpr size_t kRun = 1 << 20;  // the sum of this many levels fits 32 bits
    for (size_t begin = 0; begin < area; begin += kRun) {
      const size_t end = std::min(area, begin + kRun);
      uint32_t part = 0;
      for (size_t i = begin; i < end; ++i) {
        part += static_cast<uint32_t>(gray<kFused>(red[i], green[i], blue[i]));
      }
      sum += part;
    }
  });
  float mean = static_cast<float>(sum) / static_cast<float>(area), most = mean;
  if (certain && sum > kExactSum) {
    const double exact = static_cast<double>(sum) / static_cast<double>(area);
    const double off = mean_off(area);
    mean = static_cast<float>(exact * (1.0 - off));
    most = static_cast<float>(exact * (1.0 + off));
  }
  LevelTables tables;
  for (int i = 0; i < 256; ++i) {
    const float level = static_cast<float>(i);
    const uint8_t made = mixed<kFused>(level, mean, ratio);
    if (made != mixed<kFused>(level, most, ratio)) return canvas->decline();
    tables[0][i] = tables[1][i] = tables[2][i] = made;
  }
  look_up(tables, canvas);
}

void contrast(Canvas* canvas, const double* values) {
  const Ratio ratio(values[0]);
  const bool certain = values[2] != 0;
  values[1] != 0 ? contrast_as<true>(canvas, ratio, certain) : contrast_as<false>(canvas, ratio, certain);
}

template <bool kFused>
void saturation_as(Canvas* canvas, Ratio ratio) {
  uint8_t *red = canvas->plane(0), *green = canvas->plane(1), *blue = canvas->plane(2);
  const size_t area = canvas->area();
  vectorised([=]() FASTLOAD_LOOP {
    for (size_t i = 0; i < area; ++i) {
      const float with = gray<kFused>(red[i], green[i], blue[i]);
      red[i] = mixed<kFused>(red[i], with, ratio);
      green[i] = mixed<kFused>(green[i], with, ratio);
      blue[i] = mixed<kFused>(blue[i], with, ratio);
    }
  });
}

void saturation(Canvas* canvas, const double* values) {
  values[1] != 0 ? saturation_as<true>(canvas, Ratio(values[0]))
                 : saturation_as<false>(canvas, Ratio(values[0]));
}

// adjust_hue: to HSV, whose hue is a part of the circle, and back. GCC vectorises no loop with branches.
void torch_hue(Canvas* canvas, const double* values) {
  uint8_t *reds = canvas->plane(0), *greens = canvas->plane(1), *blues = canvas->plane(2);
  const size_t area = canvas->area();
  const float amount = static_cast<float>(values[0]);
  vectorised([=]() FASTLOAD_LOOP {
    constexpr float kUnit = static_cast<float>(1.0 / 255.0), kSixth = static_cast<float>(1.0 / 6.0);
    uint8_t* __restrict red = reds;
    uint8_t* __restrict green = greens;
    uint8_t* __restrict blue = blues;
    for (size_t k = 0; k < area; ++k) {
      const float r = static_cast<float>(red[k]) * kUnit, g = static_cast<float>(green[k]) * kUnit,
                  b = static_cast<float>(blue[k]) * kUnit;
      const float upper = r > g ? r : g, lower = r > g ? g : r;
      const float most = upper > b ? upper : b, least = lower < b ? lower : b;
      const float range = most - least, one_if_gray = static_cast<float>(most == least);
      const float s = range / (one_if_gray != 0.0f ? 1.0f : most), divisor = range + one_if_gray;
      const float from_r = (most - r) / divisor, from_g = (most - g) / divisor, from_b = (most - b) / divisor;
      const float of_green = (from_r + 2.0f) - from_b, of_red = from_b - from_g;
      const float of_blue = (from_g + 4.0f) - from_r;
      const float sextants = most == r ? of_red : most == g ? of_green : of_blue;
      float h = sextants * kSixth + 1.0f;
      h = (h >= 1.0f ? h - 1.0f : h) + amount;
      h = h >= 1.0f ? h - 1.0f : h;
      h = h < 0.0f ? h + 1.0f : h;
      const float six = h * 6.0f;
      const int whole = static_cast<int>(six);  // 6 for a hue that was rounded to 1
      const float part = six - static_cast<float>(whole);
      const float faded = s * part, rest = 1.0f - s;
      const auto level = [](float value) FASTLOAD_LOOP {
        value = value < 0.0f ? 0.0f : value;
        value = value > 1.0f ? 1.0f : value;
        return static_cast<int>(value * 255.999f);
      };
      const int v = static_cast<int>(most * 255.999f), p = level(rest * most);
      const int q = level((1.0f - faded) * most), t = level((faded + rest) * most);
      of_sextant(whole, v, p, q, t, red + k, green + k, blue + k);
    }
  });
}

// adjust_sharpness. It rounds a sum of thirteenths, and no such sum is closer than 1/26 to a half, so
// integers give the same level.
void torch_sharpness(Canvas* canvas, const double* values) {
  const int width = canvas->width(), height = canvas->height();
  if (width < 3 || height < 3) return;
  const Ratio ratio(values[0]);
  const bool as_v2 = values[1] != 0;
  canvas->begin_next(width, height);
  for (int c = 0; c < 3; ++c) {
    const uint8_t* from = canvas->plane(c);
    uint8_t* to = canvas->next_plane(c);
    const size_t area = canvas->area();
    vectorised([=]() FASTLOAD_LOOP {
      // v1 blends the border with itself, which may round down; v2 leaves it unchanged.
      for (size_t i = 0; i < area; ++i) to[i] = as_v2 ? from[i] : mixed<false>(from[i], from[i], ratio);
      for (int y = 1; y + 1 < height; ++y) {
        const uint8_t* row = from + static_cast<ptrdiff_t>(y) * width;
        const uint8_t *above = row - width, *below = row + width;
        uint8_t* out = to + static_cast<ptrdiff_t>(y) * width;
        for (int x = 1; x + 1 < width; ++x) {
          const int sum = above[x - 1] + above[x] + above[x + 1] + row[x - 1] + 5 * row[x] + row[x + 1] +
                          below[x - 1] + below[x] + below[x + 1];
          const int smooth = (2 * sum + 13) / 26;
          const float level = row[x];
          out[x] = as_v2 ? clip_level(fused(static_cast<float>(smooth - row[x]), ratio.other, level))
                         : mixed<false>(level, static_cast<float>(smooth), ratio);
        }
      }
    });
  }
  canvas->swap();
}

void torch_autocontrast(Canvas* canvas, const double* values) {
  LevelTables tables;
  for (int c = 0; c < 3; ++c) {
    int low, high;
    extremes(canvas->plane(c), canvas->area(), &low, &high);
    const float span = static_cast<float>(high - low);
    const float divisor = span * static_cast<float>(1.0 / 255.0), factor = (1.0f / span) * 255.0f;
    for (int i = 0; i < 256; ++i) {
      const float above = static_cast<float>(i - low);
      const float level = high <= low      ? static_cast<float>(i)
                          : values[0] != 0 ? above / divisor
                                           : above * factor;
      tables[c][i] = clip_level(level);
    }
  }
  look_up(tables, canvas);
}

// grid_sample over the grid of _gen_affine_grid, zeros outside. torch computes the grid by a matrix
// multiplication, which fuses its sums or not, depending on the processor (augmix.py, Note [Grid]).
struct Grid {
  float a[6];  // to coordinates from -1 to 1
  int width, height;
  bool is_fused;

  Grid(const double* values, const Canvas& canvas)
      : width(canvas.width()), height(canvas.height()), is_fused(values[11] != 0) {
    const float half[2] = {static_cast<float>(0.5 * width), static_cast<float>(0.5 * height)};
    for (int k = 0; k < 6; ++k) a[k] = static_cast<float>(values[k]) / half[k / 3];
  }

  // A source coordinate in pixels, counted from the centre of the first pixel.
  FASTLOAD_LOOP float at(int axis, int x, int y) const {
    const float from_x = static_cast<float>(x) - 0.5f * static_cast<float>(width - 1);
    const float from_y = static_cast<float>(y) - 0.5f * static_cast<float>(height - 1);
    const float* row = a + 3 * axis;
    const float across = from_x * row[0];
    const float sum = is_fused ? fused(from_y, row[1], across) : across + from_y * row[1];
    const float place = sum + row[2];
    return fused(place + 1.0f, 0.5f * static_cast<float>(axis == 0 ? width : height), -0.5f);
  }
};

uint8_t rounded(float value) {
  value = std::nearbyint(value);
  return static_cast<uint8_t>(static_cast<int>(std::min(std::max(value, 0.0f), 255.0f)));
}

void nearest_of(const Grid& grid, const uint8_t* const* from, uint8_t* const* to, const uint8_t* fill) {
  const float right = static_cast<float>(grid.width), bottom = static_cast<float>(grid.height);
  for (int y = 0, i = 0; y < grid.height; ++y) {
    for (int x = 0; x < grid.width; ++x, ++i) {
      const float u = std::nearbyint(grid.at(0, x, y)), v = std::nearbyint(grid.at(1, x, y));
      const bool inside = u >= 0.0f && u < right && v >= 0.0f && v < bottom;
      const ptrdiff_t source =
          inside ? static_cast<ptrdiff_t>(v) * grid.width + static_cast<ptrdiff_t>(u) : 0;
      for (int c = 0; c < 3; ++c) to[c][i] = inside ? from[c][source] : fill[c];
    }
  }
}

void bilinear_of(const Grid& grid, const uint8_t* const* from, uint8_t* const* to, int filled,
                 const uint8_t* fill) {
  const float right = static_cast<float>(grid.width), bottom = static_cast<float>(grid.height);
  for (int y = 0, i = 0; y < grid.height; ++y) {
    for (int x = 0; x < grid.width; ++x, ++i) {
      const float u = grid.at(0, x, y), v = grid.at(1, x, y);
      if (!(u > -1.0f && u < right && v > -1.0f && v < bottom)) {  // no neighbour is inside
        for (int c = 0; c < 3; ++c) to[c][i] = filled != 0 ? fill[c] : 0;
        continue;
      }
      const float left = std::floor(u), top = std::floor(v);
      const float w = u - left, e = 1.0f - w, n = v - top, s = 1.0f - n;
      const float weights[4] = {e * s, w * s, e * n, w * n};
      const int x0 = static_cast<int>(left), y0 = static_cast<int>(top);
      ptrdiff_t at[4];
      bool inside[4];
      for (int k = 0; k < 4; ++k) {
        const int to_x = x0 + k % 2, to_y = y0 + k / 2;
        inside[k] = to_x >= 0 && to_x < grid.width && to_y >= 0 && to_y < grid.height;
        at[k] = inside[k] ? static_cast<ptrdiff_t>(to_y) * grid.width + to_x : 0;
      }
      const auto sum = [&](const auto& level_of) {
        float total = level_of(0) * weights[0];
        for (int k = 1; k < 4; ++k) total = fused(level_of(k), weights[k], total);
        return total;
      };
      const float coverage = sum([&](int k) { return inside[k] ? 1.0f : 0.0f; });
      for (int c = 0; c < 3; ++c) {
        const uint8_t* levels = from[c];
        float level = sum([&](int k) { return inside[k] ? static_cast<float>(levels[at[k]]) : 0.0f; });
        const float colour = fill[c];
        if (filled == 1) level = level * coverage + (1.0f - coverage) * colour;
        if (filled == 2) level = (level - colour) * coverage + colour;
        to[c][i] = rounded(level);
      }
    }
  }
}

void torch_affine(Canvas* canvas, const double* values) {
  const Grid grid(values, *canvas);
  canvas->begin_next(grid.width, grid.height);
  const uint8_t* const from[3] = {canvas->plane(0), canvas->plane(1), canvas->plane(2)};
  uint8_t* const to[3] = {canvas->next_plane(0), canvas->next_plane(1), canvas->next_plane(2)};
  const int filled = static_cast<int>(values[7]);
  uint8_t fill[3] = {};
  for (int c = 0; c < 3 && filled != 0; ++c) fill[c] = static_cast<uint8_t>(values[8 + c]);
  if (values[6] == 0) {
    nearest_of(grid, from, to, fill);
  } else {
    bilinear_of(grid, from, to, filled, fill);
  }
  canvas->swap();
}

void mix_begin(Canvas* canvas, const double* values) {
  canvas->begin_mix(static_cast<float>(values[0]));
}

void mix_add(Canvas* canvas, const double* values) {
  canvas->add_mix(static_cast<float>(values[0]), values[1] != 0);
}

bool is_share(double value) {
  return value >= 0 && value <= 1;
}

bool is_flag(double value) {
  return value == 0 || value == 1;
}

}  // namespace

void Canvas::begin_mix(float weight) {
  const size_t count = area();
  mix_width_ = width_;
  mix_height_ = height_;
  uint8_t* saved = saved_.room_for<uint8_t>(3 * count);
  float* sum = sum_.room_for<float>(3 * count);
  for (int c = 0; c < 3; ++c, saved += count, sum += count) {
    const uint8_t* levels = planes_[c];
    std::memcpy(saved, levels, count);
    vectorised([=]() FASTLOAD_LOOP {
      for (size_t i = 0; i < count; ++i) sum[i] = weight * static_cast<float>(levels[i]);
    });
  }
}

void Canvas::add_mix(float weight, bool last) {
  const size_t count = area();
  if (mix_width_ != width_ || mix_height_ != height_)
    return;  // no sum was begun, or for an image of another size
  const uint8_t* saved = saved_.room_for<uint8_t>(3 * count);
  float* sum = sum_.room_for<float>(3 * count);
  for (int c = 0; c < 3; ++c, saved += count, sum += count) {
    uint8_t* levels = planes_[c];
    vectorised([=]() FASTLOAD_LOOP {
      for (size_t i = 0; i < count; ++i) sum[i] = sum[i] + weight * static_cast<float>(levels[i]);
      if (!last) return;
      for (size_t i = 0; i < count; ++i) levels[i] = clip_level(sum[i]);
    });
    if (!last) std::memcpy(levels, saved, count);
  }
}

TorchOp torch_op(PixelOp op) {
  switch (op) {
    case PixelOp::kMixBegin:
      return mix_begin;
    case PixelOp::kMixAdd:
      return mix_add;
    case PixelOp::kTorchBrightness:
      return brightness;
    case PixelOp::kTorchContrast:
      return contrast;
    case PixelOp::kTorchSaturation:
      return saturation;
    case PixelOp::kTorchSharpness:
      return torch_sharpness;
    case PixelOp::kTorchHue:
      return torch_hue;
    case PixelOp::kTorchAutocontrast:
      return torch_autocontrast;
    default:
      return torch_affine;
  }
}

int torch_op_values(PixelOp op, const double* values, int count) {
  switch (op) {
    case PixelOp::kMixBegin:
      return count >= 1 && is_share(values[0]) ? 1 : -1;
    case PixelOp::kTorchBrightness:
      return count >= 1 ? 1 : -1;
    case PixelOp::kTorchHue:
      return count >= 1 && std::fabs(values[0]) <= 0.5 ? 1 : -1;
    case PixelOp::kTorchAutocontrast:
      return count >= 1 && is_flag(values[0]) ? 1 : -1;
    case PixelOp::kMixAdd:
      return count >= 2 && is_share(values[0]) && is_flag(values[1]) ? 2 : -1;
    case PixelOp::kTorchContrast:
      return count >= 3 && is_flag(values[1]) && is_flag(values[2]) ? 3 : -1;
    case PixelOp::kTorchSaturation:
    case PixelOp::kTorchSharpness:
      return count >= 2 && is_flag(values[1]) ? 2 : -1;
    case PixelOp::kTorchAffine: {
      if (count < 12 || (values[6] != 0 && values[6] != 2) || !is_flag(values[11])) return -1;
      for (int i = 0; i < 6; ++i) {
        if (!(std::fabs(values[i]) <= 1e9)) return -1;
      }
      for (int i = 8; i < 11; ++i) {
        if (!(values[i] >= 0 && values[i] <= 255)) return -1;
      }
      return is_flag(values[7]) || values[7] == 2 ? 12 : -1;
    }
    default:
      return -1;
  }
}

}  // namespace fastload
