#include "batch/gather.h"

#include "base/status.h"
#include "image/header.h"
#include "io/crc32c.h"

namespace fastload {

size_t gather(const Files& files, const int32_t* file, size_t n, uint8_t* memory, size_t room,
              const Gathered& found) noexcept {
  size_t at = 0;
  for (size_t i = 0; i < n; i++) {
    size_t nbytes = 0;
    int error = 0;
    Status status = files.read_whole(file[i], memory + at, room - at, &nbytes, &error);
    if (status == Status::kPending) {
      found.nbytes[i] = static_cast<int64_t>(nbytes);
      return i;
    }
    const bool read = status == Status::kOk;
    if (!read) nbytes = 0;
    int width = 0, height = 0;
    if (read) status = probe_size(memory + at, nbytes, &width, &height);
    // Pillow decides about files that may be truncated.
    if (status == Status::kOk && memory[at] == 0xFF && !jpeg_ends(memory + at, nbytes))
      status = Status::kUnsupported;
    const bool known = status == Status::kOk;
    found.offset[i] = static_cast<int64_t>(at);
    found.nbytes[i] = static_cast<int64_t>(nbytes);
    found.crc32c[i] = crc32c(0, memory + at, nbytes);
    found.size[2 * i] = known ? width : 0;
    found.size[2 * i + 1] = known ? height : 0;
    found.status[i] = static_cast<int32_t>(status);
    found.detail[i] = error;
    at += nbytes;
  }
  return n;
}

}  // namespace fastload
