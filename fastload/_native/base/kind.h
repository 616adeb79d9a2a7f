// What the bytes of a record are; the numbers are those of fastload/storage/base.py.
#pragma once

#include <cstdint>

namespace fastload {

// kTurned: an encoded image with an EXIF or XMP orientation, which Pillow decodes.
enum class Kind : uint8_t { kEncoded = 0, kRaw = 1, kDct = 2, kTurned = 3 };
constexpr int kKinds = 4;

}  // namespace fastload
