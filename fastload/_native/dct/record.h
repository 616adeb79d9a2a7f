// The DCT store's record: a JPEG's quantised coefficients without Huffman coding. docs/dct.md
// specifies the bytes. Nothing here throws past an allocation failure; every read is bounds-checked
// against the record.
//
// How a decoder uses it:
//   open() -> frame() -> read()
// or, where there is no frame:
//   open() -> header() -> jpeg_mem_src, jpeg_read_header, jpeg_start_decompress, jpeg_crop_scanline
//   -> attach() -> jpeg_skip_scanlines / jpeg_read_scanlines -> jpeg_abort -> corrupt()?
// The header has no entropy-coded data behind it: end with jpeg_abort_decompress, never with
// jpeg_finish_decompress.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

#include <jpeglib.h>

#include "jpeg/coefficients.h"

namespace fastload {

struct DctOptions {
  // MCUs between two restarts of the DC prediction, a power of two in 1..128; a window starts to read at
  // such a boundary. 8 takes 0.7 % fewer bytes than 4, and no more time that could be measured (docs/dct.md,
  // "What each choice costs").
  int column_block = 8;
  // Whether EXIF, ICC and other segments are kept, so that dct_to_jpeg restores them.
  bool keep_metadata = true;
};

// JPEG file -> record. False with a reason in `why` where the original bytes must be kept instead.
bool dct_encode(const uint8_t* jpeg, size_t nbytes, const DctOptions& options, std::vector<uint8_t>* record,
                std::string* why);
bool dct_encode(const uint8_t* jpeg, size_t nbytes, std::vector<uint8_t>* record, std::string* why);

// Record -> a baseline JPEG file with equal coefficients. False with a reason: the record is corrupt.
// It is also the exact way to decode where DctSource::usable() is false.
bool dct_to_jpeg(const uint8_t* record, size_t nbytes, std::vector<uint8_t>* jpeg, std::string* why);

// Width and height in pixels from the record's head. False: not a record, or its head is corrupt.
bool dct_size(const uint8_t* record, size_t nbytes, int* width, int* height);

// Records opened from now on, in all threads, are expanded with nothing higher than "avx512", "avx2",
// "neon" or "scalar" ("": than the best one here). False: there is no such name. For tests.
bool dct_set_simd(const char* name);

struct FrameHeader;

// Per-thread state while one record is decoded; reused.
class DctSource final : public CoefficientSource {
 public:
  DctSource();
  ~DctSource();
  DctSource(const DctSource&) = delete;
  DctSource& operator=(const DctSource&) = delete;

  // Parses and checks the record's head. The record must stay where it is while rows are read; nothing
  // behind its last byte is touched. False: the record is corrupt.
  bool open(const uint8_t* record, size_t nbytes);

  // Of the record that is open, where it is of the kind that jpeg/planes.h decodes; else nullptr.
  const FrameHeader* frame() const;
  // Rows of MCUs from the top, as frame() tells them.
  bool read(int row, int first, int last, const BlockRun& to) override;

  // The synthetic JPEG header to be fed to libjpeg. Valid until the next open.
  const uint8_t* header(size_t* nbytes);

  // After jpeg_start_decompress (and jpeg_crop_scanline): takes the place of the entropy decoder.
  // Columns outside of [x0, x1) (source pixels: what jpeg_crop_scanline left, or the whole width)
  // need not be expanded. Takes cinfo->client_data, which must be left alone until jpeg_abort; this
  // object must outlive that. False: record and cinfo disagree.
  bool attach(j_decompress_ptr cinfo, int x0, int x1);

  // True if the record ended early or held an impossible value while rows were read. The blocks
  // from there on decode as zeros.
  bool corrupt() const;

  // Whether the hook works with the libjpeg this process runs (checked once on a small image). With
  // FASTLOAD_NO_DCT_HOOK in the environment it is not even tried.
  static bool usable();

  // Name of the expansion in use: "avx512", "avx2", "neon", "scalar". FASTLOAD_SIMD picks a lower one.
  static const char* simd();

 private:
  struct Impl;
  Impl* impl_;
};

}  // namespace fastload
