#include "png/png.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "png/expand.h"
#include "png/unfilter.h"

namespace fastload {
namespace {

// DEFLATE cannot make more than this of one byte, so a file that is too short for its size is refused before
// memory is allocated.
constexpr size_t kMostRatio = 1032;

// Bytes that a thread keeps for the RGB pixels of an interlaced image.
constexpr size_t kImageKept = size_t{16} << 20;

constexpr size_t kSlack = Scratch::kSlack;
static_assert(kSlack >= kRowSlack && kSlack >= kExpandSlack);

// The pixels of one of an interlaced image's passes: every dx-th of every dy-th row (specification, 8.1).
struct Pass {
  int x, y, dx, dy;
};

constexpr Pass kAdam7[] = {{0, 0, 8, 8}, {4, 0, 8, 8}, {0, 4, 4, 8}, {2, 0, 4, 4},
                           {0, 2, 2, 4}, {1, 0, 2, 2}, {0, 1, 1, 2}};

constexpr int kPasses = 7;

int steps(int size, int first, int step) {
  return size <= first ? 0 : (size - first + step - 1) / step;
}

// An image, or a pass: rows of equal length, each after its filter's byte.
struct Block {
  int width, height;
  size_t row_nbytes;  // without the filter's byte
  size_t nbytes;      // of all rows
  const uint8_t* row(const uint8_t* first, int y) const {
    return first + static_cast<size_t>(y) * (row_nbytes + 1);
  }
};

Block block_of(const PngFile& file, int width, int height) {
  Block block{width, width > 0 ? height : 0, file.row_nbytes(width), 0};
  block.nbytes = static_cast<size_t>(block.height) * (block.row_nbytes + 1);
  return block;
}

Block pass_of(const PngFile& file, int pass) {
  const Pass& at = kAdam7[pass];
  return block_of(file, steps(file.width, at.x, at.dx), steps(file.height, at.y, at.dy));
}

size_t raw_nbytes(const PngFile& file) {
  if (!file.interlaced) return block_of(file, file.width, file.height).nbytes;
  size_t sum = 0;
  for (int pass = 0; pass < kPasses; pass++) sum += pass_of(file, pass).nbytes;
  return sum;
}

// Pillow refuses other filters, in rows below a crop too.
bool filters_known(const Block& block, const uint8_t* raw) {
  uint8_t most = 0;
  for (int y = 0; y < block.height; y++) most = std::max(most, *block.row(raw, y));
  return most <= kFilterPaeth;
}

// Undoes the filters of one block, row by row, only for its first columns and only down to the last row that
// is needed.
class Rows {
 public:
  static constexpr size_t kLines = 4;  // one of zeros, and three in turn

  // lines: room for kLines rows.
  Rows(const PngFile& file, const Block& block, const uint8_t* raw, int columns, uint8_t* lines)
      : block_(block),
        raw_(raw),
        step_(file.step()),
        nbytes_(file.row_nbytes(columns)),
        lines_(lines),
        line_nbytes_(line_nbytes(nbytes_)),
        unfilter_(unfilter_of_simd()),
        unfilter_two_(step_ <= kMostStepOfTwo ? unfilter_two_of_simd() : nullptr) {
    std::memset(lines_, 0, line_nbytes_);
  }

  static size_t line_nbytes(size_t row_nbytes) { return row_nbytes + kSlack; }

  // Makes `y` the next row. Rows before it are skipped up to the last one that refers to none above it.
  void seek(int y) {
    int first = y;
    while (first > 0 && *block_.row(raw_, first) > kFilterSub) first--;
    y_ = first;
    above_ = lines_;
    while (y_ < y) {
      if (y - y_ > 1 && two_together()) {
        next_two();
      } else {
        next();
      }
    }
  }

  // Whether the next two rows take less time together. There must be two.
  bool two_together() const {
    return unfilter_two_ != nullptr && *block_.row(raw_, y_) == kFilterPaeth &&
           *block_.row(raw_, y_ + 1) == kFilterPaeth;
  }

  // Writes the next row to `to`, which must stay until the row after it was written.
  const uint8_t* next(uint8_t* to) {
    const uint8_t* row = block_.row(raw_, y_++);
    unfilter_(*row, step_, row + 1, above_, to, nbytes_);
    return above_ = to;
  }

  // The same, in memory of its own.
  const uint8_t* next() { return next(line(above_)); }

  // Writes the next two rows; see two_together().
  void next_two(uint8_t* to_first, uint8_t* to_second) {
    const uint8_t *first = block_.row(raw_, y_), *second = block_.row(raw_, y_ + 1);
    unfilter_two_(step_, first + 1, second + 1, above_, to_first, to_second, nbytes_);
    above_ = to_second;
    y_ += 2;
  }

  // The same, in memory of its own, which stays until the next call. Returns both rows.
  std::pair<const uint8_t*, const uint8_t*> next_two() {
    uint8_t *const first = line(above_), *const second = line(first);
    next_two(first, second);
    return {first, second};
  }

 private:
  // The line after `last`, in turn.
  uint8_t* line(const uint8_t* last) {
    for (size_t i = 1; i + 1 < kLines; i++) {
      if (last == lines_ + i * line_nbytes_) return lines_ + (i + 1) * line_nbytes_;
    }
    return lines_ + line_nbytes_;
  }

  const Block& block_;
  const uint8_t* raw_;
  const int step_;
  const size_t nbytes_;
  uint8_t* lines_;
  const size_t line_nbytes_;
  const Unfilter unfilter_;
  const UnfilterTwo unfilter_two_;
  const uint8_t* above_ = nullptr;
  int y_ = 0;
};

// The part of an image that is needed, in its pixels.
struct Needed {
  int x0, x1, y0, y1;
};

// Feeds an image that is not interlaced. False: Pillow must decide.
bool feed(const PngFile& file, const uint8_t* raw, const Needed& needed, uint8_t* lines, RowBuffer* buffer,
          Resampler* resampler) {
  const Block block = block_of(file, file.width, file.height);
  const bool direct = file.colour == PngColour::kRgb && file.depth == 8;  // rows are RGB already
  Rows rows(file, block, raw, needed.x1, lines);
  Expander expander(file);
  rows.seek(needed.y0);
  const int width = needed.x1 - needed.x0;
  const ptrdiff_t skipped = direct ? ptrdiff_t{3} * needed.x0 : 0;
  for (int y = needed.y0; y < needed.y1;) {
    const int count = std::min(RowBuffer::kRows, needed.y1 - y);
    for (int i = 0; i < count;) {
      const bool two = i + 1 < count && rows.two_together();
      if (direct && two) {
        rows.next_two(buffer->row(i), buffer->row(i + 1));
      } else if (direct) {
        rows.next(buffer->row(i));
      } else if (two) {
        const auto [first, second] = rows.next_two();
        expander.rgb(first, needed.x0, width, buffer->row(i));
        expander.rgb(second, needed.x0, width, buffer->row(i + 1));
      } else {
        expander.rgb(rows.next(), needed.x0, width, buffer->row(i));
      }
      i += two ? 2 : 1;
    }
    resampler->rows(buffer->row(0) + skipped, buffer->stride(), count);
    y += count;
  }
  return !expander.outside_palette();
}

// Calls write(x, y, dx, count, pixels) for each row of each pass, from (0, 0) to the last needed row and
// column: `count` pixels from column x, dx apart.
template <typename Expand, typename Write>
void each_row(const PngFile& file, const uint8_t* raw, const Needed& needed, uint8_t* lines, uint8_t* line,
              Expand expand, Write write) {
  for (int pass = 0; pass < kPasses; pass++) {
    const Pass& at = kAdam7[pass];
    const Block block = pass_of(file, pass);
    const int columns = steps(needed.x1, at.x, at.dx), height = steps(needed.y1, at.y, at.dy);
    if (columns > 0 && height > 0) {
      Rows rows(file, block, raw, columns, lines);
      rows.seek(0);
      for (int y = 0; y < height; y++) {
        expand(rows.next(), columns, line);
        write(at.x, at.y + y * at.dy, at.dx, columns, line);
      }
    }
    raw += block.nbytes;
  }
}

}  // namespace

bool is_png(const uint8_t* data, size_t nbytes) {
  static const uint8_t signature[8] = {0x89, 'P', 'N', 'G', 13, 10, 26, 10};
  return nbytes >= sizeof signature && std::memcmp(data, signature, sizeof signature) == 0;
}

// Inflates the data of the file into raw_.
Status PngDecoder::inflate() {
  const size_t nbytes = raw_nbytes(file_);
  if (file_.nbytes < nbytes / kMostRatio) return Status::kUnsupported;
  uint8_t* const raw = raw_.reserve(nbytes);
  if (raw == nullptr) return Status::kIo;
  const uint8_t* data = file_.parts[0].data;
  if (file_.parts.size() > 1) {
    uint8_t* to = joined_.reserve(file_.nbytes);
    if (to == nullptr) return Status::kIo;
    data = to;
    for (const PngFile::Part& part : file_.parts) {
      std::memcpy(to, part.data, part.nbytes);
      to += part.nbytes;
    }
  }
  if (!inflater_.inflate(data, file_.nbytes, raw, nbytes)) return Status::kUnsupported;
  std::memset(raw + nbytes, 0, kSlack);
  if (!file_.interlaced) {
    return filters_known(block_of(file_, file_.width, file_.height), raw) ? Status::kOk
                                                                          : Status::kUnsupported;
  }
  const uint8_t* first = raw;
  for (int pass = 0; pass < kPasses; pass++) {
    const Block block = pass_of(file_, pass);
    if (!filters_known(block, first)) return Status::kUnsupported;
    first += block.nbytes;
  }
  return Status::kOk;
}

Status PngDecoder::decode(const Span& span, const Placement& placement, RowBuffer* rows,
                          Resampler* resampler) {
  if (!Inflater::usable() || !read_png_chunks(span.data, span.nbytes, &inflater_, &file_)) {
    return Status::kUnsupported;
  }
  Status status = begin_placement(placement, file_.width, file_.height, resampler);
  if (status != Status::kOk) return status;
  status = inflate();
  const int x = placement.box_x, y = placement.box_y;
  const Needed needed{x + resampler->need_x0(), x + resampler->need_x1(), y + resampler->need_y0(),
                      y + resampler->need_y1()};
  const int width = needed.x1 - needed.x0, height = needed.y1 - needed.y0;
  if (status == Status::kOk && width > 0 && height > 0) {
    const size_t line = Rows::line_nbytes(file_.row_nbytes(needed.x1));
    uint8_t* const lines = lines_.reserve(Rows::kLines * line + 3 * static_cast<size_t>(needed.x1) + kSlack);
    if (lines == nullptr || !rows->reserve(3 * static_cast<size_t>(needed.x1))) return Status::kIo;
    const uint8_t* raw = raw_.data();
    if (!file_.interlaced) {
      if (!feed(file_, raw, needed, lines, rows, resampler)) status = Status::kUnsupported;
    } else {
      const size_t stride = 3 * static_cast<size_t>(needed.x1);
      image_.resize(stride * static_cast<size_t>(needed.y1) + kSlack);
      Expander expander(file_);
      each_row(
          file_, raw, needed, lines, lines + Rows::kLines * line,
          [&expander](const uint8_t* row, int count, uint8_t* to) { expander.rgb(row, 0, count, to); },
          [this, stride](int at, int row, int step, int count, const uint8_t* pixels) {
            uint8_t* to = image_.data() + static_cast<size_t>(row) * stride + 3 * static_cast<size_t>(at);
            for (int i = 0; i < count; i++, to += 3 * step, pixels += 3) std::memcpy(to, pixels, 3);
          });
      if (expander.outside_palette()) status = Status::kUnsupported;
      resampler->rows(
          image_.data() + static_cast<size_t>(needed.y0) * stride + 3 * static_cast<size_t>(needed.x0),
          static_cast<ptrdiff_t>(stride), height);
    }
  }
  if (status == Status::kOk) resampler->finish();
  trim();
  return status;
}

Status PngDecoder::decode_levels(const Span& span, std::vector<uint8_t>* levels, int* width, int* height) {
  if (!Inflater::usable() || !read_png_chunks(span.data, span.nbytes, &inflater_, &file_)) {
    return Status::kUnsupported;
  }
  // Of one bit per pixel, Pillow makes bools.
  const bool gray = file_.colour == PngColour::kGray && file_.depth > 1 && file_.depth < 16;
  if (!gray && file_.colour != PngColour::kPalette) return Status::kUnsupported;
  *width = file_.width;
  *height = file_.height;
  Status status = inflate();
  if (status == Status::kOk) {
    const size_t line = Rows::line_nbytes(file_.row_nbytes(*width)), w = static_cast<size_t>(*width);
    uint8_t* const lines = lines_.reserve(Rows::kLines * line + w + kSlack);
    if (lines == nullptr) return Status::kIo;
    levels->resize(w * static_cast<size_t>(*height));
    uint8_t* const out = levels->data();
    const Expander expander(file_);
    if (!file_.interlaced) {
      uint8_t* to = out;
      each_whole_row(lines, [&](const uint8_t* row) {
        expander.levels(row, 0, *width, to);
        to += w;
      });
    } else {
      each_row(
          file_, raw_.data(), Needed{0, *width, 0, *height}, lines, lines + Rows::kLines * line,
          [&expander](const uint8_t* row, int count, uint8_t* to) { expander.levels(row, 0, count, to); },
          [out, w](int at, int row, int step, int count, const uint8_t* pixels) {
            uint8_t* to = out + static_cast<size_t>(row) * w + at;
            for (int i = 0; i < count; i++, to += step) *to = pixels[i];
          });
    }
  }
  trim();
  return status;
}

Status PngDecoder::read_rows(const Span& span, size_t* nbytes) {
  if (!Inflater::usable() || !read_png_chunks(span.data, span.nbytes, &inflater_, &file_) ||
      file_.interlaced) {
    return Status::kUnsupported;
  }
  *nbytes = static_cast<size_t>(file_.height) * file_.row_nbytes(file_.width);
  const Status status = inflate();
  if (status != Status::kOk) trim();
  return status;
}

Status PngDecoder::copy_rows(uint8_t* to) {
  const size_t nbytes = file_.row_nbytes(file_.width);
  uint8_t* const lines = lines_.reserve(Rows::kLines * Rows::line_nbytes(nbytes));
  if (lines == nullptr) return Status::kIo;
  each_whole_row(lines, [&](const uint8_t* row) {
    std::memcpy(to, row, nbytes);
    to += nbytes;
  });
  trim();
  return Status::kOk;
}

template <typename Use>
void PngDecoder::each_whole_row(uint8_t* lines, Use use) const {
  const Block block = block_of(file_, file_.width, file_.height);
  Rows rows(file_, block, raw_.data(), file_.width, lines);
  rows.seek(0);
  for (int y = 0; y < block.height;) {
    if (y + 1 < block.height && rows.two_together()) {
      const auto [first, second] = rows.next_two();
      use(first);
      use(second);
      y += 2;
    } else {
      use(rows.next());
      y++;
    }
  }
}

// Frees what an unusually large image took.
void PngDecoder::trim() {
  joined_.trim();
  raw_.trim();
  lines_.trim();
  if (image_.capacity() > kImageKept) std::vector<uint8_t>().swap(image_);
}

const char* png_library() {
  return Inflater::version();
}

}  // namespace fastload
