#include "batch/image.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace fastload {
namespace {

uint32_t le16(const uint8_t* p) {
  return static_cast<uint32_t>(p[0] | p[1] << 8);
}
uint32_t le32(const uint8_t* p) {
  return le16(p) | le16(p + 2) << 16;
}
uint32_t be16(const uint8_t* p) {
  return static_cast<uint32_t>(p[0] << 8 | p[1]);
}
uint32_t be32(const uint8_t* p) {
  return be16(p) << 16 | be16(p + 2);
}

// Pixels in memory, not copied yet. Row y of the image begins at first + y * stride.
struct Pixels {
  const uint8_t* first;
  ptrdiff_t stride;
  int bytes;  // per pixel, 3 or 4
  bool bgr;
  const uint8_t* end;  // of readable memory
};

// One row into RGB or RGBX. Plain loops: the general case, and the last pixels of a row.
void convert_row(const uint8_t* from, int from_bytes, bool bgr, uint8_t* to, int to_bytes, int count) {
  const int red = bgr ? 2 : 0;
  for (int i = 0; i < count; i++) {
    to[0] = from[red];
    to[1] = from[1];
    to[2] = from[2 - red];
    if (to_bytes == 4) to[3] = 255;
    from += from_bytes;
    to += to_bytes;
  }
}

#if defined(__x86_64__)

// Four pixels a step: a byte shuffle. Reads 16 bytes for every 4 pixels and writes 16, so the last 6
// pixels of a row are left to the caller. Returns the number of pixels done.
__attribute__((target("ssse3"))) int convert_row_ssse3(const uint8_t* from, int from_bytes, bool bgr,
                                                       uint8_t* to, int to_bytes, int count) {
  alignas(16) uint8_t order[16];
  std::memset(order, 0x80, sizeof order);
  for (int pixel = 0; pixel < 4; pixel++) {
    for (int c = 0; c < 3; c++) {
      order[pixel * to_bytes + c] = static_cast<uint8_t>(pixel * from_bytes + (bgr ? 2 - c : c));
    }
  }
  const __m128i shuffle = _mm_load_si128(reinterpret_cast<const __m128i*>(order));
  int done = 0;
  for (; done + 6 <= count; done += 4) {
    const __m128i in = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + done * from_bytes));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to + done * to_bytes), _mm_shuffle_epi8(in, shuffle));
  }
  return done;
}

#endif

void convert(const uint8_t* from, int from_bytes, bool bgr, uint8_t* to, int to_bytes, int count) {
  if (from_bytes == to_bytes && !bgr) {
    std::memcpy(to, from, static_cast<size_t>(count) * static_cast<size_t>(from_bytes));
    return;
  }
  int done = 0;
#if defined(__x86_64__)
  static const bool ssse3 = __builtin_cpu_supports("ssse3");
  if (ssse3) done = convert_row_ssse3(from, from_bytes, bgr, to, to_bytes, count);
#endif
  convert_row(from + done * from_bytes, from_bytes, bgr, to + done * to_bytes, to_bytes, count - done);
}

// Feeds the rows the resampler asked for: in place where they already are what it wants.
Status feed(const Pixels& pixels, const Placement& placement, RowBuffer* rows, Resampler* resampler) {
  const int x0 = resampler->need_x0(), width = resampler->need_x1() - x0;
  const int y0 = resampler->need_y0(), y1 = resampler->need_y1();
  if (width <= 0 || y1 <= y0) {
    resampler->finish();
    return Status::kOk;
  }
  const int to_bytes = resampler->pixel_bytes();
  const size_t row_nbytes = static_cast<size_t>(width) * static_cast<size_t>(to_bytes);
  const uint8_t* first = pixels.first + static_cast<ptrdiff_t>(placement.box_y) * pixels.stride +
                         static_cast<ptrdiff_t>(placement.box_x + x0) * pixels.bytes;
  int y = y0;
  if (pixels.bytes == to_bytes && !pixels.bgr && pixels.stride > 0) {
    // The resampler may read 64 bytes beyond each row, which the last rows of a file may not have.
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
              to_bytes, width);
    }
    resampler->rows(rows->row(0), rows->stride(), count);
    y += count;
  }
  resampler->finish();
  return Status::kOk;
}

// One row of pixels that lie apart, into RGB or RGBX. Written out for whole planes and for gray, which the
// compiler turns into shuffles.
void gather_row(const uint8_t* from, const Layout& layout, uint8_t* to, int to_bytes, int count) {
  const uint8_t *green = from + layout.channel, *blue = green + layout.channel;
  if (layout.pixel == 1 && to_bytes == 3) {
    for (int i = 0; i < count; i++) {
      to[3 * i] = from[i];
      to[3 * i + 1] = green[i];
      to[3 * i + 2] = blue[i];
    }
    return;
  }
  for (int i = 0; i < count; i++, to += to_bytes) {
    const ptrdiff_t at = static_cast<ptrdiff_t>(i * layout.pixel);
    to[0] = from[at];
    to[1] = green[at];
    to[2] = blue[at];
    if (to_bytes == 4) to[3] = 255;
  }
}

// The same as feed(), out of pixels that lie apart.
Status feed_apart(const uint8_t* first, const Layout& layout, const Placement& placement, RowBuffer* rows,
                  Resampler* resampler) {
  const int x0 = resampler->need_x0(), width = resampler->need_x1() - x0;
  const int y0 = resampler->need_y0(), y1 = resampler->need_y1();
  const int to_bytes = resampler->pixel_bytes();
  if (width > 0 && y1 > y0) {
    if (!rows->reserve(static_cast<size_t>(width) * static_cast<size_t>(to_bytes))) return Status::kIo;
    first += (placement.box_y * layout.row) + (placement.box_x + x0) * layout.pixel;
    for (int y = y0; y < y1;) {
      const int count = std::min(RowBuffer::kRows, y1 - y);
      for (int i = 0; i < count; i++) {
        gather_row(first + (y + i) * layout.row, layout, rows->row(i), to_bytes, width);
      }
      resampler->rows(rows->row(0), rows->stride(), count);
      y += count;
    }
  }
  resampler->finish();
  return Status::kOk;
}

struct BmpHeader {
  int width, height;
  bool top_down;
  uint32_t pixels;  // offset of the first stored row
  uint32_t bits, compression, planes, header;
};

bool read_bmp_header(const uint8_t* data, size_t nbytes, BmpHeader* bmp) {
  if (nbytes < 54 || data[0] != 'B' || data[1] != 'M') return false;
  bmp->pixels = le32(data + 10);
  bmp->header = le32(data + 14);
  if (bmp->header != 40 && bmp->header != 108 && bmp->header != 124) return false;
  const int64_t width = static_cast<int32_t>(le32(data + 18));
  const int64_t height = static_cast<int32_t>(le32(data + 22));
  bmp->top_down = height < 0;
  const int64_t rows = height < 0 ? -height : height;
  if (width <= 0 || rows <= 0 || width > kMaxSide || rows > kMaxSide) return false;
  bmp->width = static_cast<int>(width);
  bmp->height = static_cast<int>(rows);
  bmp->planes = le16(data + 26);
  bmp->bits = le16(data + 28);
  bmp->compression = le32(data + 30);
  return true;
}

}  // namespace

int scale_of(const Placement& placement) {
  const Resize& r = placement.resize;
  if (!placement.scaled || r.filter == Filter::kNearest || r.filter > Filter::kLanczos) return 1;
  for (const int scale : {8, 4, 2}) {
    if (r.box_w >= 2 * scale * r.resized_w && r.box_h >= 2 * scale * r.resized_h) return scale;
  }
  return 1;
}

Placement scaled_down(const Placement& placement, int scale) {
  Placement scaled = placement;
  const int eighths = 8 / scale;  // of a pixel of the result, that a pixel of the file takes
  const int right = placement.box_x + placement.resize.box_w,
            bottom = placement.box_y + placement.resize.box_h;
  Resize& r = scaled.resize;
  scaled.source_w = scaled.source_h = 0;
  scaled.box_x = placement.box_x / scale;
  scaled.box_y = placement.box_y / scale;
  r.box_w = (right + scale - 1) / scale - scaled.box_x;
  r.box_h = (bottom + scale - 1) / scale - scaled.box_y;
  r.lead_x = placement.box_x % scale * eighths;
  r.lead_y = placement.box_y % scale * eighths;
  r.tail_x = (scale - right % scale) % scale * eighths;
  r.tail_y = (scale - bottom % scale) % scale * eighths;
  return scaled;
}

bool fits(const Placement& placement, int width, int height) {
  if (placement.source_w != 0 && (placement.source_w != width || placement.source_h != height)) return false;
  return placement.box_x + placement.resize.box_w <= width &&
         placement.box_y + placement.resize.box_h <= height;
}

Status begin_placement(const Placement& placement, int width, int height, Resampler* resampler) {
  if (!fits(placement, width, height)) return Status::kSize;
  return resampler->begin(placement.resize, placement.target) ? Status::kOk : Status::kIo;
}

RowBuffer::~RowBuffer() {
  std::free(memory_);
}

bool RowBuffer::reserve(size_t nbytes) {
  stride_ = (nbytes + 64 + 31) / 32 * 32;
  const size_t wanted = stride_ * kRows + 64;
  // Shrinks after a very wide image: what a thread keeps stays small.
  if (wanted > capacity_ || (capacity_ > (size_t{4} << 20) && wanted < capacity_ / 4)) {
    std::free(memory_);
    memory_ = static_cast<uint8_t*>(std::malloc(wanted));
    capacity_ = memory_ == nullptr ? 0 : wanted;
    if (memory_ == nullptr) return false;
    std::memset(memory_, 0, wanted);
    const uintptr_t address = reinterpret_cast<uintptr_t>(memory_);
    base_ = memory_ + (32 - address % 32) % 32 + 16;
  }
  return true;
}

Status decode_raw(const Span& span, const Placement& placement, RowBuffer* rows, Resampler* resampler) {
  const int64_t width = placement.source_w, height = placement.source_h;
  if (width <= 0 || height <= 0) return Status::kSize;
  uint64_t nbytes = static_cast<uint64_t>(width * height * 3);
  if (span.layout != nullptr) {
    const Layout& at = *span.layout;
    nbytes = static_cast<uint64_t>((height - 1) * at.row + (width - 1) * at.pixel + 2 * at.channel) + 1;
  }
  if (nbytes != span.nbytes) return Status::kSize;
  const Status status = begin_placement(placement, placement.source_w, placement.source_h, resampler);
  if (status != Status::kOk) return status;
  if (span.layout != nullptr) return feed_apart(span.data, *span.layout, placement, rows, resampler);
  const Pixels pixels{span.data, static_cast<ptrdiff_t>(width * 3), 3, false, span.data + span.readable};
  return feed(pixels, placement, rows, resampler);
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
  const Pixels pixels = bmp.top_down ? Pixels{stored, step, bytes, true, end}
                                     : Pixels{stored + (bmp.height - 1) * step, -step, bytes, true, end};
  return feed(pixels, placement, rows, resampler);
}

namespace {

// The marker at `at`, or behind fill bytes; -1: there is none, or not the two bytes of its length.
// `at` becomes that of the segment.
int next_marker(const uint8_t* data, size_t nbytes, size_t* at) {
  while (nbytes - *at >= 4 && data[*at] == 0xFF) {
    const int marker = data[*at + 1];
    if (marker == 0xFF) {  // fill byte
      *at += 1;
    } else if (marker == 0x01 || (marker >= 0xD0 && marker <= 0xD7)) {  // no parameters
      *at += 2;
    } else {
      return marker;
    }
  }
  return -1;
}

// Past the segment at `at`; false where it does not lie within the file.
bool skip_segment(const uint8_t* data, size_t nbytes, size_t* at) {
  const size_t length = be16(data + *at + 2);
  if (length < 2 || nbytes - *at - 2 < length) return false;
  *at += 2 + length;
  return true;
}

bool is_jpeg(const uint8_t* data, size_t nbytes) {
  return nbytes >= 4 && data[0] == 0xFF && data[1] == 0xD8 && data[2] == 0xFF;
}

constexpr int kStartOfScan = 0xDA, kEndOfImage = 0xD9;

}  // namespace

bool find_jpeg_frame(const uint8_t* data, size_t nbytes, int* sof, int* width, int* height) {
  if (!is_jpeg(data, nbytes)) return false;
  for (size_t at = 2;;) {
    const int marker = next_marker(data, nbytes, &at);
    if (marker < 0) return false;
    if (marker >= 0xC0 && marker <= 0xCF && marker != 0xC4 && marker != 0xC8 && marker != 0xCC) {
      if (be16(data + at + 2) < 8 || nbytes - at < 10) return false;
      *sof = marker;
      *height = static_cast<int>(be16(data + at + 5));
      *width = static_cast<int>(be16(data + at + 7));
      return true;
    }
    if (marker == kEndOfImage || marker == kStartOfScan || !skip_segment(data, nbytes, &at)) return false;
  }
}

bool jpeg_ends(const uint8_t* data, size_t nbytes) {
  const auto end_at = [data](size_t at) { return data[at] == 0xFF && data[at + 1] == kEndOfImage; };
  if (!is_jpeg(data, nbytes)) return false;
  if (end_at(nbytes - 2)) return true;
  // A thumbnail in the head has an end too.
  size_t at = 2;
  for (int marker = 0; marker != kStartOfScan;) {
    marker = next_marker(data, nbytes, &at);
    if (marker < 0 || marker == kEndOfImage || !skip_segment(data, nbytes, &at)) return false;
  }
  // Backwards: what programs append is mostly short.
  for (size_t last = nbytes - 2; last > at; last--) {
    if (end_at(last - 1)) return true;
  }
  return false;
}

Status probe_size(const uint8_t* data, size_t nbytes, int* width, int* height) {
  int sof = 0;
  if (find_jpeg_frame(data, nbytes, &sof, width, height)) {
    return *width > 0 && *height > 0 ? Status::kOk : Status::kUnsupported;
  }
  static const uint8_t png[16] = {0x89, 'P', 'N', 'G', 13, 10, 26, 10, 0, 0, 0, 13, 'I', 'H', 'D', 'R'};
  if (nbytes >= 24 && std::memcmp(data, png, sizeof png) == 0) {
    const uint32_t w = be32(data + 16), h = be32(data + 20);
    if (w == 0 || h == 0 || w > INT32_MAX || h > INT32_MAX) return Status::kUnsupported;
    *width = static_cast<int>(w);
    *height = static_cast<int>(h);
    return Status::kOk;
  }
  BmpHeader bmp;
  if (read_bmp_header(data, nbytes, &bmp)) {
    *width = bmp.width;
    *height = bmp.height;
    return Status::kOk;
  }
  return Status::kUnsupported;
}

}  // namespace fastload
