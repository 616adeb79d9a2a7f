#include "jpeg/planes.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <new>

namespace fastload {
namespace {

// Samples in front of and behind each row that may be read, and hold the image's edge repeated.
constexpr ptrdiff_t kBeside = 64;

// Bytes of samples that a thread keeps whatever comes next.
constexpr size_t kKept = size_t{1} << 20;

// Of one component.
struct Plane {
  int h, v;  // blocks in an MCU
  ptrdiff_t stride;
  uint8_t* first;  // of the row of MCUs at hand, at the first column read; one row more lies in front
  uint8_t* row(int y) const { return first + y * stride; }
};

}  // namespace

struct Planes::Kernels {
  const char* resampler;  // Resampler::simd() that goes with it
  InverseDct inverse_dct;
  YccToRgb to_rgb;
};

const Planes::Kernels& Planes::kernels() {
  static const Kernels kAll[] = {
#if defined(__x86_64__)
      {"avx512", inverse_dct_avx512(), ycc_to_rgb_avx512()},
      {"avx2", inverse_dct_avx2(), ycc_to_rgb_avx2()},
#endif
      {"scalar", inverse_dct_scalar(), ycc_to_rgb_scalar()}};
  const auto same = [](const Kernels& of) { return std::strcmp(of.resampler, Resampler::simd()) == 0; };
  return *std::find_if(std::begin(kAll), std::end(kAll) - 1, same);
}

bool Planes::available() {
  return std::strcmp(kernels().resampler, "scalar") != 0;  // libjpeg is faster
}

// One image.
struct Planes::Work {
  const Kernels& kernels;
  const FrameHeader& frame;
  int16_t* blocks;
  int first_column, last_column;  // of MCUs, half open
  Plane planes[3];
  int row;  // of MCUs, that is there

  bool lay_out(resampling::AlignedBytes* samples);
  bool read_row(CoefficientSource* source, bool luma);
  void transform(int column, int count, bool luma) const;
  void repeat_edges() const;
  void keep_last_rows() const;
  void convert(int y, int x0, int width, uint8_t* rgb) const;
};

bool Planes::Work::lay_out(resampling::AlignedBytes* samples) {
  const int mcus = last_column - first_column;
  size_t nbytes = 0;
  for (int c = 0; c < frame.components; c++) {
    Plane& plane = planes[c];
    plane.h = c == 0 ? frame.h : 1;
    plane.v = c == 0 ? frame.v : 1;
    // An odd number of cache lines: rows above each other must not share their sets.
    const size_t lines = (static_cast<size_t>(8 * plane.h * mcus) + 2 * kBeside + 63) / 64 | 1;
    plane.stride = static_cast<ptrdiff_t>(64 * lines);
    nbytes += 64 * lines * static_cast<size_t>(8 * plane.v + 1);
  }
  // A thread does not keep what a very wide image took.
  if (samples->size() > kKept && nbytes < samples->size() / 4) samples->release();
  uint8_t* at;
  try {
    at = samples->room_for<uint8_t>(nbytes);
  } catch (const std::bad_alloc&) {
    return false;
  }
  for (int c = 0; c < frame.components; c++) {
    planes[c].first = at + planes[c].stride + kBeside;
    at += planes[c].stride * (8 * planes[c].v + 1);
  }
  return true;
}

// The blocks of MCUs [column, column + count) into samples.
void Planes::Work::transform(int column, int count, bool luma) const {
  int16_t* from = blocks;
  for (int c = 0; c < frame.components; c++) {
    const Plane& plane = planes[c];
    const int width = count * plane.h;
    uint8_t* to = plane.first + 8 * plane.h * (column - first_column);
    for (int y = 0; y < plane.v; y++, from += 64 * kRun * plane.h, to += 8 * plane.stride) {
      if (c > 0 || luma) kernels.inverse_dct(from, width, frame.quant[c], to, plane.stride);
      std::memset(from, 0, sizeof(int16_t) * 64 * static_cast<size_t>(width));
    }
  }
}

// Without luma, where only chroma is looked at, by the row of pixels above or below.
bool Planes::Work::read_row(CoefficientSource* source, bool luma) {
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

// Upsampling sees beyond the image's left and right edge what lies at the edge.
void Planes::Work::repeat_edges() const {
  const int width = (frame.width + 1) / 2 - 8 * first_column;
  for (int c = 1; c < frame.components; c++) {
    for (int y = 0; y < 8; y++) {
      uint8_t* at = planes[c].row(y);
      if (first_column == 0) at[-1] = at[0];
      if (last_column == frame.mcus_per_row) at[width] = at[width - 1];
    }
  }
}

void Planes::Work::keep_last_rows() const {
  for (int c = 0; c < frame.components; c++) {
    const Plane& plane = planes[c];
    std::memcpy(plane.row(-1) - kBeside, plane.row(8 * plane.v - 1) - kBeside,
                static_cast<size_t>(plane.stride));
  }
}

// Row y of the image, whose samples are there.
void Planes::Work::convert(int y, int x0, int width, uint8_t* rgb) const {
  YccRow from{};
  const int up = frame.v - 1;  // chroma rows are half as many then
  const int near = y >> up, last = ((frame.height + up) >> up) - 1;
  from.far_below = y & 1;
  const int far = std::clamp(from.far_below ? near + 1 : near - 1, 0, last);
  from.luma = planes[0].row(y - row * frame.mcu_height());
  for (int c = 1; c < frame.components; c++) {
    from.near[c - 1] = planes[c].row(near - 8 * row);
    from.far[c - 1] = up ? planes[c].row(far - 8 * row) : from.near[c - 1];
  }
  kernels.to_rgb(frame.sampling, from, x0 - first_column * frame.mcu_width(), width, rgb);
}

Status Planes::decode(const FrameHeader& frame, CoefficientSource* source, const Placement& placement,
                      RowBuffer* buffer, Resampler* resampler) {
  const int x0 = placement.box_x + resampler->need_x0(), x1 = placement.box_x + resampler->need_x1();
  const int y0 = placement.box_y + resampler->need_y0(), y1 = placement.box_y + resampler->need_y1();
  const int mcu_width = frame.mcu_width(), mcu_height = frame.mcu_height();
  Work work{kernels(),
            frame,
            blocks_,
            std::max(0, x0 - kMargin) / mcu_width,
            (std::min(frame.width, x1 + kMargin) - 1) / mcu_width + 1,
            {},
            0};
  // Where chroma has half the rows, pixels of the first and last row look at the one beyond.
  const int beyond = frame.v - 1;
  const int first = std::max(0, y0 - beyond) / mcu_height;
  const int end = (std::min(frame.height, y1 + beyond) - 1) / mcu_height + 1;
  if (!work.lay_out(&samples_) || !buffer->reserve(static_cast<size_t>(x1 - x0) * 3)) return Status::kIo;
  int y = y0, held = 0;
  for (work.row = first; work.row < end; work.row++) {
    if (beyond && work.row > first) work.keep_last_rows();
    const int top = work.row * mcu_height, bottom = top + mcu_height;
    if (!work.read_row(source, top < y1 && bottom > y0)) {
      std::memset(blocks_, 0, sizeof(blocks_));
      return Status::kCorrupt;
    }
    if (frame.h == 2) work.repeat_edges();
    // The last row of pixels waits for the next row of MCUs, if that is looked at.
    const int there = bottom - (work.row + 1 < frame.mcu_rows ? beyond : 0);
    for (const int stop = std::min(y1, there); y < stop; y++) {
      work.convert(y, x0, x1 - x0, buffer->row(held++));
      if ((y + 1 - placement.box_y) % RowBuffer::kRows != 0 && y + 1 < y1) continue;
      resampler->rows(buffer->row(0), buffer->stride(), held);
      held = 0;
    }
  }
  resampler->finish();
  return Status::kOk;
}

}  // namespace fastload
