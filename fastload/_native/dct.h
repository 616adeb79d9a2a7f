// The DCT store's record: a JPEG's quantised coefficients without Huffman coding. docs/formats.md
// specifies the bytes. Nothing here throws; every read is bounds-checked against the record.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

#include <jpeglib.h>

namespace fastload {

// JPEG file -> record. False with a reason in `why` where the original bytes must be kept instead.
bool dct_encode(const uint8_t* jpeg, size_t nbytes, std::vector<uint8_t>* record, std::string* why);

// Record -> a JPEG file with equal coefficients.
bool dct_to_jpeg(const uint8_t* record, size_t nbytes, std::vector<uint8_t>* jpeg, std::string* why);

// Per-thread state while one record is decoded; reused.
class DctSource {
 public:
  DctSource();
  ~DctSource();
  DctSource(const DctSource&) = delete;
  DctSource& operator=(const DctSource&) = delete;

  // Parses and checks the record's head; gives the synthetic JPEG header to be fed to libjpeg
  // (valid until the next open). False: the record is corrupt.
  bool open(const uint8_t* record, size_t nbytes, const uint8_t** header, size_t* header_nbytes, int* width,
            int* height);

  // After jpeg_start_decompress: takes the place of the entropy decoder. Columns outside of
  // [x0, x1) (source pixels) need not be expanded. False: record and cinfo disagree.
  bool attach(j_decompress_ptr cinfo, int x0, int x1);

  // True if the record ended early or held an impossible value while rows were read.
  bool corrupt() const;

  // Whether the hook works with the libjpeg this process runs (checked once on a built-in image).
  static bool usable();

 private:
  struct Impl;
  Impl* impl_;
};

}  // namespace fastload
