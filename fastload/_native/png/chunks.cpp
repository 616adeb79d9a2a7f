#include "png/chunks.h"

#include <cstring>
#include <initializer_list>
#include <string_view>

#include "base/bytes.h"
#include "base/limits.h"

namespace fastload {
namespace {

// Pillow refuses a compressed text or profile that inflates to more (its SAFEBLOCK), and more than 64 of
// these of text in all.
constexpr size_t kMostText = size_t{1} << 20;

constexpr uint32_t type_of(const char (&name)[5]) {
  return static_cast<uint32_t>(name[0]) << 24 | static_cast<uint32_t>(name[1]) << 16 |
         static_cast<uint32_t>(name[2]) << 8 | static_cast<uint32_t>(name[3]);
}

bool one_of(uint32_t type, std::initializer_list<uint32_t> types) {
  for (const uint32_t each : types) {
    if (type == each) return true;
  }
  return false;
}

struct Chunk {
  uint32_t type;
  const uint8_t* data;
  size_t nbytes;
  std::string_view text() const { return {reinterpret_cast<const char*>(data), nbytes}; }
};

// The chunk at `at`, whole and with its checksum inside the file; moves `at` past it.
bool next_chunk(const uint8_t* data, size_t nbytes, size_t* at, Chunk* chunk) {
  if (nbytes - *at < 12) return false;
  const size_t length = load_be<uint32_t>(data + *at);
  if (length > nbytes - *at - 12) return false;
  *chunk = {load_be<uint32_t>(data + *at + 4), data + *at + 8, length};
  *at += 12 + length;
  return true;
}

// Pillow takes letters, digits and underscores for a type.
bool is_type(const uint8_t* name) {
  for (int i = 0; i < 4; i++) {
    const uint8_t c = name[i], lower = c | 0x20;
    if (!((lower >= 'a' && lower <= 'z') || (c >= '0' && c <= '9') || c == '_')) return false;
  }
  return true;
}

bool intact(const Chunk& chunk) {
  return Inflater::crc32(chunk.data - 4, chunk.nbytes + 4) == load_be<uint32_t>(chunk.data + chunk.nbytes);
}

bool read_header(const Chunk& chunk, PngFile* file) {
  if (chunk.type != type_of("IHDR") || chunk.nbytes != 13 || !intact(chunk)) return false;
  const uint32_t width = load_be<uint32_t>(chunk.data), height = load_be<uint32_t>(chunk.data + 4);
  if (width < 1 || height < 1 || width > kMaxPixels || height > kMaxPixels) return false;
  if (uint64_t{width} * height > static_cast<uint64_t>(kMaxPixels)) return false;
  const uint8_t depth = chunk.data[8], colour = chunk.data[9];
  file->width = static_cast<int>(width);
  file->height = static_cast<int>(height);
  file->depth = depth;
  file->colour = static_cast<PngColour>(colour);
  file->interlaced = chunk.data[12] == 1;
  if (chunk.data[10] != 0 || chunk.data[11] != 0 || chunk.data[12] > 1) return false;
  switch (file->colour) {
    case PngColour::kGray:
      return depth == 1 || depth == 2 || depth == 4 || depth == 8 || depth == 16;
    case PngColour::kPalette:
      return depth == 1 || depth == 2 || depth == 4 || depth == 8;
    case PngColour::kRgb:
    case PngColour::kGrayAlpha:
    case PngColour::kRgba:
      return depth == 8 || depth == 16;
  }
  return false;
}

// Pillow keeps texts under their keywords beside what it knows of the image, where these would replace it.
bool is_harmful(std::string_view keyword) {
  return keyword == "transparency" || keyword == "interlace" || keyword == "bbox" ||
         keyword == "default_image";
}

class Judge {
 public:
  Judge(PngFile* file, Inflater* inflater) : file_(*file), inflater_(*inflater) {}

  // Whether Pillow reads this chunk without complaint, and without effect on pixels but for a palette.
  bool accepts(const Chunk& chunk, bool after_data) {
    switch (chunk.type) {
      case type_of("PLTE"):
        return !after_data && palette(chunk);
      case type_of("tRNS"):
        return !after_data && transparency(chunk);
      case type_of("gAMA"):
        return chunk.nbytes >= 4;
      case type_of("cHRM"):
        return chunk.nbytes >= 32;
      case type_of("sRGB"):
        return chunk.nbytes >= 1;
      case type_of("pHYs"):
        return chunk.nbytes >= 9;
      case type_of("tEXt"):
        return text(chunk);
      case type_of("zTXt"):
        return compressed_text(chunk);
      case type_of("iTXt"):
        return international_text(chunk);
      case type_of("iCCP"):
        return profile(chunk);
      default:
        // A second header, data in unusual places and animations; Pillow skips all other types.
        return !one_of(chunk.type, {type_of("IHDR"), type_of("DDAT"), type_of("acTL"), type_of("fcTL"),
                                    type_of("fdAT")}) &&
               is_type(chunk.data - 4);
    }
  }

 private:
  bool palette(const Chunk& chunk) {
    if (file_.colour != PngColour::kPalette) return true;  // a suggestion
    if (chunk.nbytes < 3 || chunk.nbytes > 768 || chunk.nbytes % 3 != 0) return false;
    file_.palette = chunk.data;
    file_.palette_size = static_cast<int>(chunk.nbytes / 3);
    return true;
  }

  bool transparency(const Chunk& chunk) const {
    switch (file_.colour) {
      case PngColour::kPalette:
        return chunk.nbytes <= 256;
      case PngColour::kGray:
        return chunk.nbytes >= 2;
      case PngColour::kRgb:
        return chunk.nbytes >= 6;
      default:
        return true;
    }
  }

  // Whether there is room for the text under this keyword.
  bool text(std::string_view keyword, size_t nbytes) {
    texts_ += nbytes;
    return texts_ <= 8 * kMostText && !is_harmful(keyword);
  }

  bool text(const Chunk& chunk) {
    const std::string_view all = chunk.text();
    return text(all.substr(0, all.find('\0')), chunk.nbytes);
  }

  bool compressed(std::string_view bytes) {
    return inflater_.inflates_below(reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size(), kMostText);
  }

  bool compressed_text(const Chunk& chunk) {
    const std::string_view all = chunk.text();
    const size_t end = all.find('\0');
    if (end == std::string_view::npos || all.size() < end + 2) return text(all.substr(0, end), 0);
    return all[end + 1] == 0 && compressed(all.substr(end + 2)) && text(all.substr(0, end), kMostText);
  }

  bool international_text(const Chunk& chunk) {
    const std::string_view all = chunk.text();
    const size_t end = all.find('\0');
    if (end == std::string_view::npos || all.size() < end + 3) return true;
    const std::string_view keyword = all.substr(0, end);
    if (all[end + 1] == 0) return text(keyword, chunk.nbytes);
    const size_t language = all.find('\0', end + 3);
    if (language == std::string_view::npos) return true;
    const size_t translated = all.find('\0', language + 1);
    if (translated == std::string_view::npos || all[end + 2] != 0) return true;
    return compressed(all.substr(translated + 1)) && text(keyword, kMostText);
  }

  bool profile(const Chunk& chunk) {
    const std::string_view all = chunk.text();
    const size_t end = all.find('\0');
    if (end == std::string_view::npos || all.size() < end + 2 || all[end + 1] != 0) return false;
    return compressed(all.substr(end + 2));
  }

  PngFile& file_;
  Inflater& inflater_;
  size_t texts_ = 0;
};

}  // namespace

int PngFile::channels() const {
  switch (colour) {
    case PngColour::kGrayAlpha:
      return 2;
    case PngColour::kRgb:
      return 3;
    case PngColour::kRgba:
      return 4;
    case PngColour::kGray:
    case PngColour::kPalette:
      break;
  }
  return 1;
}

bool read_png_chunks(const uint8_t* data, size_t nbytes, Inflater* inflater, PngFile* file) {
  size_t at = 8;
  Chunk chunk;
  if (nbytes < at || !next_chunk(data, nbytes, &at, &chunk) || !read_header(chunk, file)) return false;
  file->palette = nullptr;
  file->palette_size = 0;
  file->parts.clear();
  file->nbytes = 0;
  Judge judge(file, inflater);
  bool within = true;  // no other chunk has followed the data yet
  while (next_chunk(data, nbytes, &at, &chunk)) {
    const bool begun = !file->parts.empty();
    if (chunk.type == type_of("IDAT")) {
      if (!within) continue;  // Pillow skips it
      if (!begun && file->colour == PngColour::kPalette && file->palette == nullptr) return false;
      file->parts.push_back({chunk.data, chunk.nbytes});
      file->nbytes += chunk.nbytes;
      continue;
    }
    if (chunk.type == type_of("IEND")) return begun;
    within = !begun;
    // Pillow compares the checksums of what comes before the data, and no others.
    if (!begun && !intact(chunk)) return false;
    if (!judge.accepts(chunk, begun)) return false;
  }
  return false;
}

}  // namespace fastload
