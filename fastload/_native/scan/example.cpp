// Parses tf.train.Example; fastload/storage/formats/_example.py describes the layout.
#include <cstring>
#include <unordered_set>

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

// Calls take(number) for each number of a list, of a float its 32 bits; false: it is malformed.
template <typename Take>
bool each_number(unsigned kind, ByteRange in, const Take& take) {
  Field field;
  while (in.at < in.end) {
    if (!next_field(&in, &field)) return false;
    if (field.number != 1) continue;
    ByteRange value = field.value;
    if (kind == kFloat && (field.wire == 2 || field.wire == 5)) {
      if ((value.end - value.at) % 4 != 0) return false;
      for (; value.at < value.end; value.at += 4) {
        uint32_t bits;
        std::memcpy(&bits, value.at, 4);
        take(int64_t{bits});
      }
    } else if (kind == kInt64 && (field.wire == 0 || field.wire == 2)) {
      while (value.at < value.end) {
        uint64_t number = 0;
        if (!read_varint(&value, &number)) return false;
        take(static_cast<int64_t>(number));
      }
    }
  }
  return true;
}

bool read_list(unsigned kind, ByteRange in, ValueList* list) {
  *list = {kind, 0, in, 0};
  if (kind != kBytes) {
    return each_number(kind, in, [list](int64_t number) {
      if (list->count++ == 0) list->first = number;
    });
  }
  list->place.end = in.at;  // empty unless a value follows
  Field field;
  while (in.at < in.end) {
    if (!next_field(&in, &field)) return false;
    if (field.number == 1 && field.wire == 2 && list->count++ == 0) list->place = field.value;
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

// Calls take(name, kind, list) for each feature of an example, until that is false; false: it was, or the
// example is malformed.
template <typename Take>
bool each_feature(ByteRange example, const Take& take) {
  Field outer, entry, member;
  while (example.at < example.end) {
    if (!next_field(&example, &outer)) return false;
    if (outer.number != 1 || outer.wire != 2) continue;
    while (outer.value.at < outer.value.end) {
      if (!next_field(&outer.value, &entry)) return false;
      if (entry.number != 1 || entry.wire != 2) continue;
      ByteRange name{entry.value.at, entry.value.at}, feature{nullptr, nullptr};
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
      if (kind != 0 && !take(name, kind, where)) return false;
    }
  }
  return true;
}

bool read_example(ByteRange example, const uint8_t* data, const std::vector<std::string>& names, size_t row,
                  const Features& found) {
  return each_feature(example, [&](ByteRange name, unsigned kind, ByteRange where) {
    const size_t length = static_cast<size_t>(name.end - name.at);
    for (size_t column = 0; column < names.size(); column++) {
      if (names[column].size() != length || std::memcmp(names[column].data(), name.at, length) != 0) continue;
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
    return true;
  });
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

int64_t feature_names(const uint8_t* data, size_t size, const int64_t* offset, const int64_t* nbytes,
                      size_t n, std::vector<std::string>* names) {
  std::unordered_set<std::string> seen(names->begin(), names->end());
  for (size_t row = 0; row < n; row++) {
    if (!message_fits(size, offset[row], nbytes[row])) return static_cast<int64_t>(row);
    const uint8_t* begin = data + offset[row];
    const bool good = each_feature({begin, begin + nbytes[row]}, [&](ByteRange name, unsigned, ByteRange) {
      const std::string text(name.at, name.end);
      if (seen.insert(text).second) names->push_back(text);
      return true;
    });
    if (!good) return static_cast<int64_t>(row);
  }
  return -1;
}

bool feature_numbers(const uint8_t* data, size_t size, unsigned kind, const int64_t* offset,
                     const int64_t* nbytes, size_t n, int64_t* numbers, size_t count) {
  size_t filled = 0;
  for (size_t row = 0; row < n; row++) {
    if (!message_fits(size, offset[row], nbytes[row])) return false;
    const uint8_t* begin = data + offset[row];
    const bool good = each_number(kind, {begin, begin + nbytes[row]}, [&](int64_t number) {
      if (filled < count) numbers[filled] = number;
      filled++;
    });
    if (!good) return false;
  }
  return filled == count;
}

}  // namespace fastload
