// Headers of image files: sizes, and whether a JPEG is complete.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/status.h"

namespace fastload {

// Width and height from the header of a JPEG, PNG, BMP or WebP. kUnsupported: another format, or nbytes do
// not contain the size.
Status probe_size(const uint8_t* data, size_t nbytes, int* width, int* height);

// A RIFF file with a WebP image.
bool is_webp(const uint8_t* data, size_t nbytes);

bool is_jpeg(const uint8_t* data, size_t nbytes);

// Whether an end-of-image marker follows the header of the first scan. Without one the file may be truncated,
// which Pillow finds out by decoding all of it. Bytes after the end are allowed.
bool jpeg_ends(const uint8_t* data, size_t nbytes);

// Whether the end of the image is the first marker, but for restarts, in entropy-coded data. After another
// one, libjpeg refuses the file or not once it has decoded all of it.
bool jpeg_scan_ends(const uint8_t* codes, size_t nbytes);

// Reads a JPEG's markers up to the frame header. `sof`: the marker's low byte (0xC0: baseline).
bool find_jpeg_frame(const uint8_t* data, size_t nbytes, int* sof, int* width, int* height);

// Fields of a BMP's header. False: not a BMP with one of the usual headers.
struct BmpHeader {
  int width, height;
  bool top_down;
  uint32_t pixels;  // offset of the first stored row
  uint32_t bits, compression, planes, header;
};
bool read_bmp_header(const uint8_t* data, size_t nbytes, BmpHeader* bmp);

}  // namespace fastload
