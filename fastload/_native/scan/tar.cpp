// Lists the members of a tar archive; fastload/storage/formats/tar.py describes the layout.
#include <algorithm>
#include <cstring>
#include <unordered_map>

#include "scan/scan.h"

namespace fastload {
namespace {

constexpr size_t kBlock = 512;
constexpr size_t kMaxName = 4096;
constexpr size_t kMaxExtensions = 1000;

class TarReader {
 public:
  TarReader(const uint8_t* data, size_t size) : data_(data), size_(size) {}

  TarMembers run() {
    while (step()) {
    }
    return std::move(out_);
  }

 private:
  // Reads one header. False: at the end of the archive, or on an error.
  bool step();
  bool read_pax_header(size_t begin, size_t end, bool global);
  bool add_member(std::string name, size_t begin, size_t nbytes);

  bool refuse(const std::string& why, const std::string& name = std::string()) {
    out_.why = why;
    out_.name = name;
    return false;
  }

  // Parses octal digits that end with blanks or zeros, or base 256 if the first bit is set.
  static bool read_number(const uint8_t* field, size_t width, uint64_t* value) {
    *value = 0;
    if (field[0] == 0x80) {
      for (size_t i = 1; i < width; i++) {
        if (*value >> 55 != 0) {
          *value = UINT64_MAX;  // larger than any file
          return true;
        }
        *value = *value << 8 | field[i];
      }
      return true;
    }
    const void* zero = std::memchr(field, 0, width);
    const uint8_t* end = zero == nullptr ? field + width : static_cast<const uint8_t*>(zero);
    while (field < end && *field == ' ') field++;
    while (field < end && end[-1] == ' ') end--;
    for (; field < end; field++) {
      if (*field < '0' || *field > '7') return false;
      *value = *value << 3 | static_cast<uint64_t>(*field - '0');
    }
    return true;
  }

  static std::string read_text(const uint8_t* field, size_t width) {
    const void* zero = std::memchr(field, 0, width);
    return std::string(
        reinterpret_cast<const char*>(field),
        zero == nullptr ? width : static_cast<size_t>(static_cast<const uint8_t*>(zero) - field));
  }

  const uint8_t* data_;
  size_t size_;
  TarMembers out_;
  bool has_name_ = false, has_size_ = false;  // from a pax or GNU header before the member
  std::string name_;
  uint64_t size_given_ = 0;
  bool has_last_ = false;
  std::string last_;  // the stem of the member before
  std::unordered_map<std::string, int16_t> extension_numbers_;
};

const char* const kBadNumber = "expected a number in octal digits in a tar header, found other bytes";

bool checksum_matches(const uint8_t* header, uint64_t stored) {
  uint64_t sum = 8 * ' ';
  uint64_t high = 0;
  for (size_t i = 0; i < kBlock; i++) {
    if (i >= 148 && i < 156) continue;
    sum += header[i];
    high += header[i] >> 7;
  }
  return stored == sum || stored == sum - 256 * high;
}

bool TarReader::step() {
  const size_t at = out_.at;
  if (size_ - at < kBlock) return refuse("the archive is truncated: expected another header or the end mark");
  const uint8_t* header = data_ + at;
  const auto is_zero = [](uint8_t byte) { return byte == 0; };
  if (std::all_of(header, header + kBlock, is_zero)) {
    if (has_name_ || has_size_) return refuse("the archive ends after an extended header");
    if (!std::all_of(header, data_ + size_, is_zero))
      return refuse("something follows the end mark of the archive");
    return false;
  }
  uint64_t stored = 0, header_size = 0;
  if (!read_number(header + 148, 8, &stored)) return refuse(kBadNumber);
  if (!checksum_matches(header, stored))
    return refuse("expected the header of a tar member, found other bytes or a damaged one");
  if (!read_number(header + 124, 12, &header_size)) return refuse(kBadNumber);
  const char kind = static_cast<char>(header[156]);
  const auto one_of = [kind](const char* kinds) { return kind != 0 && std::strchr(kinds, kind) != nullptr; };
  uint64_t nbytes = has_size_ && !one_of("xgLK") ? size_given_ : header_size;
  if (one_of("512346V")) nbytes = 0;
  const size_t begin = at + kBlock;
  if (nbytes > size_ - begin) {
    return refuse("the archive is truncated: expected " + std::to_string(nbytes) + " bytes of data, found " +
                  std::to_string(size_ - begin));
  }
  // The padding may lie beyond the end of the file: the next step then reports a truncated archive.
  const size_t next =
      std::min(size_, begin + static_cast<size_t>(nbytes + (kBlock - nbytes % kBlock) % kBlock));
  const size_t end = begin + static_cast<size_t>(nbytes);
  if (kind == 'x' || kind == 'g') {
    if (!read_pax_header(begin, end, kind == 'g')) return false;
  } else if (kind == 'L') {
    if (nbytes > kMaxName) return refuse("a name of " + std::to_string(nbytes) + " bytes");
    name_ = read_text(data_ + begin, end - begin);
    has_name_ = true;
  } else if (kind != 'K') {
    std::string name = read_text(header, 100);
    if (has_name_) {
      name = name_;
    } else if (std::memcmp(header + 257, "ustar\0", 6) == 0 && header[345] != 0) {
      name = read_text(header + 345, 155) + "/" + name;
    }
    has_name_ = has_size_ = false;
    switch (kind) {
      case '1':
        return refuse("{name} is a hard link", name);
      case '2':
        return refuse("{name} is a symbolic link", name);
      case '3':
      case '4':
        return refuse("{name} is a device", name);
      case '6':
        return refuse("{name} is a pipe", name);
      case 'S':
        return refuse("{name} is a sparse file", name);
      case 'M':
        return refuse("{name} is a part of a file", name);
      case 'D':
        return refuse("{name} is a listing", name);
      case '5':
      case 'V':
        break;
      case '\0':
      case '0':
      case '7':
        if (kind != '7' && !name.empty() && name.back() == '/') break;  // a folder in the oldest format
        if (!add_member(std::move(name), begin, end - begin)) return false;
        break;
      default:
        return refuse("{name} is of an unknown type", name);
    }
  }
  out_.at = next;
  return true;
}

bool TarReader::read_pax_header(size_t begin, size_t end, bool global) {
  size_t at = begin;
  while (at < end && data_[at] != 0) {
    uint64_t length = 0;
    size_t blank = at;
    while (blank < end && blank < at + 12 && data_[blank] >= '0' && data_[blank] <= '9') {
      length = 10 * length + (data_[blank++] - '0');
    }
    if (blank == at || blank >= std::min(at + 12, end) || data_[blank] != ' ' || length <= blank - at + 2 ||
        length > end - at)
      return refuse("an extended header is damaged");
    const size_t stop = at + static_cast<size_t>(length);
    const char* line = reinterpret_cast<const char*>(data_ + blank + 1);
    const size_t nbytes = stop - blank - 1;
    const void* found = std::memchr(line, '=', nbytes);
    if (found == nullptr || data_[stop - 1] != '\n') return refuse("an extended header is damaged");
    const size_t equals = static_cast<size_t>(static_cast<const char*>(found) - line);
    const std::string key(line, equals);
    if (key.compare(0, 10, "GNU.sparse") == 0) return refuse("a sparse file");
    if (key == "path" || key == "size") {
      const size_t width = nbytes > equals + 1 ? nbytes - equals - 2 : 0;
      const std::string value(line + equals + 1, width);
      const bool digits =
          !value.empty() && value.size() < 19 &&
          std::all_of(value.begin(), value.end(), [](char c) { return c >= '0' && c <= '9'; });
      if (value.size() > kMaxName || (key == "size" && !digits))
        return refuse("an extended header holds no " + key);
      if (global) return refuse("an extended header gives all members one path or size");
      if (key == "path") {
        name_ = value;
        has_name_ = true;
      } else {
        size_given_ = std::stoull(value);
        has_size_ = true;
      }
    }
    at = stop;
  }
  return true;
}

bool TarReader::add_member(std::string name, size_t begin, size_t nbytes) {
  size_t skip = 0;
  while (name.compare(skip, 2, "./") == 0) skip += 2;
  name.erase(0, skip);
  if (name.size() > kMaxName) return refuse("a name of " + std::to_string(name.size()) + " bytes");
  bool outside = (!name.empty() && name[0] == '/') || name.find('\0') != std::string::npos;
  for (size_t part = 0; !outside && part <= name.size();) {
    const size_t slash = std::min(name.find('/', part), name.size());
    outside = slash - part == 2 && name.compare(part, 2, "..") == 0;
    part = slash + 1;
  }
  if (outside) return refuse("the name {name} leads out of its folder", name);
  const size_t slash = name.rfind('/');
  const size_t base = slash == std::string::npos ? 0 : slash + 1;
  const size_t dot = name.find('.', base);
  // WebDataset's own metadata, hidden files, and names without an extension: also among the members
  // of a sample, as macOS's tar writes them.
  if (dot == std::string::npos || dot == base || name.compare(base, 2, "__") == 0) return true;
  std::string extension = name.substr(dot + 1);
  for (char& c : extension) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c + ('a' - 'A'));
  }
  auto found = extension_numbers_.find(extension);
  if (found == extension_numbers_.end()) {
    if (extension_numbers_.size() >= kMaxExtensions)
      return refuse("more than " + std::to_string(kMaxExtensions) + " different endings of names");
    found = extension_numbers_.emplace(extension, static_cast<int16_t>(extension_numbers_.size())).first;
    out_.extensions.push_back(extension);
  }
  const bool same = has_last_ && name.compare(0, dot, last_) == 0;
  out_.stem.push_back(static_cast<int32_t>(dot));
  out_.extension.push_back(found->second);
  out_.first.push_back(same ? 0 : 1);
  out_.offset.push_back(static_cast<int64_t>(begin));
  out_.nbytes.push_back(static_cast<int64_t>(nbytes));
  out_.names += name;
  out_.ends.push_back(static_cast<int64_t>(out_.names.size()));
  if (!same) last_.assign(name, 0, dot);
  has_last_ = true;
  return true;
}

}  // namespace

TarMembers tar_members(const uint8_t* data, size_t size) {
  return TarReader(data, size).run();
}

}  // namespace fastload
