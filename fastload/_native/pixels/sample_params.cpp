#include "pixels/sample_params.h"

#include <algorithm>
#include <cstring>

#include "base/philox.h"

namespace fastload {

namespace {

// Bytes that a thread keeps for rows of one image: values of 1,000 rows of 1,000 columns.
constexpr size_t kLineKept = size_t{4} << 20;

void interleave(const uint8_t* const* planes, int count, uint8_t* rgb) {
  for (int x = 0; x < count; ++x, rgb += 3) {
    rgb[0] = planes[0][x];
    rgb[1] = planes[1][x];
    rgb[2] = planes[2][x];
  }
}

// Runs a crop stage that resamples.
bool resample_crop(const Canvas& canvas, const CropStage& crop, const Resize& resize, const Target& target,
                   RowBuffer* rows, Resampler* resampler) {
  if (!resampler->begin(resize, target)) return false;
  const int x0 = resampler->need_x0(), width = resampler->need_x1() - x0;
  if (width > 0) {
    if (!rows->reserve(static_cast<size_t>(width) * 3)) return false;
    for (int y = resampler->need_y0(); y < resampler->need_y1();) {
      const int count = std::min(RowBuffer::kRows, resampler->need_y1() - y);
      for (int i = 0; i < count; ++i, ++y) {
        const ptrdiff_t at = static_cast<ptrdiff_t>(crop.box_y + y) * canvas.width() + crop.box_x + x0;
        const uint8_t* const planes[3] = {canvas.plane(0) + at, canvas.plane(1) + at, canvas.plane(2) + at};
        interleave(planes, width, rows->row(i));
      }
      resampler->rows(rows->row(0), rows->stride(), count);
    }
  }
  resampler->finish();
  return true;
}

// Runs a crop stage that only crops, pads and mirrors: rows of levels go directly to the kernel that stores
// rows.
void store_crop(const Canvas& canvas, const CropStage& crop, const uint8_t* fill, const Target& target,
                int element, Workspace* workspace) {
  using resampling::kSlack;
  resampling::RowOutput& output = workspace->output;
  output.dtype = target.dtype;
  output.lut = target.lut;
  output.flip = target.flip;
  output.width = crop.out_w;
  output.nbytes = int64_t{3} * crop.out_w * crop.out_h * element;
  output.pixel_stride = target.pixel_stride;
  output.channel_stride = target.channel_stride;
  const resampling::StoreRow store = resampling::kernels_in_use().store_for(&output);

  const int left = std::clamp(-crop.window_x, 0, crop.out_w);
  const int right = std::clamp(crop.box_w - crop.window_x, left, crop.out_w);
  const bool padded = left > 0 || right < crop.out_w;
  const size_t stride = (static_cast<size_t>(crop.out_w) + 63) / 64 * 64 + 2 * kSlack;
  uint8_t* line = workspace->line.room_for<uint8_t>(6 * stride) + kSlack;  // a row, and a row of fill
  for (int c = 0; c < 3; ++c) {
    std::memset(line + c * stride, fill[c], static_cast<size_t>(crop.out_w));
    std::memset(line + (3 + c) * stride, fill[c], static_cast<size_t>(crop.out_w));
  }
  for (int y = 0; y < crop.out_h; ++y) {
    const int source_y = crop.window_y + y;
    const bool inside = source_y >= 0 && source_y < crop.box_h && left < right;
    const uint8_t* planes[3];
    for (int c = 0; c < 3; ++c) {
      if (!inside) {
        planes[c] = line + (3 + c) * stride;
        continue;
      }
      const uint8_t* row = canvas.plane(c) + static_cast<ptrdiff_t>(crop.box_y + source_y) * canvas.width() +
                           crop.box_x + crop.window_x;
      planes[c] = row;
      if (padded) {
        std::memcpy(line + c * stride + left, row + left, static_cast<size_t>(right - left));
        planes[c] = line + c * stride;
      }
    }
    store(output, planes, static_cast<uint8_t*>(target.data) + y * target.row_stride * element);
  }
}

void set_levels(int width, Canvas* canvas, bool next, const uint8_t* fill, Target* target) {
  target->data = next ? canvas->next_plane(0) : canvas->plane(0);
  target->dtype = Dtype::kUint8;
  target->row_stride = width;
  target->pixel_stride = 1;
  target->channel_stride = next ? canvas->next_plane_stride() : canvas->plane_stride();
  target->lut = nullptr;
  std::copy_n(fill, 3, target->fill);
}

// The 16 random bits of each value of a rectangle, in order: eight per Philox block, low halves first.
class Noise {
 public:
  explicit Noise(uint64_t key) : key_(key), block_(key, 0) {}
  uint32_t next() {
    const uint64_t index = at_ / 8;
    if (at_ % 8 == 0 && index > 0) block_ = PhiloxBlock(key_, index);
    const uint32_t word = block_.words[at_ % 8 / 2];
    return at_++ % 2 == 0 ? word & 0xffff : word >> 16;
  }

 private:
  uint64_t key_, at_ = 0;
  PhiloxBlock block_;
};

template <typename Element>
void erase_box(const EraseBox& box, const Erasing::Fill& fill, const uint8_t* values, uint64_t key,
               const Target& target, int channels) {
  Noise noise(key);
  const bool noisy = fill.kind == Erasing::Kind::kNoise;
  const Element* from = reinterpret_cast<const Element*>(values);
  for (int c = 0; c < channels; ++c, from += noisy ? kNoiseValues : 1) {
    for (int y = box.y; y < box.y + box.h; ++y) {
      Element* to = static_cast<Element*>(target.data) + c * target.channel_stride + y * target.row_stride +
                    box.x * target.pixel_stride;
      if (fill.kind == Erasing::Kind::kBits) {
        for (int x = 0; x < box.w; ++x, to += target.pixel_stride) *to = static_cast<Element>(*to & *from);
        continue;
      }
      if (!noisy && target.pixel_stride == 1) {
        std::fill_n(to, box.w, *from);
        continue;
      }
      for (int x = 0; x < box.w; ++x, to += target.pixel_stride) *to = from[noisy ? noise.next() : 0];
    }
  }
}

}  // namespace

void begin_stages(const SampleParams& params, int64_t item, Workspace* workspace, Placement* placement) {
  const int width = params.first_size[static_cast<size_t>(2 * item)];
  const int height = params.first_size[static_cast<size_t>(2 * item + 1)];
  workspace->canvas.resize(width, height);
  placement->resize.out_w = width;
  placement->resize.out_h = height;
  const uint8_t fill[3] = {placement->target.fill[0], placement->target.fill[1], placement->target.fill[2]};
  set_levels(width, &workspace->canvas, false, fill, &placement->target);
}

bool begin_alike(const SampleParams& one, const SampleParams& other, int64_t item) {
  if (one.settings.size() != 1 || other.empty()) return false;
  const int count = one.settings[0].operations;
  if (other.settings[0].operations != count) return false;
  const size_t sample = static_cast<size_t>(item);
  if (!std::equal(&one.first_size[2 * sample], &one.first_size[2 * sample] + 2,
                  &other.first_size[2 * sample])) {
    return false;
  }
  for (int k = 0; k < count; ++k) {
    const size_t in_one = sample * static_cast<size_t>(one.operations) + static_cast<size_t>(k);
    const size_t in_other = sample * static_cast<size_t>(other.operations) + static_cast<size_t>(k);
    if (one.codes[in_one] != other.codes[in_other]) return false;
    const double* values = one.values.data() + in_one * static_cast<size_t>(one.width);
    const double* others = other.values.data() + in_other * static_cast<size_t>(other.width);
    for (int i = 0; i < std::max(one.width, other.width); ++i) {
      if ((i < one.width ? values[i] : 0.0) != (i < other.width ? others[i] : 0.0)) return false;
    }
  }
  return true;
}

bool run_stages(const SampleParams& params, int64_t item, PassOrder order, const Target& target, bool begun,
                Workspace* workspace, Resampler* resampler) {
  const size_t count = params.settings.size(), operations = static_cast<size_t>(params.operations);
  Canvas& canvas = workspace->canvas;
  size_t at = static_cast<size_t>(item) * operations;
  for (size_t f = 0; f < count; ++f) {
    const StageSettings& settings = params.settings[f];
    const CropStage& crop = params.crops[static_cast<size_t>(item) * count + f];
    for (int k = 0; k < settings.operations; ++k, ++at) {
      if (begun && f == 0) continue;
      apply_pixel_op(params.codes[at], params.values.data() + at * static_cast<size_t>(params.width),
                     &canvas);
    }
    const bool last = f + 1 == count;
    Target to = target;
    if (!last) {
      canvas.begin_next(crop.out_w, crop.out_h);
      set_levels(crop.out_w, &canvas, true, settings.fill, &to);
    }
    std::copy_n(settings.fill, 3, to.fill);
    to.flip = crop.flip != 0;
    if (last && !params.last.empty()) {
      const Resize resize{crop.box_w,    crop.box_h, crop.resized_w, crop.resized_h,  crop.window_x,
                          crop.window_y, crop.out_w, crop.out_h,     settings.filter, order};
      const ptrdiff_t box = static_cast<ptrdiff_t>(crop.box_y) * canvas.width() + crop.box_x;
      resampling::LevelBox planes[3];
      for (int c = 0; c < 3; ++c) planes[c] = {canvas.plane(c) + box, canvas.width(), crop.box_w, crop.box_h};
      resampling::resize_values(params.last, planes, resize, to, &workspace->line);
      if (workspace->line.size() > kLineKept) workspace->line.release();
    } else if (crop.resized_w == crop.box_w && crop.resized_h == crop.box_h) {
      store_crop(canvas, crop, settings.fill, to, static_cast<int>(dtype_nbytes(to.dtype)), workspace);
    } else {
      const Resize resize{crop.box_w,    crop.box_h, crop.resized_w, crop.resized_h,  crop.window_x,
                          crop.window_y, crop.out_w, crop.out_h,     settings.filter, order};
      if (!resample_crop(canvas, crop, resize, to, &workspace->rows, resampler)) return false;
    }
    if (!last) canvas.swap();
  }
  return true;
}

void erase(const Erasing& erasing, int64_t item, const Target& target, int channels, int element) {
  const size_t count = erasing.fills.size();
  for (size_t e = 0; e < count; ++e) {
    const size_t at = static_cast<size_t>(item) * count + e;
    const EraseBox& box = erasing.boxes[at];
    if (box.w == 0) continue;
    const Erasing::Fill& fill = erasing.fills[e];
    const uint8_t* values = erasing.values.data() + fill.offset;
    if (element == 4) {
      erase_box<uint32_t>(box, fill, values, erasing.keys[at], target, channels);
    } else if (element == 2) {
      erase_box<uint16_t>(box, fill, values, erasing.keys[at], target, channels);
    } else {
      erase_box<uint8_t>(box, fill, values, erasing.keys[at], target, channels);
    }
  }
}

}  // namespace fastload
