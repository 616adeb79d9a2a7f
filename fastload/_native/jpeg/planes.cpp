#include "jpeg/planes.h"

#include <algorithm>
#include <cstring>
#include <new>

#include "base/simd.h"

namespace fastload {
namespace {

// Bytes before and after each row of samples that may be read; they hold the image's edge repeated.
constexpr ptrdiff_t kPadding = 64;

// Bytes of samples that a thread always keeps.
constexpr size_t kKept = size_t{1} << 20;

// The samples of one component.
struct Plane {
  int h, v;  // blocks in an MCU
  ptrdiff_t stride;
  uint8_t* first;  // of the current row of MCUs, at the first column read; one more row lies before it
  uint8_t* row(int y) const { return first + y * stride; }
};

}  // namespace

bool PlaneDecoder::available() {
  return simd_in_use() != Simd::kScalar;  // libjpeg is faster than the scalar kernels
}

// The state while one image is decoded.
struct PlaneDecoder::Image {
  const InverseDct inverse_dct;
  const YccToRgb to_rgb;
  const FrameHeader& frame;
  int16_t* blocks;
  int first_column, last_column;  // of MCUs, half-open
  Plane planes[3];
  int row;  // of MCUs: the one whose samples the planes hold

  bool lay_out(resampling::AlignedBytes* samples);
  bool read_row(CoefficientSource* source, bool luma);
  void transform(int column, int count, bool luma) const;
  void repeat_edges() const;
  void save_last_rows() const;
  void convert(int y, int x0, int width, uint8_t* rgb) const;
};

bool PlaneDecoder::Image::lay_out(resampling::AlignedBytes* samples) {
  const int mcus = last_column - first_column;
  size_t nbytes = 0;
  for (int c = 0; c < frame.components; c++) {
    Plane& plane = planes[c];
    plane.h = c == 0 ? frame.h : 1;
    plane.v = c == 0 ? frame.v : 1;
    // An odd number of cache lines, so that rows above each other do not compete for the same cache sets.
    const size_t lines = (static_cast<size_t>(8 * plane.h * mcus) + 2 * kPadding + 63) / 64 | 1;
    plane.stride = static_cast<ptrdiff_t>(64 * lines);
    nbytes += 64 * lines * static_cast<size_t>(8 * plane.v + 1);
  }
  // Free the memory of a very wide image.
  if (samples->size() > kKept && nbytes < samples->size() / 4) samples->release();
  uint8_t* at;
  try {
    at = samples->room_for<uint8_t>(nbytes);
  } catch (const std::bad_alloc&) {
    return false;
  }
  for (int c = 0; c < frame.components; c++) {
    planes[c].first = at + planes[c].stride + kPadding;
    at += planes[c].stride * (8 * planes[c].v + 1);
  }
  return true;
}

// Transforms the blocks of MCUs [column, column + count) to samples.
void PlaneDecoder::Image::transform(int column, int count, bool luma) const {
  int16_t* from = blocks;
  for (int c = 0; c < frame.components; c++) {
    const Plane& plane = planes[c];
    const int width = count * plane.h;
    uint8_t* to = plane.first + 8 * plane.h * (column - first_column);
    for (int y = 0; y < plane.v; y++, from += 64 * kRun * plane.h, to += 8 * plane.stride) {
      if (c > 0 || luma) inverse_dct(from, width, frame.quant[c], to, plane.stride);
      std::memset(from, 0, sizeof(int16_t) * 64 * static_cast<size_t>(width));
    }
  }
}

// Reads a row of MCUs. `luma`: false if only its chroma is needed, for the row of pixels above or below.
bool PlaneDecoder::Image::read_row(CoefficientSource* source, bool luma) {
  BlockRun run;
  int16_t* at = blocks;
  for (int c = 0, b = 0; c < frame.components; c++) {
    const Plane& plane = planes[c];
    for (int y = 0; y < plane.v; y++, at += 64 * kRun * plane.h) {
      for (int x = 0; x < plane.h; x++, b++) {
        run.first[b] = at + 64 * x;
        run.step[b] = 64 * plane.h;
      }
    }
  }
  for (int column = first_column; column < last_column;) {
    const int end = std::min(last_column, column + kRun);
    if (!source->read(row, column, end, run)) return false;
    transform(column, end - column, luma);
    column = end;
  }
  return true;
}

// Upsampling beyond the image's left and right edge uses the samples at the edge.
void PlaneDecoder::Image::repeat_edges() const {
  const int width = (frame.width + 1) / 2 - 8 * first_column;
  for (int c = 1; c < frame.components; c++) {
    for (int y = 0; y < 8; y++) {
      uint8_t* at = planes[c].row(y);
      if (first_column == 0) at[-1] = at[0];
      if (last_column == frame.mcus_per_row) at[width] = at[width - 1];
    }
  }
}

void PlaneDecoder::Image::save_last_rows() const {
  for (int c = 0; c < frame.components; c++) {
    const Plane& plane = planes[c];
    std::memcpy(plane.row(-1) - kPadding, plane.row(8 * plane.v - 1) - kPadding,
                static_cast<size_t>(plane.stride));
  }
}

// Converts row y of the image, whose samples are in the planes.
void PlaneDecoder::Image::convert(int y, int x0, int width, uint8_t* rgb) const {
  YccRow from{};
  const int up = frame.v - 1;  // 1: chroma has half the rows
  const int near = y >> up, last = ((frame.height + up) >> up) - 1;
  from.far_below = y & 1;
  const int far = std::clamp(from.far_below ? near + 1 : near - 1, 0, last);
  from.luma = planes[0].row(y - row * frame.mcu_height());
  for (int c = 1; c < frame.components; c++) {
    from.near[c - 1] = planes[c].row(near - 8 * row);
    from.far[c - 1] = up ? planes[c].row(far - 8 * row) : from.near[c - 1];
  }
  to_rgb(frame.sampling, from, x0 - first_column * frame.mcu_width(), width, rgb);
}

Status PlaneDecoder::decode(const FrameHeader& frame, CoefficientSource* source, const Placement& placement,
                            RowBuffer* buffer, Resampler* resampler) {
  const int x0 = placement.box_x + resampler->need_x0(), x1 = placement.box_x + resampler->need_x1();
  const int y0 = placement.box_y + resampler->need_y0(), y1 = placement.box_y + resampler->need_y1();
  const int mcu_width = frame.mcu_width(), mcu_height = frame.mcu_height();
  Image image{inverse_dct(),
              ycc_to_rgb(),
              frame,
              blocks_,
              std::max(0, x0 - kMargin) / mcu_width,
              (std::min(frame.width, x1 + kMargin) - 1) / mcu_width + 1,
              {},
              0};
  // If chroma has half the rows, the first and last row of pixels use the chroma row beyond.
  const int beyond = frame.v - 1;
  const int first = std::max(0, y0 - beyond) / mcu_height;
  const int end = (std::min(frame.height, y1 + beyond) - 1) / mcu_height + 1;
  if (!image.lay_out(&samples_) || !buffer->reserve(static_cast<size_t>(x1 - x0) * 3)) return Status::kIo;
  int y = y0, ready = 0;
  for (image.row = first; image.row < end; image.row++) {
    if (beyond && image.row > first) image.save_last_rows();
    const int top = image.row * mcu_height, bottom = top + mcu_height;
    if (!image.read_row(source, top < y1 && bottom > y0)) {
      std::memset(blocks_, 0, sizeof(blocks_));
      return Status::kCorrupt;
    }
    if (frame.h == 2) image.repeat_edges();
    // The last row of pixels needs the next row of MCUs, if there is one.
    const int complete = bottom - (image.row + 1 < frame.mcu_rows ? beyond : 0);
    for (const int stop = std::min(y1, complete); y < stop; y++) {
      image.convert(y, x0, x1 - x0, buffer->row(ready++));
      if ((y + 1 - placement.box_y) % RowBuffer::kRows != 0 && y + 1 < y1) continue;
      resampler->rows(buffer->row(0), buffer->stride(), ready);
      ready = 0;
    }
  }
  resampler->finish();
  return Status::kOk;
}

}  // namespace fastload
