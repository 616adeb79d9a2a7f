// Protobuf's wire format (protobuf.dev, "Encoding") with every bound checked.
#pragma once

#include <cstddef>
#include <cstdint>

namespace fastload {

constexpr int64_t kMaxMessage = (int64_t{1} << 31) - 1;  // protobuf's own limit

// Whether a message of `nbytes` at `offset` lies within `size` bytes.
inline bool message_fits(size_t size, int64_t offset, int64_t nbytes) {
  return offset >= 0 && nbytes >= 0 && nbytes <= kMaxMessage && static_cast<uint64_t>(offset) <= size &&
         static_cast<uint64_t>(nbytes) <= size - static_cast<uint64_t>(offset);
}

struct ByteRange {
  const uint8_t* at;
  const uint8_t* end;
};

struct Field {
  uint64_t number;
  unsigned wire;
  ByteRange value;
};

inline bool read_varint(ByteRange* in, uint64_t* value) {
  *value = 0;
  for (unsigned shift = 0; shift < 70 && in->at < in->end; shift += 7) {
    const uint8_t byte = *in->at++;
    *value |= static_cast<uint64_t>(byte & 0x7F) << shift;
    if (byte < 0x80) return true;
  }
  return false;
}

// Reads the next field of a message that is not at its end. False: it is malformed.
inline bool next_field(ByteRange* in, Field* field) {
  uint64_t tag = 0;
  if (!read_varint(in, &tag)) return false;
  field->number = tag >> 3;
  field->wire = tag & 7;
  if (field->number == 0 || tag >> 32 != 0) return false;
  const uint8_t* start = in->at;
  uint64_t length = 0;
  switch (field->wire) {
    case 0:
      if (!read_varint(in, &length)) return false;
      field->value = {start, in->at};
      return true;
    case 1:
      length = 8;
      break;
    case 2:
      if (!read_varint(in, &length)) return false;
      start = in->at;
      break;
    case 5:
      length = 4;
      break;
    default:
      return false;
  }
  if (length > static_cast<uint64_t>(in->end - start)) return false;
  in->at = start + length;
  field->value = {start, in->at};
  return true;
}

}  // namespace fastload
