#include "image/header.h"

#include <cstring>

#include "base/bytes.h"
#include "resample/resample.h"

namespace fastload {

bool read_bmp_header(const uint8_t* data, size_t nbytes, BmpHeader* bmp) {
  if (nbytes < 54 || data[0] != 'B' || data[1] != 'M') return false;
  bmp->pixels = load_le<uint32_t>(data + 10);
  bmp->header = load_le<uint32_t>(data + 14);
  if (bmp->header != 40 && bmp->header != 108 && bmp->header != 124) return false;
  const int64_t width = static_cast<int32_t>(load_le<uint32_t>(data + 18));
  const int64_t height = static_cast<int32_t>(load_le<uint32_t>(data + 22));
  bmp->top_down = height < 0;
  const int64_t rows = height < 0 ? -height : height;
  if (width <= 0 || rows <= 0 || width > kMaxSide || rows > kMaxSide) return false;
  bmp->width = static_cast<int>(width);
  bmp->height = static_cast<int>(rows);
  bmp->planes = load_le<uint16_t>(data + 26);
  bmp->bits = load_le<uint16_t>(data + 28);
  bmp->compression = load_le<uint32_t>(data + 30);
  return true;
}

namespace {

// The next marker with a segment, after fill bytes and markers without one; `at` becomes its position. -1:
// there is none, or the two bytes of its length are missing.
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

// Moves `at` past its segment. False: the segment is not inside the file.
bool skip_segment(const uint8_t* data, size_t nbytes, size_t* at) {
  const size_t length = load_be<uint16_t>(data + *at + 2);
  if (length < 2 || nbytes - *at - 2 < length) return false;
  *at += 2 + length;
  return true;
}

constexpr int kStartOfScan = 0xDA, kEndOfImage = 0xD9;

}  // namespace

bool is_jpeg(const uint8_t* data, size_t nbytes) {
  return nbytes >= 4 && data[0] == 0xFF && data[1] == 0xD8 && data[2] == 0xFF;
}

bool find_jpeg_frame(const uint8_t* data, size_t nbytes, int* sof, int* width, int* height) {
  if (!is_jpeg(data, nbytes)) return false;
  for (size_t at = 2;;) {
    const int marker = next_marker(data, nbytes, &at);
    if (marker < 0) return false;
    if (marker >= 0xC0 && marker <= 0xCF && marker != 0xC4 && marker != 0xC8 && marker != 0xCC) {
      if (load_be<uint16_t>(data + at + 2) < 8 || nbytes - at < 10) return false;
      *sof = marker;
      *height = static_cast<int>(load_be<uint16_t>(data + at + 5));
      *width = static_cast<int>(load_be<uint16_t>(data + at + 7));
      return true;
    }
    if (marker == kEndOfImage || marker == kStartOfScan || !skip_segment(data, nbytes, &at)) return false;
  }
}

bool jpeg_ends(const uint8_t* data, size_t nbytes) {
  const auto end_at = [data](size_t at) { return data[at] == 0xFF && data[at + 1] == kEndOfImage; };
  if (!is_jpeg(data, nbytes)) return false;
  if (end_at(nbytes - 2)) return true;
  // Skip the header, because a thumbnail there has an end too.
  size_t at = 2;
  for (int marker = 0; marker != kStartOfScan;) {
    marker = next_marker(data, nbytes, &at);
    if (marker < 0 || marker == kEndOfImage || !skip_segment(data, nbytes, &at)) return false;
  }
  // Backwards, because data after the end is mostly short.
  for (size_t last = nbytes - 2; last > at; last--) {
    if (end_at(last - 1)) return true;
  }
  return false;
}

bool jpeg_scan_ends(const uint8_t* codes, size_t nbytes) {
  const uint8_t* const end = codes + nbytes;
  for (;;) {
    const void* const found = std::memchr(codes, 0xFF, static_cast<size_t>(end - codes));
    if (found == nullptr) return false;
    codes = static_cast<const uint8_t*>(found) + 1;
    if (codes == end) return false;
    const int marker = *codes;
    const bool data = marker == 0 || (marker >= 0xD0 && marker <= 0xD7);
    if (data) {
      codes++;
    } else if (marker != 0xFF) {  // 0xFF: a fill byte came before
      return marker == kEndOfImage;
    }
  }
}

bool is_webp(const uint8_t* data, size_t nbytes) {
  return nbytes >= 16 && std::memcmp(data, "RIFF", 4) == 0 && std::memcmp(data + 8, "WEBPVP8", 7) == 0;
}

namespace {

// Source: WebP container specification; RFC 6386, 9.1; WebP lossless bitstream specification, 4.
bool webp_size(const uint8_t* data, size_t nbytes, int* width, int* height) {
  if (!is_webp(data, nbytes) || nbytes < 30) return false;
  if (data[15] == 'X') {  // extended: three bytes each, less one
    *width = static_cast<int>(load_le<uint32_t>(data + 24) & 0xFFFFFF) + 1;
    *height = static_cast<int>(load_le<uint32_t>(data + 26) >> 8) + 1;
    return true;
  }
  if (data[15] == ' ') {  // lossy: 14 bits each, after the key frame's start code
    if (data[23] != 0x9D || data[24] != 0x01 || data[25] != 0x2A) return false;
    *width = load_le<uint16_t>(data + 26) & 0x3FFF;
    *height = load_le<uint16_t>(data + 28) & 0x3FFF;
    return *width > 0 && *height > 0;
  }
  if (data[15] != 'L' || data[20] != 0x2F) return false;
  const uint32_t bits = load_le<uint32_t>(data + 21);  // lossless: 14 bits each, less one
  *width = static_cast<int>(bits & 0x3FFF) + 1;
  *height = static_cast<int>(bits >> 14 & 0x3FFF) + 1;
  return true;
}

}  // namespace

Status probe_size(const uint8_t* data, size_t nbytes, int* width, int* height) {
  int sof = 0;
  if (find_jpeg_frame(data, nbytes, &sof, width, height)) {
    return *width > 0 && *height > 0 ? Status::kOk : Status::kUnsupported;
  }
  static const uint8_t png[16] = {0x89, 'P', 'N', 'G', 13, 10, 26, 10, 0, 0, 0, 13, 'I', 'H', 'D', 'R'};
  if (nbytes >= 24 && std::memcmp(data, png, sizeof png) == 0) {
    const uint32_t w = load_be<uint32_t>(data + 16), h = load_be<uint32_t>(data + 20);
    if (w == 0 || h == 0 || w > INT32_MAX || h > INT32_MAX) return Status::kUnsupported;
    *width = static_cast<int>(w);
    *height = static_cast<int>(h);
    return Status::kOk;
  }
  if (webp_size(data, nbytes, width, height)) return Status::kOk;
  BmpHeader bmp;
  if (read_bmp_header(data, nbytes, &bmp)) {
    *width = bmp.width;
    *height = bmp.height;
    return Status::kOk;
  }
  return Status::kUnsupported;
}

}  // namespace fastload
