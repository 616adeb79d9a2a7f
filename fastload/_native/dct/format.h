// The record's header: its fields, reader and writer. SPECIFICATION.md specifies the bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/limits.h"
#include "jpeg/zigzag.h"

namespace fastload {

constexpr uint8_t kDctMagic = 0xDC;
constexpr uint8_t kDctVersion = 1;

// libjpeg's own limits (JPEG_MAX_DIMENSION, D_MAX_BLOCKS_IN_MCU).
constexpr int kDctMaxDimension = 65500;
constexpr int kDctMaxBlocksInMcu = 10;
constexpr int kDctMaxComponents = 3;

// The longest synthetic JPEG header: SOI, JFIF, Adobe, three 16-bit DQT, SOF, two DHT, SOS, EOI.
constexpr size_t kDctMaxJpegHeader = 640;
// The longest record header before the row table.
constexpr size_t kDctMaxHeader = 8 + 3 + 2 + 3 * 129 + 4;

struct DctComponent {
  uint8_t id;
  uint8_t h, v;        // sampling factors, 1..4
  uint16_t quant[64];  // in zig-zag order
};

// What determines the pixels besides the coefficients.
struct DctImage {
  int width, height;  // pixels
  int components;     // 1 (gray, sampling 1x1) or 3
  bool jfif, adobe;   // whether these segments were present: they decide the colour transform
  int adobe_transform;
  DctComponent component[kDctMaxComponents];
};

// The layout of the blocks; derived from DctImage and the size of a column block.
struct DctGrid {
  int mcu_width, mcu_height;  // pixels
  int mcus_per_row, mcu_rows;
  int blocks_in_mcu;
  int log2_column_block;
  int column_blocks;  // per MCU row
};

// A parsed record. The pointers refer to the record.
struct DctRecord {
  DctImage image;
  DctGrid grid;
  int row_entry_nbytes, column_entry_nbytes;  // 2 or 4
  const uint8_t* rows;                        // mcu_rows - 1 offsets into data
  const uint8_t* data;
  const uint8_t* data_end;
  const uint8_t* metadata;  // JPEG marker segments of the source; nullptr: only those that the flags imply
  size_t metadata_nbytes;
};

// False if no record may have these sampling factors or sizes.
bool dct_grid(const DctImage& image, int log2_column_block, DctGrid* grid);

// False: not a record of this version, or invalid values. Checks that the row table lies inside the record
// and that the data has at least two bytes per block, so that work and memory stay proportional to nbytes.
bool dct_parse(const uint8_t* record, size_t nbytes, DctRecord* parsed);

// The same in two steps. dct_parse_header reads the image and the grid from the first bytes and returns their
// number (0: not a record). dct_parse_tables reads what may differ between records that share those bytes.
size_t dct_parse_header(const uint8_t* record, size_t nbytes, DctRecord* parsed);
bool dct_parse_tables(const uint8_t* record, size_t nbytes, size_t header_nbytes, DctRecord* parsed);

// Start of a column block of an MCU row; nullptr: its offset is outside the data.
const uint8_t* dct_column_block(const DctRecord& record, int row, int column_block);

// Appends the header, up to the row table.
void dct_write_header(const DctImage& image, const DctGrid& grid, int row_entry_nbytes,
                      int column_entry_nbytes, bool has_metadata, uint32_t metadata_nbytes,
                      std::vector<uint8_t>* record);

// Writes the header of a baseline single-scan JPEG of this image, up to the first byte of entropy-coded data.
// Its Huffman tables are valid but unused. Returns its size, at most kDctMaxJpegHeader.
size_t dct_synthesise_header(const DctImage& image, uint8_t* header);

// The JFIF and Adobe segments that the flags stand for, including the marker.
constexpr size_t kDctJfifNbytes = 18, kDctAdobeNbytes = 16;
void dct_jfif_segment(uint8_t* segment);
void dct_adobe_segment(int transform, uint8_t* segment);

}  // namespace fastload
