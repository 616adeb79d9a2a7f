// DCT records: a JPEG's quantised coefficients without Huffman coding, for the DCT store. SPECIFICATION.md
// specifies the bytes.
//
// What it does. encode.cpp makes a record from a JPEG file, restore.cpp a JPEG file from a record. DctSource
// (decode.cpp) gives a record's coefficients to PlaneDecoder (jpeg/planes.h), or to libjpeg in place of its
// entropy decoder. format.h is the record's header, block.h a block; expand*.cpp and pack*.cpp read and write
// blocks with each instruction set.
//
// Guarantees
//   exactness      record and JPEG hold the same coefficients, so pixels are equal; every instruction set
//                  reads and writes the same bytes
//   bounds         every read is checked against the record; invalid records are rejected, and work and
//                  memory stay proportional to the record's size
//   errors         only allocation failures throw
//   thread safety  functions may run on any thread; a DctSource belongs to one thread
//   ownership      the caller keeps a record in memory while a DctSource has it open
//
// Tests: tests/native/test_dct.py, test_dct_encode.py, test_instruction_sets.py (expand.cpp), test_fuzz.py
// (fuzz.cpp). tests/dct_reference.py is an independent reader;
// tests/native/records/ holds records that must stay readable.
//
// To decode:
//   open() -> frame_header() -> read()
// or, if there is no frame header:
//   open() -> jpeg_header() -> jpeg_mem_src, jpeg_read_header, jpeg_start_decompress, jpeg_crop_scanline
//   -> attach() -> jpeg_skip_scanlines / jpeg_read_scanlines -> jpeg_abort -> corrupt()?
// No entropy-coded data follows the JPEG header: end with jpeg_abort_decompress, never with
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
  // MCUs between two restarts of the DC prediction, a power of two in 1..128. Decoding of a crop starts at
  // such a restart. 8 takes 0.7 % fewer bytes than 4, and no measurable extra time (SPECIFICATION.md, "What
  // each choice costs").
  int column_block = 8;
  // Whether EXIF, ICC and other segments are stored, so that dct_to_jpeg restores them.
  bool keep_metadata = true;
};

// JPEG file -> record. False, with a reason in `why`: the store must keep the original bytes.
bool dct_encode(const uint8_t* jpeg, size_t nbytes, const DctOptions& options, std::vector<uint8_t>* record,
                std::string* why);

// Record -> a baseline JPEG file with equal coefficients. False, with a reason in `why`: the record is
// corrupt. Decoding that file is the exact fallback if DctSource::usable() is false.
bool dct_to_jpeg(const uint8_t* record, size_t nbytes, std::vector<uint8_t>* jpeg, std::string* why);

// Width and height in pixels from the record's header. False: not a record, or its header is corrupt.
bool dct_size(const uint8_t* record, size_t nbytes, int* width, int* height);

struct FrameHeader;

// One thread's state while it decodes a record; reused for the next.
class DctSource final : public CoefficientSource {
 public:
  DctSource();
  ~DctSource();
  DctSource(const DctSource&) = delete;
  DctSource& operator=(const DctSource&) = delete;

  // Parses and checks the record's header. The record must stay in memory while rows are read; no byte after
  // its end is read. False: the record is corrupt.
  bool open(const uint8_t* record, size_t nbytes);

  // The frame header of the open record if jpeg/planes.h can decode it; else nullptr.
  const FrameHeader* frame_header() const;
  // As CoefficientSource; rows and columns of MCUs as the frame header counts them.
  bool read(int row, int first, int last, const BlockRun& to) override;

  // The synthetic JPEG header for libjpeg. Valid until the next open().
  const uint8_t* jpeg_header(size_t* nbytes);

  // Call after jpeg_start_decompress (and jpeg_crop_scanline): replaces libjpeg's entropy decoder. Columns
  // outside [x0, x1) (source pixels: what jpeg_crop_scanline left, or the whole width) need not be expanded.
  // Uses cinfo->client_data, which must not change until jpeg_abort; this object must live until then. False:
  // the record and cinfo disagree.
  bool attach(j_decompress_ptr cinfo, int x0, int x1);

  // True if the record ended early or held an invalid value in the rows read so far. The blocks from there on
  // are decoded as zeros.
  bool corrupt() const;

  // Whether the hook works with the libjpeg of this process, tested once on a small image. Always false if
  // FASTLOAD_NO_DCT_HOOK is set in the environment.
  static bool usable();

 private:
  struct Impl;
  Impl* impl_;
};

}  // namespace fastload
