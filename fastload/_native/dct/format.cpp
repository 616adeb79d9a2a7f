#include "dct/format.h"

#include <cstring>

#include "base/bytes.h"

namespace fastload {
namespace {

// Flags in the header's third byte.
enum Flag : uint8_t {
  kColour = 1,
  kJfif = 2,
  kAdobe = 4,
  kAdobeYcc = 8,
  kIds = 16,
  kWideRows = 32,
  kWideColumns = 64,
  kMetadata = 128,
};

// The first byte of a quantisation table. Below kQuantBytes: a table of ITU-T T.81 Annex K, scaled by libjpeg
// for a quality; luminance at 1..100, chrominance at 101..200.
enum Quant : uint8_t {
  kQuantLuminance = 0,
  kQuantChrominance = 100,
  kQuantBytes = 201,
  kQuantWords = 202,
  kQuantSameAsFirst = 203,  // + index of the earlier component
};

// ITU-T T.81 tables K.1 and K.2, row-major.
constexpr uint8_t kStandard[2][64] = {
    {16, 11,  10,  16, 24, 40, 51, 61, 12,  12,  14,  19,  26, 58, 60, 55,  14,  13,  16,  24, 40, 57,
     69, 56,  14,  17, 22, 29, 51, 87, 80,  62,  18,  22,  37, 56, 68, 109, 103, 77,  24,  35, 55, 64,
     81, 104, 113, 92, 49, 64, 78, 87, 103, 121, 120, 101, 72, 92, 95, 98,  112, 100, 103, 99},
    {17, 18, 24, 47, 99, 99, 99, 99, 18, 21, 26, 66, 99, 99, 99, 99, 24, 26, 56, 99, 99, 99,
     99, 99, 47, 66, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99,
     99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99}};

// The k-th value, in zig-zag order, of the table that libjpeg's jpeg_set_quality with force_baseline makes.
int standard_value(int which, int quality, int k) {
  const int scale = quality < 50 ? 5000 / quality : 200 - 2 * quality;
  const int value = (kStandard[which][kNaturalOrder[k]] * scale + 50) / 100;
  return value < 1 ? 1 : value > 255 ? 255 : value;
}

bool is_standard(const uint16_t* quant, int which, int quality) {
  for (int k = 0; k < 64; k++)
    if (quant[k] != standard_value(which, quality, k)) return false;
  return true;
}

void write_quant(const DctImage& image, int index, std::vector<uint8_t>* out) {
  const uint16_t* quant = image.component[index].quant;
  const size_t nbytes = sizeof(image.component[index].quant);
  for (int earlier = 0; earlier < index; earlier++)
    if (std::memcmp(quant, image.component[earlier].quant, nbytes) == 0) {
      out->push_back(static_cast<uint8_t>(kQuantSameAsFirst + earlier));
      return;
    }
  for (int which = 0; which < 2; which++)
    for (int quality = 1; quality <= 100; quality++)
      if (is_standard(quant, which, quality)) {
        out->push_back(static_cast<uint8_t>((which ? kQuantChrominance : kQuantLuminance) + quality));
        return;
      }
  bool words = false;
  for (int k = 0; k < 64; k++) words |= quant[k] > 255;
  out->push_back(words ? kQuantWords : kQuantBytes);
  for (int k = 0; k < 64; k++) {
    out->push_back(static_cast<uint8_t>(quant[k]));
    if (words) out->push_back(static_cast<uint8_t>(quant[k] >> 8));
  }
}

// A position in the header, and its end.
struct Reader {
  const uint8_t* at;
  const uint8_t* end;
  bool has(size_t nbytes) const { return static_cast<size_t>(end - at) >= nbytes; }
};

bool read_quant(Reader* in, int index, DctImage* image) {
  if (!in->has(1)) return false;
  uint16_t* quant = image->component[index].quant;
  const int kind = *in->at++;
  if (kind >= kQuantSameAsFirst) {
    if (kind - kQuantSameAsFirst >= index) return false;
    std::memcpy(quant, image->component[kind - kQuantSameAsFirst].quant, sizeof(image->component[0].quant));
    return true;
  }
  if (kind == kQuantBytes || kind == kQuantWords) {
    const size_t step = kind == kQuantWords ? 2 : 1;
    if (!in->has(64 * step)) return false;
    for (size_t k = 0; k < 64; k++) quant[k] = step == 2 ? load_le<uint16_t>(in->at + 2 * k) : in->at[k];
    in->at += 64 * step;
    return true;
  }
  if (kind == 0) return false;
  const int which = kind > kQuantChrominance, quality = which ? kind - kQuantChrominance : kind;
  for (int k = 0; k < 64; k++) quant[k] = static_cast<uint16_t>(standard_value(which, quality, k));
  return true;
}

}  // namespace

bool dct_grid(const DctImage& image, int log2_column_block, DctGrid* grid) {
  if (image.components != 1 && image.components != kDctMaxComponents) return false;
  if (image.width < 1 || image.height < 1) return false;
  if (image.width > kDctMaxDimension || image.height > kDctMaxDimension) return false;
  if (static_cast<int64_t>(image.width) * image.height > kMaxPixels) return false;
  int h_max = 1, v_max = 1, blocks = 0;
  for (int c = 0; c < image.components; c++) {
    const DctComponent& component = image.component[c];
    if (component.h < 1 || component.h > 4 || component.v < 1 || component.v > 4) return false;
    if (component.h > h_max) h_max = component.h;
    if (component.v > v_max) v_max = component.v;
    blocks += component.h * component.v;
  }
  if (blocks > kDctMaxBlocksInMcu) return false;
  if (image.components == 1 && blocks != 1) return false;
  for (int c = 0; c < image.components; c++)  // libjpeg does not upsample by fractions
    if (h_max % image.component[c].h != 0 || v_max % image.component[c].v != 0) return false;
  grid->mcu_width = 8 * h_max;
  grid->mcu_height = 8 * v_max;
  grid->mcus_per_row = (image.width + grid->mcu_width - 1) / grid->mcu_width;
  grid->mcu_rows = (image.height + grid->mcu_height - 1) / grid->mcu_height;
  grid->blocks_in_mcu = blocks;
  grid->log2_column_block = log2_column_block;
  grid->column_blocks = (grid->mcus_per_row + (1 << log2_column_block) - 1) >> log2_column_block;
  return true;
}

bool dct_parse(const uint8_t* record, size_t nbytes, DctRecord* parsed) {
  const size_t header_nbytes = dct_parse_header(record, nbytes, parsed);
  return header_nbytes != 0 && dct_parse_tables(record, nbytes, header_nbytes, parsed);
}

size_t dct_parse_header(const uint8_t* record, size_t nbytes, DctRecord* parsed) {
  DctImage& image = parsed->image;
  Reader in{record, record + nbytes};
  if (!in.has(8) || record[0] != kDctMagic || record[1] != kDctVersion) return 0;
  const uint8_t flags = record[2], layout = record[3];
  image.components = flags & kColour ? kDctMaxComponents : 1;
  image.jfif = flags & kJfif;
  image.adobe = flags & kAdobe;
  image.adobe_transform = flags & kAdobeYcc ? 1 : 0;
  if (image.adobe_transform && !image.adobe) return 0;
  image.width = load_le<uint16_t>(record + 4);
  image.height = load_le<uint16_t>(record + 6);
  in.at += 8;

  for (int c = 0; c < image.components; c++) {
    image.component[c].id = static_cast<uint8_t>(c + 1);
    image.component[c].h = image.component[c].v = 1;
  }
  if (flags & kIds) {
    if (!in.has(static_cast<size_t>(image.components))) return 0;
    for (int c = 0; c < image.components; c++) image.component[c].id = *in.at++;
  }
  image.component[0].h = static_cast<uint8_t>((layout >> 3 & 3) + 1);
  image.component[0].v = static_cast<uint8_t>((layout >> 5 & 3) + 1);
  if (layout & 128) {
    if (image.components != kDctMaxComponents || !in.has(2)) return 0;
    for (int c = 1; c < kDctMaxComponents; c++) {
      image.component[c].h = *in.at >> 4;
      image.component[c].v = *in.at++ & 15;
    }
  }
  for (int c = 0; c < image.components; c++)
    if (!read_quant(&in, c, &image)) return 0;
  if (!dct_grid(image, layout & 7, &parsed->grid)) return 0;
  return static_cast<size_t>(in.at - record);
}

bool dct_parse_tables(const uint8_t* record, size_t nbytes, size_t header_nbytes, DctRecord* parsed) {
  const uint8_t flags = record[2];
  const DctGrid& grid = parsed->grid;
  Reader in{record + header_nbytes, record + nbytes};
  parsed->metadata = nullptr;
  parsed->metadata_nbytes = 0;
  if (flags & kMetadata) {
    if (!in.has(4)) return false;
    parsed->metadata_nbytes = load_le<uint32_t>(in.at);
    in.at += 4;
    if (!in.has(parsed->metadata_nbytes)) return false;
    in.end -= parsed->metadata_nbytes;
    parsed->metadata = in.end;
  }

  parsed->row_entry_nbytes = flags & kWideRows ? 4 : 2;
  parsed->column_entry_nbytes = flags & kWideColumns ? 4 : 2;
  parsed->rows = in.at;
  const size_t row_table = static_cast<size_t>(grid.mcu_rows - 1) * parsed->row_entry_nbytes;
  const uint64_t column_tables =
      static_cast<uint64_t>(grid.mcu_rows) * (grid.column_blocks - 1) * parsed->column_entry_nbytes;
  const uint64_t blocks = static_cast<uint64_t>(grid.mcu_rows) * grid.mcus_per_row * grid.blocks_in_mcu;
  if (!in.has(row_table)) return false;
  parsed->data = in.at + row_table;
  parsed->data_end = in.end;
  return static_cast<uint64_t>(in.end - parsed->data) >= column_tables + 2 * blocks;
}

const uint8_t* dct_column_block(const DctRecord& record, int row, int column_block) {
  const auto entry = [](const uint8_t* table, int nbytes, int index) -> size_t {
    const uint8_t* at = table + static_cast<size_t>(index) * nbytes;
    return nbytes == 4 ? load_le<uint32_t>(at) : load_le<uint16_t>(at);
  };
  size_t left = static_cast<size_t>(record.data_end - record.data);
  const uint8_t* at = record.data;
  const size_t row_offset = row == 0 ? 0 : entry(record.rows, record.row_entry_nbytes, row - 1);
  const size_t table_nbytes = static_cast<size_t>(record.grid.column_blocks - 1) * record.column_entry_nbytes;
  if (row_offset > left || left - row_offset < table_nbytes) return nullptr;
  const uint8_t* table = at + row_offset;
  at = table + table_nbytes;
  left -= row_offset + table_nbytes;
  const size_t offset = column_block == 0 ? 0 : entry(table, record.column_entry_nbytes, column_block - 1);
  return offset > left ? nullptr : at + offset;
}

void dct_write_header(const DctImage& image, const DctGrid& grid, int row_entry_nbytes,
                      int column_entry_nbytes, bool has_metadata, uint32_t metadata_nbytes,
                      std::vector<uint8_t>* record) {
  bool ids = false, sampled_chroma = false;
  for (int c = 0; c < image.components; c++) {
    ids |= image.component[c].id != c + 1;
    sampled_chroma |= c > 0 && (image.component[c].h != 1 || image.component[c].v != 1);
  }
  const int flags = (image.components > 1 ? kColour : 0) | (image.jfif ? kJfif : 0) |
                    (image.adobe ? kAdobe : 0) | (image.adobe && image.adobe_transform ? kAdobeYcc : 0) |
                    (ids ? kIds : 0) | (row_entry_nbytes == 4 ? kWideRows : 0) |
                    (column_entry_nbytes == 4 ? kWideColumns : 0) | (has_metadata ? kMetadata : 0);
  uint8_t header[8] = {kDctMagic, kDctVersion, static_cast<uint8_t>(flags)};
  header[3] = static_cast<uint8_t>(grid.log2_column_block | (image.component[0].h - 1) << 3 |
                                   (image.component[0].v - 1) << 5 | (sampled_chroma ? 128 : 0));
  store_le(header + 4, static_cast<uint16_t>(image.width));
  store_le(header + 6, static_cast<uint16_t>(image.height));
  record->insert(record->end(), header, header + sizeof(header));
  if (ids)
    for (int c = 0; c < image.components; c++) record->push_back(image.component[c].id);
  if (sampled_chroma)
    for (int c = 1; c < image.components; c++)
      record->push_back(static_cast<uint8_t>(image.component[c].h << 4 | image.component[c].v));
  for (int c = 0; c < image.components; c++) write_quant(image, c, record);
  if (has_metadata) {
    uint8_t size[4];
    store_le(size, metadata_nbytes);
    record->insert(record->end(), size, size + sizeof(size));
  }
}

}  // namespace fastload
