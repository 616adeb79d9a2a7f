// Parses Caffe's Datum; fastload/storage/formats/_datum.py lists the fields.
#include "scan/scan.h"
#include "scan/wire.h"

namespace fastload {
namespace {

// Columns of the table, as in _datum.py.
enum Column { kChannels, kHeight, kWidth, kOffset, kLabel, kNbytes, kEncoded, kLabelled };

bool read_datum(ByteRange message, const uint8_t* data, int64_t* row) {
  static const int kNumbers[8] = {-1, kChannels, kHeight, kWidth, -1, kLabel, -1, kEncoded};
  Field field;
  while (message.at < message.end) {
    if (!next_field(&message, &field)) return false;
    if (field.number == 4 && field.wire == 2) {
      row[kOffset] = field.value.at - data;
      row[kNbytes] = field.value.end - field.value.at;
    } else if (field.number < 8 && field.wire == 0 && kNumbers[field.number] >= 0) {
      uint64_t value = 0;
      if (!read_varint(&field.value, &value)) return false;
      row[kNumbers[field.number]] = static_cast<int64_t>(value);
      if (field.number == 5) row[kLabelled] = 1;
    }
  }
  return true;
}

}  // namespace

int64_t find_datums(const uint8_t* data, size_t size, const int64_t* offset, const int64_t* nbytes, size_t n,
                    int64_t* table) {
  for (size_t row = 0; row < n; row++) {
    if (!message_fits(size, offset[row], nbytes[row])) return static_cast<int64_t>(row);
    const uint8_t* begin = data + offset[row];
    if (!read_datum({begin, begin + nbytes[row]}, data, table + kDatumColumns * row))
      return static_cast<int64_t>(row);
  }
  return -1;
}

}  // namespace fastload
