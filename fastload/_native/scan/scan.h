// Parsers of other programs' record files.
//
// What it does. Finds where the features of tf.train.Example and the fields of Caffe's Datum are, and lists
// the members of a tar archive, for the modules in fastload/storage/formats/ (_example.py, _lmdb_foreign.py,
// tar.py).
//
// Guarantees
//   exactness      the results of protobuf and of Python's tarfile
//   bounds         every length that a file claims is checked before it is used; only names are copied
//   errors         malformed input is reported with its position, never by an exception; only allocations
//                  throw
//   thread safety  functions without state
//   ownership      the caller owns the data and all output arrays
//
// Tests: tests/storage/test_example.py, test_tar.py, test_lmdb_foreign.py (Datum), on sound and damaged
// files.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace fastload {

// Where m named features of n examples are; all arrays have n * m items, zeroed by the caller. _example.py
// defines what each holds.
struct Features {
  uint8_t* kind;
  int32_t* count;
  int64_t* offset;
  int64_t* nbytes;
  int64_t* first;
};

// Fills `found` for the examples at data + offset[i], nbytes[i]. Returns the first example that is not a
// valid message, or -1.
int64_t find_features(const uint8_t* data, size_t size, const int64_t* offset, const int64_t* nbytes,
                      size_t n, const std::vector<std::string>& names, const Features& found);

// Adds to `names`, each once, the names of the features of the examples at data + offset[i], nbytes[i].
// Returns the first that is not a valid message, or -1.
int64_t feature_names(const uint8_t* data, size_t size, const int64_t* offset, const int64_t* nbytes,
                      size_t n, std::vector<std::string>* names);

// The numbers of lists that find_features has found, one list after the other; of a float its 32 bits. False:
// they are not `count`, or a list is damaged.
bool feature_numbers(const uint8_t* data, size_t size, unsigned kind, const int64_t* offset,
                     const int64_t* nbytes, size_t n, int64_t* numbers, size_t count);

constexpr size_t kDatumColumns = 8;

// Fills the table (n, kDatumColumns) of zeros with the fields of Caffe's Datum messages; _datum.py defines
// the columns. Returns the first that is not a valid message, or -1.
int64_t find_datums(const uint8_t* data, size_t size, const int64_t* offset, const int64_t* nbytes, size_t n,
                    int64_t* table);

// The members of an archive that belong to samples; see Members in tar.py.
struct TarMembers {
  size_t at = 0;     // where parsing ended
  std::string why;   // the error there; empty if there is none. "{name}" stands for `name`
  std::string name;  // the member that was rejected
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
