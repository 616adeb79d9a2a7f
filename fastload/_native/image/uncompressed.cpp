#include "image/uncompressed.h"

#include <algorithm>
#include <cstring>

#include "base/limits.h"
#include "base/x86.h"
#include "image/header.h"

namespace fastload {
namespace {

// Pixels in memory. Row y of the image begins at first + y * stride.
struct StoredPixels {
  const uint8_t* first;
  ptrdiff_t stride;
  int bytes;  // per pixel, 3 or 4
  bool bgr;
  const uint8_t* end;  // of readable memory
};

// One row of 3 or 4 bytes per pixel to RGB, in plain C++: the general case, and the last pixels of a row.
void convert_row(const uint8_t* from, int from_bytes, bool bgr, uint8_t* to, int count) {
  const int red = bgr ? 2 : 0;
  for (int i = 0; i < count; i++) {
    to[0] = from[red];
    to[1] = from[1];
    to[2] = from[2 - red];
    from += from_bytes;
    to += 3;
  }
}

#ifdef FASTLOAD_X86

// Four pixels per step, with a byte shuffle. Reads and writes 16 bytes for every 4 pixels, so it leaves up to
// the last 5 pixels of a row to the caller. Returns the number of pixels done.
__attribute__((target("ssse3"))) int convert_row_ssse3(const uint8_t* from, int from_bytes, bool bgr,
                                                       uint8_t* to, int count) {
  alignas(16) uint8_t order[16];
  std::memset(order, 0x80, sizeof order);
  for (int pixel = 0; pixel < 4; pixel++) {
    for (int c = 0; c < 3; c++) {
      order[pixel * 3 + c] = static_cast<uint8_t>(pixel * from_bytes + (bgr ? 2 - c : c));
    }
  }
  const __m128i shuffle = _mm_load_si128(reinterpret_cast<const __m128i*>(order));
  int done = 0;
  for (; done + 6 <= count; done += 4) {
    const __m128i in = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + done * from_bytes));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to + done * 3), _mm_shuffle_epi8(in, shuffle));
  }
  return done;
}

#endif

void convert(const uint8_t* from, int from_bytes, bool bgr, uint8_t* to, int count) {
  if (from_bytes == 3 && !bgr) {
    std::memcpy(to, from, static_cast<size_t>(count) * 3);
    return;
  }
  int done = 0;
#ifdef FASTLOAD_X86
  if (simd_in_use() >= Simd::kAvx2) done = convert_row_ssse3(from, from_bytes, bgr, to, count);
#endif
  convert_row(from + done * from_bytes, from_bytes, bgr, to + done * 3, count - done);
}

// Feeds the rows that the resampler needs, without a copy if they are already RGB.
Status feed(const StoredPixels& pixels, const Placement& placement, RowBuffer* rows, Resampler* resampler) {
  const int x0 = resampler->need_x0(), width = resampler->need_x1() - x0;
  const int y0 = resampler->need_y0(), y1 = resampler->need_y1();
  if (width <= 0 || y1 <= y0) {
    resampler->finish();
    return Status::kOk;
  }
  const size_t row_nbytes = static_cast<size_t>(width) * 3;
  const uint8_t* first = pixels.first + static_cast<ptrdiff_t>(placement.box_y) * pixels.stride +
                         static_cast<ptrdiff_t>(placement.box_x + x0) * pixels.bytes;
  int y = y0;
  if (pixels.bytes == 3 && !pixels.bgr && pixels.stride > 0) {
    // The resampler may read 64 bytes past each row; the last rows of a file may not have them.
    const uint8_t* row = first + static_cast<ptrdiff_t>(y) * pixels.stride;
    const ptrdiff_t room = pixels.end - row - static_cast<ptrdiff_t>(row_nbytes) - 64;
    const ptrdiff_t safe = room < 0 ? 0 : std::min<ptrdiff_t>(room / pixels.stride + 1, y1 - y);
    if (safe > 0) resampler->rows(row, pixels.stride, static_cast<int>(safe));
    y += static_cast<int>(safe);
  }
  if (y < y1 && !rows->reserve(row_nbytes)) return Status::kIo;
  while (y < y1) {
    const int count = std::min(RowBuffer::kRows, y1 - y);
    for (int i = 0; i < count; i++) {
      convert(first + static_cast<ptrdiff_t>(y + i) * pixels.stride, pixels.bytes, pixels.bgr, rows->row(i),
              width);
    }
    resampler->rows(rows->row(0), rows->stride(), count);
    y += count;
  }
  resampler->finish();
  return Status::kOk;
}

// One row of pixels with any layout to RGB. Planes have a loop of their own, which the compiler turns into
// shuffles.
void gather_row(const uint8_t* from, const PixelLayout& layout, uint8_t* to, int count) {
  const uint8_t *green = from + layout.channel, *blue = green + layout.channel;
  if (layout.pixel == 1) {
    for (int i = 0; i < count; i++) {
      to[3 * i] = from[i];
      to[3 * i + 1] = green[i];
      to[3 * i + 2] = blue[i];
    }
    return;
  }
  for (int i = 0; i < count; i++, to += 3) {
    const ptrdiff_t at = static_cast<ptrdiff_t>(i * layout.pixel);
    to[0] = from[at];
    to[1] = green[at];
    to[2] = blue[at];
  }
}

// The same as feed(), for pixels with any layout.
Status feed_strided(const uint8_t* first, const PixelLayout& layout, const Placement& placement,
                    RowBuffer* rows, Resampler* resampler) {
  const int x0 = resampler->need_x0(), width = resampler->need_x1() - x0;
  const int y0 = resampler->need_y0(), y1 = resampler->need_y1();
  if (width > 0 && y1 > y0) {
    if (!rows->reserve(static_cast<size_t>(width) * 3)) return Status::kIo;
    first += (placement.box_y * layout.row) + (placement.box_x + x0) * layout.pixel;
    for (int y = y0; y < y1;) {
      const int count = std::min(RowBuffer::kRows, y1 - y);
      for (int i = 0; i < count; i++) {
        gather_row(first + (y + i) * layout.row, layout, rows->row(i), width);
      }
      resampler->rows(rows->row(0), rows->stride(), count);
      y += count;
    }
  }
  resampler->finish();
  return Status::kOk;
}

}  // namespace

Status decode_raw(const Span& span, const Placement& placement, RowBuffer* rows, Resampler* resampler) {
  const int64_t width = placement.source_w, height = placement.source_h;
  if (width <= 0 || height <= 0) return Status::kSize;
  uint64_t nbytes = static_cast<uint64_t>(width * height * 3);
  if (span.layout != nullptr) {
    const PixelLayout& at = *span.layout;
    nbytes = static_cast<uint64_t>((height - 1) * at.row + (width - 1) * at.pixel + 2 * at.channel) + 1;
  }
  if (nbytes != span.nbytes) return Status::kSize;
  const Status status = begin_placement(placement, placement.source_w, placement.source_h, resampler);
  if (status != Status::kOk) return status;
  if (span.layout != nullptr) return feed_strided(span.data, *span.layout, placement, rows, resampler);
  const StoredPixels pixels{span.data, static_cast<ptrdiff_t>(width * 3), 3, false,
                            span.data + span.readable};
  return feed(pixels, placement, rows, resampler);
}

Status feed_pixels(const uint8_t* pixels, ptrdiff_t stride, int bytes, const uint8_t* end,
                   const Placement& placement, RowBuffer* rows, Resampler* resampler) {
  return feed(StoredPixels{pixels, stride, bytes, false, end}, placement, rows, resampler);
}

Status decode_bmp(const Span& span, const Placement& placement, RowBuffer* rows, Resampler* resampler) {
  BmpHeader bmp;
  if (!read_bmp_header(span.data, span.nbytes, &bmp)) return Status::kUnsupported;
  if (bmp.planes != 1 || bmp.compression != 0 || (bmp.bits != 24 && bmp.bits != 32))
    return Status::kUnsupported;
  const int bytes = static_cast<int>(bmp.bits / 8);
  const uint64_t stride = (static_cast<uint64_t>(bmp.width) * static_cast<uint64_t>(bytes) + 3) / 4 * 4;
  const uint64_t pixels_nbytes = stride * static_cast<uint64_t>(bmp.height);  // < 2^43: no overflow
  if (bmp.pixels < 14 + bmp.header || bmp.pixels > span.nbytes || pixels_nbytes > span.nbytes - bmp.pixels) {
    return Status::kUnsupported;
  }
  if (static_cast<int64_t>(bmp.width) * bmp.height > kMaxPixels) return Status::kUnsupported;
  const Status status = begin_placement(placement, bmp.width, bmp.height, resampler);
  if (status != Status::kOk) return status;
  const ptrdiff_t step = static_cast<ptrdiff_t>(stride);
  const uint8_t* stored = span.data + bmp.pixels;
  const uint8_t* end = span.data + span.readable;
  const StoredPixels pixels = bmp.top_down
                                  ? StoredPixels{stored, step, bytes, true, end}
                                  : StoredPixels{stored + (bmp.height - 1) * step, -step, bytes, true, end};
  return feed(pixels, placement, rows, resampler);
}

}  // namespace fastload
