// What became of one sample. Python names these in fastload/_native/__init__.py.
#pragma once

#include <cstdint>

namespace fastload {

enum class Status : int32_t {
  kPending = -1,  // not looked at: the job was cancelled first
  kOk = 0,
  kUnsupported = 1,  // Pillow decides: another format, a rare kind of JPEG, or any libjpeg warning
  kIo = 2,           // the detail is an errno
  kTruncated = 3,    // the span does not lie inside the file
  kChecksum = 4,     // CRC32C differs from the stored one
  kSize = 5,         // the image's size is not the one the store promised
  kCorrupt = 6,      // a record of our own format that breaks its own rules
};

}  // namespace fastload
