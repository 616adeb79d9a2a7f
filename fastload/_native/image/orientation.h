// Whether an image file may have an EXIF or XMP orientation.
#pragma once

#include <cstddef>
#include <cstdint>

namespace fastload {

// False: a whole JPEG, PNG or BMP that is certainly upright for Pillow's Image.getexif (no orientation, or
// 1). True: it may be rotated, or only Pillow can tell. Reads nothing beyond data + nbytes.
bool may_be_turned(const uint8_t* data, size_t nbytes) noexcept;

}  // namespace fastload
