// Walks through record files that others wrote: where the features of tf.train.Example and the fields of
// Caffe's Datum lie, and the members of a tar archive. What fastload/storage/formats/_example.py, _datum.py
// and _tar_members.py do in Python, with equal results.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace fastload {

// Where m named features of n examples lie; all arrays hold n * m items, zeroed by the caller. The meaning of
// each is in _example.py.
struct Features {
  uint8_t* kind;
  int32_t* count;
  int64_t* offset;
  int64_t* nbytes;
  int64_t* first;
};

// Fills `found` for the examples at offset, nbytes of data. The first example that is no valid message, or
// -1.
int64_t find_features(const uint8_t* data, size_t size, const int64_t* offset, const int64_t* nbytes,
                      size_t n, const std::vector<std::string>& names, const Features& found);

constexpr size_t kDatumColumns = 8;

// Fills the table (n, kDatumColumns) of zeros with the fields of Caffe's Datum messages, as _datum.py says.
// The first that is no valid message, or -1.
int64_t find_datums(const uint8_t* data, size_t size, const int64_t* offset, const int64_t* nbytes, size_t n,
                    int64_t* table);

// The members of an archive that belong to samples; see Members in _tar_members.py.
struct TarMembers {
  size_t at = 0;     // where the walk ended
  std::string why;   // what is wrong there; empty if nothing is. "{name}" stands for `name`
  std::string name;  // the member that is refused
  std::string names;
  std::vector<int64_t> ends;
  std::vector<int32_t> stem;
  std::vector<int16_t> extension;
  std::vector<uint8_t> first;
  std::vector<int64_t> offset;
  std::vector<int64_t> nbytes;
  std::vector<std::string> extensions;
};

TarMembers tar_members(const uint8_t* data, size_t size);

}  // namespace fastload
