// Operations on single pixels or with tables, their histograms, mirrors and quarter turns.
#include "pixels/pixels.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "pixels/internal.h"
#include "resample/kernels.h"

namespace fastload {

namespace {

constexpr size_t kKept = size_t{16} << 20;  // bytes of a canvas that a thread keeps
constexpr int kTableValues = 64;            // of each table of kLevels
constexpr int kLongestPadded = 65535;       // pixels of a side after kPad

size_t lay_out(resampling::AlignedBytes* bytes, int width, int height, uint8_t** planes) {
  const size_t area = static_cast<size_t>(width) * static_cast<size_t>(height);
  const size_t stride = (area + 63) / 64 * 64 + 2 * resampling::kSlack;
  uint8_t* base = bytes->room_for<uint8_t>(3 * stride);
  for (int c = 0; c < 3; ++c) planes[c] = base + c * stride + resampling::kSlack;
  return stride;
}

// One function of the level for all channels.
template <typename Level>
LevelTables same_tables(const Level& level) {
  LevelTables tables;
  for (int i = 0; i < 256; ++i) tables[0][i] = tables[1][i] = tables[2][i] = static_cast<uint8_t>(level(i));
  return tables;
}

template <typename Level>
void map_levels(Canvas* canvas, const Level& level) {
  look_up(same_tables(level), canvas);
}

// The mean luminance, for ImageEnhance.Contrast.
int mean_luminance(const Canvas& canvas) {
  const uint8_t *red = canvas.plane(0), *green = canvas.plane(1), *blue = canvas.plane(2);
  const size_t area = canvas.area();
  int64_t sum = 0;
  vectorised([&]() FASTLOAD_LOOP {
    constexpr size_t kRun = 1 << 20;  // the sum of this many levels fits 32 bits
    for (size_t begin = 0; begin < area; begin += kRun) {
      const size_t end = std::min(area, begin + kRun);
      uint32_t part = 0;
      for (size_t i = begin; i < end; ++i)
        part += static_cast<uint32_t>(luminance(red[i], green[i], blue[i]));
      sum += part;
    }
  });
  return static_cast<int>(static_cast<double>(sum) / static_cast<double>(area) + 0.5);
}

// ImageEnhance.Contrast.
LevelTables contrast_tables(const Canvas& canvas, float factor) {
  const int mean = mean_luminance(canvas);
  return same_tables([factor, mean](int i) { return blend(mean, i, factor); });
}

// Contrast of the whole image, of which a box is kept.
void contrast_crop(Canvas* canvas, const double* values) {
  const LevelTables tables = contrast_tables(*canvas, static_cast<float>(values[0]));
  const int x = static_cast<int>(values[1]), y = static_cast<int>(values[2]);
  const int width = static_cast<int>(values[3]), height = static_cast<int>(values[4]);
  canvas->begin_next(width, height);
  resampling::RowOutput output{};
  output.dtype = Dtype::kUint8;
  output.lut = tables.data();
  output.width = width;
  output.pixel_stride = 1;
  output.channel_stride = canvas->next_plane_stride();
  const resampling::StoreRow store = resampling::kernels_in_use().store_for(&output);
  for (int row = 0; row < height; ++row) {
    const ptrdiff_t at = static_cast<ptrdiff_t>(y + row) * canvas->width() + x;
    const uint8_t* const planes[3] = {canvas->plane(0) + at, canvas->plane(1) + at, canvas->plane(2) + at};
    store(output, planes, canvas->next_plane(0) + static_cast<ptrdiff_t>(row) * width);
  }
  canvas->swap();
}

void saturation(Canvas* canvas, float factor) {
  uint8_t *reds = canvas->plane(0), *greens = canvas->plane(1), *blues = canvas->plane(2);
  const size_t area = canvas->area();
  vectorised([=]() FASTLOAD_LOOP {
    uint8_t* __restrict red = reds;
    uint8_t* __restrict green = greens;
    uint8_t* __restrict blue = blues;
    for (size_t i = 0; i < area; ++i) {
      const int gray = luminance(red[i], green[i], blue[i]);
      red[i] = blend(gray, red[i], factor);
      green[i] = blend(gray, green[i], factor);
      blue[i] = blend(gray, blue[i], factor);
    }
  });
}

void grayscale(Canvas* canvas) {
  uint8_t *red = canvas->plane(0), *green = canvas->plane(1), *blue = canvas->plane(2);
  const size_t area = canvas->area();
  vectorised([=]() FASTLOAD_LOOP {
    for (size_t i = 0; i < area; ++i) {
      const uint8_t gray = static_cast<uint8_t>(luminance(red[i], green[i], blue[i]));
      red[i] = gray;
      green[i] = gray;
      blue[i] = gray;
    }
  });
}

void order(Canvas* canvas, const double* values) {
  canvas->begin_next(canvas->width(), canvas->height());
  for (int c = 0; c < 3; ++c) {
    std::memcpy(canvas->next_plane(c), canvas->plane(static_cast<int>(values[c])), canvas->area());
  }
  canvas->swap();
}

int order_values(const double* values, int count) {
  if (count < 3) return -1;
  for (int c = 0; c < 3; ++c) {
    if (values[c] != 0 && values[c] != 1 && values[c] != 2) return -1;
  }
  return 3;
}

// ImageOps.autocontrast without a cutoff.
void autocontrast(Canvas* canvas) {
  const size_t area = canvas->area();
  LevelTables tables;
  for (int c = 0; c < 3; ++c) {
    const uint8_t* levels = canvas->plane(c);
    int low, high;
    extremes(levels, area, &low, &high);
    const bool flat = high <= low;
    const double scale = flat ? 1.0 : 255.0 / (high - low);
    const double offset = flat ? 0.0 : -low * scale;
    for (int i = 0; i < 256; ++i) {
      tables[c][i] = static_cast<uint8_t>(std::clamp(static_cast<int>(i * scale + offset), 0, 255));
    }
  }
  look_up(tables, canvas);
}

// ImageOps.equalize.
void equalize(Canvas* canvas) {
  const size_t area = canvas->area();
  LevelTables tables;
  for (int c = 0; c < 3; ++c) {
    const uint8_t* levels = canvas->plane(c);
    uint32_t parts[4][256] = {};  // neighbours are often equal: four counters do not wait for each other
    size_t i = 0;
    for (; i + 4 <= area; i += 4) {
      for (size_t k = 0; k < 4; ++k) parts[k][levels[i + k]]++;
    }
    for (; i < area; ++i) parts[0][levels[i]]++;
    int64_t counts[256], last = 0;
    int used = 0;
    for (int v = 0; v < 256; ++v) {
      counts[v] = int64_t{parts[0][v]} + parts[1][v] + parts[2][v] + parts[3][v];
      if (counts[v] != 0) {
        last = counts[v];
        ++used;
      }
    }
    const int64_t step = (static_cast<int64_t>(area) - last) / 255;
    int64_t n = step / 2;
    for (int v = 0; v < 256; ++v) {
      const bool same = used <= 1 || step == 0;
      tables[c][v] = static_cast<uint8_t>(same ? v : std::min<int64_t>(n / step, 255));
      n += counts[v];
    }
  }
  look_up(tables, canvas);
}

void mirror(Canvas* canvas) {
  for (int c = 0; c < 3; ++c) {
    uint8_t* row = canvas->plane(c);
    for (int y = 0; y < canvas->height(); ++y, row += canvas->width()) {
      std::reverse(row, row + canvas->width());
    }
  }
}

void upside_down(Canvas* canvas) {
  for (int c = 0; c < 3; ++c) {
    for (int y = 0; y < canvas->height() / 2; ++y) {
      uint8_t* upper = canvas->plane(c) + static_cast<ptrdiff_t>(y) * canvas->width();
      uint8_t* lower = canvas->plane(c) + static_cast<ptrdiff_t>(canvas->height() - 1 - y) * canvas->width();
      std::swap_ranges(upper, upper + canvas->width(), lower);
    }
  }
}

void rectangle(Canvas* canvas, const double* values) {
  const auto x = static_cast<ptrdiff_t>(values[0]), y = static_cast<ptrdiff_t>(values[1]);
  const auto width = static_cast<size_t>(values[2]);
  const auto end = y + static_cast<ptrdiff_t>(values[3]);
  for (int c = 0; c < 3; ++c) {
    const int level = static_cast<int>(values[4 + c]);
    for (ptrdiff_t row = y; row < end; ++row) {
      std::memset(canvas->plane(c) + row * canvas->width() + x, level, width);
    }
  }
}

void quarter_turn(Canvas* canvas, bool anticlockwise) {
  const ptrdiff_t width = canvas->width(), height = canvas->height();
  canvas->begin_next(canvas->height(), canvas->width());
  for (int c = 0; c < 3; ++c) {
    const uint8_t* from = canvas->plane(c);
    uint8_t* to = canvas->next_plane(c);
    for (ptrdiff_t y = 0; y < width; ++y) {
      for (ptrdiff_t x = 0; x < height; ++x) {
        to[y * height + x] =
            anticlockwise ? from[x * width + width - 1 - y] : from[(height - 1 - x) * width + y];
      }
    }
  }
  canvas->swap();
}

// `whole`: all weights of each axis are given, not only those from the centre outwards.
int blur_values(const double* values, int count, int width, int height, bool whole) {
  if (count < 2) return -1;
  const int side[2] = {width, height};
  int used = 2;
  for (int axis = 0; axis < 2; ++axis) {
    // torch's reflection needs more pixels than it reflects.
    if (!(values[axis] >= 0 && values[axis] < side[axis])) return -1;
    used += static_cast<int>(values[axis]) * (whole ? 2 : 1) + 1;
  }
  return used <= count ? used : -1;
}

// `numbers` of the map, filter, fill.
int warp_values(const double* values, int count, int numbers) {
  if (count < numbers + 4) return -1;
  for (int i = 0; i < numbers; ++i) {
    if (!(std::fabs(values[i]) <= 1e9)) return -1;
  }
  const double filter = values[numbers];
  if (filter != 0 && filter != 2 && filter != 3) return -1;
  for (int i = numbers + 1; i < numbers + 4; ++i) {
    if (!(values[i] >= 0 && values[i] <= 255)) return -1;
  }
  return numbers + 4;
}

// The same with the size of the result.
int sized_warp_values(const double* values, int count, int numbers) {
  const int used = warp_values(values, count, numbers);
  if (used < 0 || count < used + 2) return -1;
  for (int i = used; i < used + 2; ++i) {
    if (!(values[i] >= 1 && values[i] <= 65535)) return -1;
  }
  return used + 2;
}

int table_values(const double* values, int count) {
  if (count < 1 || (values[0] != 1 && values[0] != 3)) return -1;
  const int used = 1 + kTableValues * static_cast<int>(values[0]);
  if (count < used) return -1;
  for (int i = 1; i < used; ++i) {
    if (!(values[i] >= 0 && values[i] < 4294967296.0)) return -1;
  }
  return used;
}

void levels(Canvas* canvas, const double* values) {
  LevelTables tables;
  for (int c = 0; c < 3; ++c) {
    const double* const four = values + 1 + (values[0] == 3 ? c * kTableValues : 0);
    for (int i = 0; i < 256; ++i) {
      tables[c][i] = static_cast<uint8_t>(static_cast<uint32_t>(four[i / 4]) >> (8 * (i % 4)));
    }
  }
  look_up(tables, canvas);
}

// Whether x, y, width and height are of a box of the image; `least`: its sides have so many pixels.
bool is_box(const double* box, int least, int width, int height) {
  const int sides[2] = {width, height};
  for (int axis = 0; axis < 2; ++axis) {
    const double start = box[axis], side = box[2 + axis];
    if (!(start >= 0 && side >= least && start + side <= sides[axis])) return false;
  }
  return true;
}

// The factor, and a box inside the image.
int contrast_crop_values(const double* values, int count, int width, int height) {
  return count >= 5 && is_box(values + 1, 1, width, height) ? 5 : -1;
}

int rectangle_values(const double* values, int count, int width, int height) {
  if (count < 7 || !is_box(values, 0, width, height)) return -1;
  return std::all_of(values + 4, values + 7, [](double v) { return v >= 0 && v <= 255; }) ? 7 : -1;
}

// The position from which padding takes position `at` of `size`; `how` as kPad lists it.
int padded_from(int at, int size, int how) {
  if (how == 0) return std::clamp(at, 0, size - 1);
  const int repeated = how - 1;
  if (at < 0) return -at - repeated;
  return at < size ? at : 2 * (size - 1) - at + repeated;
}

int pad_values(const double* values, int count, int width, int height) {
  if (count < 5 || (values[4] != 0 && values[4] != 1 && values[4] != 2)) return -1;
  const int side[2] = {width, height};
  for (int axis = 0; axis < 2; ++axis) {
    const double most = values[4] == 0 ? kLongestPadded : values[4] == 1 ? side[axis] - 1 : side[axis];
    for (const double border : {values[axis], values[axis + 2]}) {
      if (!(border >= 0 && border <= most)) return -1;
    }
    if (side[axis] + values[axis] + values[axis + 2] > kLongestPadded) return -1;
  }
  return 5;
}

void pad(Canvas* canvas, const double* values) {
  const int left = static_cast<int>(values[0]), top = static_cast<int>(values[1]);
  const int width = canvas->width(), height = canvas->height(), how = static_cast<int>(values[4]);
  const int to_width = left + width + static_cast<int>(values[2]);
  const int to_height = top + height + static_cast<int>(values[3]);
  canvas->begin_next(to_width, to_height);
  for (int c = 0; c < 3; ++c) {
    uint8_t* to = canvas->next_plane(c);
    for (int y = 0; y < to_height; ++y, to += to_width) {
      const ptrdiff_t row = padded_from(y - top, height, how);
      const uint8_t* from = canvas->plane(c) + row * width;
      for (int x = 0; x < left; ++x) to[x] = from[padded_from(x - left, width, how)];
      std::copy_n(from, width, to + left);
      for (int x = left + width; x < to_width; ++x) to[x] = from[padded_from(x - left, width, how)];
    }
  }
  canvas->swap();
}

int kernel_values(const double* values, int count) {
  if (count < 1 || (values[0] != 3 && values[0] != 5)) return -1;
  const int used = 3 + static_cast<int>(values[0] * values[0]);
  // The weights are divided by the scale, in float: no sum of them overflows.
  if (count < used || !(std::fabs(values[1]) >= 1e-6)) return -1;
  for (int i = 1; i < used; ++i) {
    if (!(std::fabs(values[i]) <= 1e9)) return -1;
  }
  return used;
}

}  // namespace

// Uses the kernel that stores rows, as if the image were one row.
void look_up(const LevelTables& tables, Canvas* canvas) {
  resampling::RowOutput output{};
  output.dtype = Dtype::kUint8;
  output.lut = tables.data();
  output.pixel_stride = 1;
  output.channel_stride = canvas->plane_stride();
  const resampling::StoreRow store = resampling::kernels_in_use().store_for(&output);
  constexpr size_t kRun = 1 << 16;
  for (size_t begin = 0; begin < canvas->area(); begin += kRun) {
    output.width = static_cast<int>(std::min(kRun, canvas->area() - begin));
    const uint8_t* const planes[3] = {canvas->plane(0) + begin, canvas->plane(1) + begin,
                                      canvas->plane(2) + begin};
    store(output, planes, canvas->plane(0) + begin);
  }
}

void extremes(const uint8_t* levels, size_t count, int* low, int* high) {
  vectorised([=]() FASTLOAD_LOOP {
    uint8_t least = 255, most = 0;
    for (size_t i = 0; i < count; ++i) {
      least = std::min(least, levels[i]);
      most = std::max(most, levels[i]);
    }
    *low = least;
    *high = most;
  });
}

void Canvas::resize(int width, int height) {
  lay_out(&bytes_[current_], width, height, planes_);
  width_ = width;
  height_ = height;
  mix_width_ = mix_height_ = 0;
  declined_ = false;
}

void Canvas::begin_next(int width, int height) {
  lay_out(&bytes_[1 - current_], width, height, next_planes_);
  next_width_ = width;
  next_height_ = height;
}

void Canvas::swap() {
  current_ = 1 - current_;
  std::swap(planes_, next_planes_);
  std::swap(width_, next_width_);
  std::swap(height_, next_height_);
}

void Canvas::trim() {
  for (resampling::AlignedBytes* bytes : {&bytes_[0], &bytes_[1], &scratch_, &saved_, &sum_}) {
    if (bytes->size() > kKept) bytes->release();
  }
}

int pixel_op_values(PixelOp op, const double* values, int count, int width, int height) {
  for (int i = 0; i < count; ++i) {
    if (!(std::fabs(values[i]) <= 1e30)) return -1;
  }
  switch (op) {
    case PixelOp::kNone:
    case PixelOp::kGrayscale:
    case PixelOp::kInvert:
    case PixelOp::kAutocontrast:
    case PixelOp::kEqualize:
    case PixelOp::kMirror:
    case PixelOp::kUpsideDown:
    case PixelOp::kRotate180:
    case PixelOp::kRotate90:
    case PixelOp::kRotate270:
      return 0;
    case PixelOp::kBrightness:
    case PixelOp::kContrast:
    case PixelOp::kSaturation:
    case PixelOp::kSharpness:
    case PixelOp::kSolarize:
      return 1;
    case PixelOp::kSolarizeAdd:
    case PixelOp::kHue:
      return count >= 1 && values[0] >= 0 && values[0] <= 255 ? 1 : -1;
    case PixelOp::kPosterize:
      return count >= 1 && values[0] >= 0 && values[0] <= 8 ? 1 : -1;
    case PixelOp::kAffine:
      return warp_values(values, count, 6);
    case PixelOp::kAffineTo:
      return sized_warp_values(values, count, 6);
    case PixelOp::kPerspective:
      return sized_warp_values(values, count, 8);
    case PixelOp::kBoxBlur: {
      if (count < 3 || (values[2] != 0 && values[2] != 1)) return -1;
      const bool valid =
          values[0] >= 0 && values[0] <= kMostBlurred && values[1] >= 0 && values[1] <= kMostBlurred;
      return valid ? 3 : -1;
    }
    case PixelOp::kBlur:
      return blur_values(values, count, width, height, false);
    case PixelOp::kTorchBlur:
      return blur_values(values, count, width, height, true);
    case PixelOp::kLevels:
      return table_values(values, count);
    case PixelOp::kKernel:
      return kernel_values(values, count);
    case PixelOp::kContrastCrop:
      return contrast_crop_values(values, count, width, height);
    case PixelOp::kPad:
      return pad_values(values, count, width, height);
    case PixelOp::kOrder:
      return order_values(values, count);
    case PixelOp::kRectangle:
      return rectangle_values(values, count, width, height);
    default:
      return torch_op_values(op, values, count);
  }
}

void pixel_op_size(PixelOp op, const double* values, int* width, int* height) {
  if (op == PixelOp::kRotate90 || op == PixelOp::kRotate270) std::swap(*width, *height);
  if (op == PixelOp::kPad) {
    *width += static_cast<int>(values[0]) + static_cast<int>(values[2]);
    *height += static_cast<int>(values[1]) + static_cast<int>(values[3]);
  }
  const int sized = op == PixelOp::kAffineTo       ? 10
                    : op == PixelOp::kPerspective  ? 12
                    : op == PixelOp::kContrastCrop ? 3
                                                   : 0;
  if (sized != 0) {
    *width = static_cast<int>(values[sized]);
    *height = static_cast<int>(values[sized + 1]);
  }
}

void apply_pixel_op(PixelOp op, const double* values, Canvas* canvas) {
  switch (op) {
    case PixelOp::kNone:
      return;
    case PixelOp::kBrightness: {
      const float factor = static_cast<float>(values[0]);
      return map_levels(canvas, [factor](int i) { return blend(0, i, factor); });
    }
    case PixelOp::kContrast:
      return look_up(contrast_tables(*canvas, static_cast<float>(values[0])), canvas);
    case PixelOp::kContrastCrop:
      return contrast_crop(canvas, values);
    case PixelOp::kPad:
      return pad(canvas, values);
    case PixelOp::kOrder:
      return order(canvas, values);
    case PixelOp::kRectangle:
      return rectangle(canvas, values);
    case PixelOp::kSaturation:
      return saturation(canvas, static_cast<float>(values[0]));
    case PixelOp::kHue:
      return hue(canvas, static_cast<int>(values[0]));
    case PixelOp::kSharpness:
      return sharpness(canvas, static_cast<float>(values[0]));
    case PixelOp::kGrayscale:
      return grayscale(canvas);
    case PixelOp::kInvert:
      return map_levels(canvas, [](int i) { return 255 - i; });
    case PixelOp::kSolarize: {
      const double threshold = values[0];
      return map_levels(canvas, [threshold](int i) { return i < threshold ? i : 255 - i; });
    }
    case PixelOp::kSolarizeAdd: {
      const int more = static_cast<int>(values[0]);
      return map_levels(canvas, [more](int i) { return i < 128 ? std::min(255, i + more) : i; });
    }
    case PixelOp::kPosterize: {
      const int mask = ~((1 << (8 - static_cast<int>(values[0]))) - 1);
      return map_levels(canvas, [mask](int i) { return i & mask; });
    }
    case PixelOp::kAutocontrast:
      return autocontrast(canvas);
    case PixelOp::kEqualize:
      return equalize(canvas);
    case PixelOp::kMirror:
      return mirror(canvas);
    case PixelOp::kUpsideDown:
      return upside_down(canvas);
    case PixelOp::kRotate180:
      mirror(canvas);
      return upside_down(canvas);
    case PixelOp::kRotate90:
      return quarter_turn(canvas, true);
    case PixelOp::kRotate270:
      return quarter_turn(canvas, false);
    case PixelOp::kAffine:
      return affine(canvas, values, canvas->width(), canvas->height());
    case PixelOp::kAffineTo:
      return affine(canvas, values, static_cast<int>(values[10]), static_cast<int>(values[11]));
    case PixelOp::kPerspective:
      return perspective(canvas, values);
    case PixelOp::kBlur:
      return blur(canvas, values);
    case PixelOp::kBoxBlur:
      return box_blur(canvas, values);
    case PixelOp::kLevels:
      return levels(canvas, values);
    case PixelOp::kKernel:
      return kernel(canvas, values);
    case PixelOp::kTorchBlur:
      return torch_blur(canvas, values);
    default:
      return torch_op(op)(canvas, values);
  }
}

}  // namespace fastload
