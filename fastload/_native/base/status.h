// Basics that every other folder may use; they use no other folder.
//
// What it does. status.h: the result for one sample. kind.h: what a record's bytes are. limits.h: limits on
// files. bytes.h: numbers in byte buffers. clock.h: the clock of all times. philox.h: random numbers.
//
// Guarantees
//   exactness      the numbers of Status and Kind are those of Python; Philox gives the words of
//                  _base/philox.py
//   errors         nothing throws
//   thread safety  functions without state
//
// Tests: tests/native/test_batch.py (every status), tests/base/test_philox.py.
#pragma once

#include <cstdint>

namespace fastload {

// The result for one sample. fastload/_native/__init__.py has the same constants for Python.
enum class Status : int32_t {
  kPending = -1,  // not processed: the job was cancelled first
  kOk = 0,
  kUnsupported = 1,  // Pillow decides: another format, a rare kind of JPEG, or a libjpeg warning
  kIo = 2,           // the detail is an errno
  kTruncated = 3,    // the span is not inside the file
  kChecksum = 4,     // checksum mismatch (CRC32C)
  kSize = 5,         // the image's size differs from the store's, or the box is not inside the image
  kCorrupt = 6,      // a DCT record that violates its format
};

}  // namespace fastload
