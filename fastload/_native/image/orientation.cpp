#include "image/orientation.h"

#include <cstring>
#include <string_view>

#include "base/bytes.h"

namespace fastload {

namespace {

constexpr size_t kOrientation = 0x0112, kShort = 3;  // tag and type: EXIF 2.32, 4.6.4, and TIFF 6.0

template <typename T>
size_t read(const uint8_t* at, bool little) {
  return little ? load_le<T>(at) : load_be<T>(at);
}

bool begins(const uint8_t* data, size_t nbytes, std::string_view with) {
  return nbytes >= with.size() && std::memcmp(data, with.data(), with.size()) == 0;
}

// The orientation in the first directory of a TIFF; 0: it has none; -1: unusual, Pillow must decide.
int orientation_of(const uint8_t* tiff, size_t nbytes) {
  if (nbytes < 8) return -1;
  const bool little = begins(tiff, nbytes, std::string_view("II*\0", 4));
  if (!little && !begins(tiff, nbytes, std::string_view("MM\0*", 4))) return -1;
  const size_t directory = read<uint32_t>(tiff + 4, little);
  if (directory < 8 || directory > nbytes - 2) return -1;
  const size_t count = read<uint16_t>(tiff + directory, little);
  if (count > (nbytes - directory - 2) / 12) return -1;
  int found = 0;
  for (size_t i = 0; i < count; i++) {
    const uint8_t* entry = tiff + directory + 2 + 12 * i;
    if (read<uint16_t>(entry, little) != kOrientation) continue;
    if (found != 0 || read<uint16_t>(entry + 2, little) != kShort || read<uint32_t>(entry + 4, little) != 1)
      return -1;
    found = static_cast<int>(read<uint16_t>(entry + 8, little));
    if (found == 0) return -1;
  }
  return found;
}

bool jpeg_may_be_turned(const uint8_t* data, size_t nbytes) {
  int orientation = 0;
  bool exif = false, xmp = false;
  size_t at = 2;
  while (nbytes - at >= 4) {
    if (data[at] != 0xFF) return true;
    const int marker = data[at + 1];
    if (marker == 0xFF) {  // fill byte
      at += 1;
      continue;
    }
    if (marker == 0xDA) return orientation == 0 ? xmp : orientation != 1;
    if (marker == 0x01 || (marker >= 0xD0 && marker <= 0xD9)) return true;
    const size_t length = load_be<uint16_t>(data + at + 2);
    if (length < 2 || nbytes - at - 2 < length) return true;
    const uint8_t* segment = data + at + 4;
    const size_t room = length - 2;
    // EXIF in several segments, which Pillow joins, is rare.
    if (marker == 0xE1 && begins(segment, room, std::string_view("Exif\0\0", 6))) {
      if (exif) return true;
      exif = true;
      orientation = orientation_of(segment + 6, room - 6);
      if (orientation < 0) return true;
    } else if (marker == 0xE1) {
      const std::string_view text(reinterpret_cast<const char*>(segment), room);
      xmp = xmp || text.find("tiff:Orientation") != std::string_view::npos;
    }
    at += 2 + length;
  }
  return true;
}

bool png_may_be_turned(const uint8_t* data, size_t nbytes) {
  size_t at = 8;
  while (nbytes - at >= 12) {
    const size_t length = load_be<uint32_t>(data + at);
    if (length > nbytes - at - 12) return true;
    const uint8_t* type = data + at + 4;
    if (begins(type, 4, "IEND")) return false;
    if (begins(type, 4, "eXIf")) return true;
    const bool text = begins(type, 4, "tEXt") || begins(type, 4, "zTXt") || begins(type, 4, "iTXt");
    if (text && (begins(type + 4, length, "Raw profile type exif") ||
                 begins(type + 4, length, "XML:com.adobe.xmp") || begins(type + 4, length, "xmp"))) {
      return true;
    }
    at += 12 + length;
  }
  return true;
}

}  // namespace

bool may_be_turned(const uint8_t* data, size_t nbytes) noexcept {
  if (nbytes >= 4 && data[0] == 0xFF && data[1] == 0xD8) return jpeg_may_be_turned(data, nbytes);
  if (begins(data, nbytes, "\x89PNG\r\n\x1a\n")) return png_may_be_turned(data, nbytes);
  return !begins(data, nbytes, "BM");
}

}  // namespace fastload
