// Whole image files into one piece of memory, each with its checksum and size: what packing needs of them.
#pragma once

#include <cstddef>
#include <cstdint>

#include "io/files.h"

namespace fastload {

// What is found out of n files; the arrays are the caller's, of n items each, `size` of 2n.
struct Gathered {
  int64_t* offset;  // in the caller's memory
  int64_t* nbytes;
  uint32_t* crc32c;
  int32_t* size;    // width, height; 0, 0 where the status is not kOk
  int32_t* status;  // kUnsupported: read, but the core does not know the size, or the file may be truncated;
                    // else as Files::read_whole
  int32_t* detail;  // an errno
};

// Reads the files one after the other into [memory, memory + room) until one does not fit, and returns how
// many it took. Of that one, if there is one, `nbytes` is set.
size_t gather(const Files& files, const int32_t* file, size_t n, uint8_t* memory, size_t room,
              const Gathered& found) noexcept;

}  // namespace fastload
