// Parses tf.train.Example; fastload/storage/formats/_example.py describes the layout.
#include <cstring>

#include "scan/scan.h"
#include "scan/wire.h"

namespace fastload {
namespace {

constexpr unsigned kBytes = 1, kFloat = 2, kInt64 = 3;

struct ValueList {
  unsigned kind;
  uint64_t count;
  ByteRange place;
  int64_t first;
};

bool read_list(unsigned kind, ByteRange in, ValueList* list) {
  *list = {kind, 0, in, 0};
  if (kind == kBytes) list->place.end = in.at;  // empty unless a value follows
  Field field;
  while (in.at < in.end) {
    if (!next_field(&in, &field)) return false;
    if (field.number != 1) continue;
    ByteRange value = field.value;
    if (kind == kBytes && field.wire == 2) {
      if (list->count++ == 0) list->place = value;
    } else if (kind == kFloat && (field.wire == 2 || field.wire == 5)) {
      const size_t nbytes = static_cast<size_t>(value.end - value.at);
      if (nbytes % 4 != 0) return false;
      if (list->count == 0 && nbytes > 0) {
        uint32_t bits;
        std::memcpy(&bits, value.at, 4);
        list->first = bits;
      }
      list->count += nbytes / 4;
    } else if (kind == kInt64 && (field.wire == 0 || field.wire == 2)) {
      while (value.at < value.end) {
        uint64_t number = 0;
        if (!read_varint(&value, &number)) return false;
        if (list->count++ == 0) list->first = static_cast<int64_t>(number);
      }
    }
  }
  return true;
}

// The list of a Feature. If there are several, the last one counts.
bool read_feature(ByteRange in, unsigned* kind, ByteRange* list) {
  Field field;
  *kind = 0;
  while (in.at < in.end) {
    if (!next_field(&in, &field)) return false;
    if (field.number <= kInt64 && field.wire == 2) {
      *kind = static_cast<unsigned>(field.number);
      *list = field.value;
    }
  }
  return true;
}

bool read_example(ByteRange example, const uint8_t* data, const std::vector<std::string>& names, size_t row,
                  const Features& found) {
  Field outer, entry, member;
  while (example.at < example.end) {
    if (!next_field(&example, &outer)) return false;
    if (outer.number != 1 || outer.wire != 2) continue;
    while (outer.value.at < outer.value.end) {
      if (!next_field(&outer.value, &entry)) return false;
      if (entry.number != 1 || entry.wire != 2) continue;
      ByteRange name{data, data}, feature{nullptr, nullptr};
      while (entry.value.at < entry.value.end) {
        if (!next_field(&entry.value, &member)) return false;
        if (member.wire != 2) continue;
        if (member.number == 1) name = member.value;
        if (member.number == 2) feature = member.value;
      }
      if (feature.at == nullptr) continue;
      unsigned kind = 0;
      ByteRange where{};
      if (!read_feature(feature, &kind, &where)) return false;
      if (kind == 0) continue;
      const size_t length = static_cast<size_t>(name.end - name.at);
      for (size_t column = 0; column < names.size(); column++) {
        if (names[column].size() != length || std::memcmp(names[column].data(), name.at, length) != 0)
          continue;
        ValueList list;
        if (!read_list(kind, where, &list)) return false;
        const size_t slot = row * names.size() + column;
        found.kind[slot] = static_cast<uint8_t>(kind);
        found.count[slot] = static_cast<int32_t>(list.count);
        found.offset[slot] = list.place.at - data;
        found.nbytes[slot] = list.place.end - list.place.at;
        found.first[slot] = list.first;
        break;
      }
    }
  }
  return true;
}

}  // namespace

int64_t find_features(const uint8_t* data, size_t size, const int64_t* offset, const int64_t* nbytes,
                      size_t n, const std::vector<std::string>& names, const Features& found) {
  for (size_t row = 0; row < n; row++) {
    if (!message_fits(size, offset[row], nbytes[row])) return static_cast<int64_t>(row);
    const uint8_t* begin = data + offset[row];
    if (!read_example({begin, begin + nbytes[row]}, data, names, row, found))
      return static_cast<int64_t>(row);
  }
  return -1;
}

}  // namespace fastload
