// Reads whole image files into one buffer, each with its checksum and size, for packing.
#pragma once

#include <cstddef>
#include <cstdint>

#include "io/files.h"

namespace fastload {

// Results for n files; the arrays are the caller's, of n items each, `size` of 2n.
struct Gathered {
  int64_t* offset;  // in the caller's memory
  int64_t* nbytes;
  uint32_t* crc32c;
  int32_t* size;    // width, height; 0, 0 unless the status is kOk
  int32_t* status;  // kUnsupported: read, but the core cannot tell the size, or the file may be truncated;
                    // otherwise as from Files::read_whole
  int32_t* detail;  // an errno
};

// Reads the files one after another into [memory, memory + room) until one does not fit. Returns the number
// of files read. If one did not fit, its `nbytes` is set.
size_t gather(const Files& files, const int32_t* file, size_t n, uint8_t* memory, size_t room,
              const Gathered& found) noexcept;

}  // namespace fastload
