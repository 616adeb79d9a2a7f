// Whether an image file may say of itself that it lies on its side (EXIF, XMP).
#pragma once

#include <cstddef>
#include <cstdint>

namespace fastload {

// False: a whole JPEG, PNG or BMP that certainly is upright for Pillow's Image.getexif (no orientation, or
// 1). True: it may not be, or cannot be told: ask Pillow. Reads nothing beyond data + nbytes.
bool may_be_turned(const uint8_t* data, size_t nbytes) noexcept;

}  // namespace fastload
