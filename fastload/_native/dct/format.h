// The record's head: its fields, its reader and its writer. docs/dct.md specifies the bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace fastload {

constexpr uint8_t kDctMagic = 0xDC;
constexpr uint8_t kDctVersion = 1;

// Pillow refuses to open images beyond this (its MAX_IMAGE_PIXELS); a record of one is not made either.
constexpr int64_t kDctMaxPixels = 89478485;
// libjpeg's own limits (JPEG_MAX_DIMENSION, D_MAX_BLOCKS_IN_MCU).
constexpr int kDctMaxDimension = 65500;
constexpr int kDctMaxBlocksInMcu = 10;
constexpr int kDctMaxComponents = 3;

// The longest synthetic header: SOI, JFIF, Adobe, three 16-bit DQT, SOF, two DHT, SOS, EOI.
constexpr size_t kDctMaxHeader = 640;
// The longest head before the row table.
constexpr size_t kDctMaxHead = 8 + 3 + 2 + 3 * 129 + 4;

// Position in a block, row-major, of the k-th coefficient in zig-zag order.
constexpr uint8_t kDctNaturalOrder[64] = {0,  1,  8,  16, 9,  2,  3,  10, 17, 24, 32, 25, 18, 11, 4,  5,
                                          12, 19, 26, 33, 40, 48, 41, 34, 27, 20, 13, 6,  7,  14, 21, 28,
                                          35, 42, 49, 56, 57, 50, 43, 36, 29, 22, 15, 23, 30, 37, 44, 51,
                                          58, 59, 52, 45, 38, 31, 39, 46, 53, 60, 61, 54, 47, 55, 62, 63};

struct DctComponent {
  uint8_t id;
  uint8_t h, v;        // sampling factors, 1..4
  uint16_t quant[64];  // in zig-zag order
};

// What decides the pixels, besides the coefficients.
struct DctImage {
  int width, height;  // pixels
  int components;     // 1 (gray, sampling 1x1) or 3
  bool jfif, adobe;   // whether these segments were there: they decide the colour transform
  int adobe_transform;
  DctComponent component[kDctMaxComponents];
};

// How the blocks are laid out; follows from DctImage and the column block.
struct DctGrid {
  int mcu_width, mcu_height;  // pixels
  int mcus_per_row, mcu_rows;
  int blocks_in_mcu;
  int log2_column_block;
  int column_blocks;  // per MCU row
};

// A record, parsed. The pointers go into the record.
struct DctRecord {
  DctImage image;
  DctGrid grid;
  int row_entry_nbytes, column_entry_nbytes;  // 2 or 4
  const uint8_t* rows;                        // mcu_rows - 1 offsets into data
  const uint8_t* data;
  const uint8_t* data_end;
  const uint8_t* metadata;  // JPEG marker segments as in the source; nullptr: none but those the flags imply
  size_t metadata_nbytes;
};

// False if the sampling factors or sizes are none that a record may have.
bool dct_grid(const DctImage& image, int log2_column_block, DctGrid* grid);

// False: not a record of this version, or impossible values. Checks that the row table lies inside and that
// the data could hold two bytes for every block, so that work and memory stay in proportion to nbytes.
bool dct_parse(const uint8_t* record, size_t nbytes, DctRecord* parsed);

// The same in two steps: the image and the grid out of the head's first bytes, whose number comes back (0: no
// record), and what differs from record to record where these bytes are the same.
size_t dct_parse_head(const uint8_t* record, size_t nbytes, DctRecord* parsed);
bool dct_parse_tables(const uint8_t* record, size_t nbytes, size_t head_nbytes, DctRecord* parsed);

// Where a column block of an MCU row begins in the data; nullptr: its offset points outside.
const uint8_t* dct_column_block(const DctRecord& record, int row, int column_block);

// Appends the head, up to the row table.
void dct_write_head(const DctImage& image, const DctGrid& grid, int row_entry_nbytes, int column_entry_nbytes,
                    bool has_metadata, uint32_t metadata_nbytes, std::vector<uint8_t>* record);

// The header of a baseline single-scan JPEG of this image, up to the first byte of entropy-coded data, with
// Huffman tables that are legal and of no use. Returns its size, at most kDctMaxHeader.
size_t dct_synthesise_header(const DctImage& image, uint8_t* header);

// The JFIF and Adobe segments that the flags stand for, marker included. Return their size.
constexpr size_t kDctJfifNbytes = 18, kDctAdobeNbytes = 16;
void dct_jfif_segment(uint8_t* segment);
void dct_adobe_segment(int transform, uint8_t* segment);

}  // namespace fastload
