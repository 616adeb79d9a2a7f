// Inflating with libdeflate. Only inflate.cpp includes its header.
#pragma once

#include <cstddef>
#include <cstdint>

#include "io/files.h"

namespace fastload {

class Inflater {
 public:
  Inflater();
  ~Inflater();
  Inflater(const Inflater&) = delete;
  Inflater& operator=(const Inflater&) = delete;

  // Whether the core was built with libdeflate.
  static bool usable();
  static const char* version();

  // Inflates a zlib stream of exactly out_nbytes; its Adler-32 is compared. Bytes after the stream are
  // ignored. False: damaged, or of another length.
  bool inflate(const uint8_t* data, size_t nbytes, uint8_t* out, size_t out_nbytes);

  // Whether a zlib stream is whole and inflates to less than `limit` bytes.
  bool inflates_below(const uint8_t* data, size_t nbytes, size_t limit);

  // CRC-32 as PNG and zlib have it.
  static uint32_t crc32(const uint8_t* data, size_t nbytes);

 private:
  void* decompressor_;
  Scratch measured_;
};

}  // namespace fastload
