// JPEG -> record.
#include <cstring>

#include "dct.h"
#include "dct_block.h"
#include "dct_format.h"
#include "dct_libjpeg.h"

namespace fastload {
namespace {

// A progressive JPEG of more scans than this is made to keep a decoder busy; real ones have about ten.
constexpr int kMaxScans = 200;
// What a baseline JPEG can say, so that dct_to_jpeg can say it again (ITU-T T.81 F.1.2).
constexpr int kMaxAc = 1023, kMinDc = -1024, kMaxDc = 1023;

// The source's coefficients, in libjpeg's arrays.
struct Source {
  jpeg_decompress_struct cinfo;
  DctErrors errors;
  jpeg_progress_mgr progress;
  jvirt_barray_ptr* arrays = nullptr;

  Source() {
    std::memset(&cinfo, 0, sizeof(cinfo));
    errors.install(reinterpret_cast<jpeg_common_struct*>(&cinfo));
  }
  ~Source() { jpeg_destroy_decompress(&cinfo); }
  Source(const Source&) = delete;
  Source& operator=(const Source&) = delete;
};

// Note [setjmp] holds for the next three.
bool read_header(Source* source, const uint8_t* jpeg, size_t nbytes) {
  jpeg_decompress_struct* cinfo = &source->cinfo;
  if (setjmp(source->errors.jump)) return false;
  jpeg_create_decompress(cinfo);
  jpeg_mem_src(cinfo, const_cast<unsigned char*>(jpeg), static_cast<unsigned long>(nbytes));
  jpeg_save_markers(cinfo, JPEG_COM, 0xFFFF);
  for (int n = 0; n < 16; n++) jpeg_save_markers(cinfo, JPEG_APP0 + n, 0xFFFF);
  jpeg_read_header(cinfo, TRUE);
  return true;
}

bool read_coefficients(Source* source) {
  if (setjmp(source->errors.jump)) return false;
  source->progress.progress_monitor = [](j_common_ptr common) {
    if (reinterpret_cast<j_decompress_ptr>(common)->input_scan_number <= kMaxScans) return;
    DctErrors* errors = reinterpret_cast<DctErrors*>(common->err);
    std::snprintf(errors->message, sizeof(errors->message), "more than %d scans", kMaxScans);
    std::longjmp(errors->jump, 1);
  };
  source->cinfo.progress = &source->progress;
  source->arrays = jpeg_read_coefficients(&source->cinfo);
  return source->arrays != nullptr;
}

bool access_rows(Source* source, int component, int first, int count, JBLOCKARRAY* rows) {
  if (setjmp(source->errors.jump)) return false;
  *rows = source->cinfo.mem->access_virt_barray(reinterpret_cast<j_common_ptr>(&source->cinfo),
                                                source->arrays[component], static_cast<JDIMENSION>(first),
                                                static_cast<JDIMENSION>(count), FALSE);
  return true;
}

bool refuse(std::string* why, std::string reason) {
  *why = std::move(reason);
  return false;
}

bool describe(const jpeg_decompress_struct& cinfo, DctImage* image, std::string* why) {
  if (cinfo.data_precision != 8)
    return refuse(why, std::to_string(cinfo.data_precision) + "-bit samples, a record holds 8-bit ones");
  const J_COLOR_SPACE space = cinfo.jpeg_color_space;
  if (space == JCS_CMYK || space == JCS_YCCK) return refuse(why, "CMYK or YCCK, a record holds gray or RGB");
  const bool gray = cinfo.num_components == 1 && space == JCS_GRAYSCALE;
  const bool colour = cinfo.num_components == 3 && (space == JCS_YCbCr || space == JCS_RGB);
  if (!gray && !colour)
    return refuse(why, "colour space of " + std::to_string(cinfo.num_components) +
                           " components, a record holds gray, YCbCr or RGB");
  if (cinfo.image_width > kDctMaxDimension || cinfo.image_height > kDctMaxDimension ||
      static_cast<int64_t>(cinfo.image_width) * cinfo.image_height > kDctMaxPixels)
    return refuse(why, std::to_string(cinfo.image_width) + "x" + std::to_string(cinfo.image_height) +
                           " pixels, a record holds at most " + std::to_string(kDctMaxPixels));
  image->width = static_cast<int>(cinfo.image_width);
  image->height = static_cast<int>(cinfo.image_height);
  image->components = cinfo.num_components;
  image->jfif = cinfo.saw_JFIF_marker;
  image->adobe = cinfo.saw_Adobe_marker;
  image->adobe_transform = image->adobe && cinfo.Adobe_transform == 1;
  for (int c = 0; c < image->components; c++) {
    const jpeg_component_info& component = cinfo.comp_info[c];
    image->component[c].id = static_cast<uint8_t>(component.component_id);
    // A single component is never subsampled, whatever its factors say.
    image->component[c].h = static_cast<uint8_t>(gray ? 1 : component.h_samp_factor);
    image->component[c].v = static_cast<uint8_t>(gray ? 1 : component.v_samp_factor);
  }
  return true;
}

bool take_tables(const jpeg_decompress_struct& cinfo, DctImage* image, std::string* why) {
  for (int c = 0; c < image->components; c++) {
    const JQUANT_TBL* table = cinfo.comp_info[c].quant_table;
    if (!table) return refuse(why, "coefficients incomplete: no scan of component " + std::to_string(c));
    // libjpeg's tables are row-major.
    for (int k = 0; k < 64; k++) image->component[c].quant[k] = table->quantval[kDctNaturalOrder[k]];
    if (!cinfo.progressive_mode) continue;
    for (int k = 0; k < 64; k++)
      if (cinfo.coef_bits[c][k] != 0)
        return refuse(why, "coefficients incomplete: a progressive JPEG without its last scans");
  }
  return true;
}

// The source's marker segments, or nothing where the flags say it all.
std::vector<uint8_t> metadata_of(const jpeg_decompress_struct& cinfo, const DctImage& image) {
  std::vector<uint8_t> segments, implied;
  for (jpeg_saved_marker_ptr marker = cinfo.marker_list; marker; marker = marker->next) {
    const unsigned length = marker->data_length + 2;
    segments.insert(segments.end(),
                    {0xFF, marker->marker, static_cast<uint8_t>(length >> 8), static_cast<uint8_t>(length)});
    segments.insert(segments.end(), marker->data, marker->data + marker->data_length);
  }
  if (image.jfif) {
    implied.resize(kDctJfifNbytes);
    dct_jfif_segment(implied.data());
  }
  if (image.adobe) {
    const size_t at = implied.size();
    implied.resize(at + kDctAdobeNbytes);
    dct_adobe_segment(image.adobe_transform, implied.data() + at);
  }
  if (segments == implied) segments.clear();
  return segments;
}

// One block in its smallest form (docs/dct.md, "A block"). False: a coefficient that no baseline JPEG holds.
bool put_block(const JCOEF* block, int16_t* prediction, std::vector<uint8_t>* out) {
  uint64_t mask = 0;
  int values[63], count = 0;
  for (int k = 1; k < 64; k++) {
    const int value = block[kDctNaturalOrder[k]];
    if (!value) continue;
    if (value < -kMaxAc || value > kMaxAc) return false;
    mask |= uint64_t{1} << (k - 1);
    values[count++] = value;
  }
  if (block[0] < kMinDc || block[0] > kMaxDc) return false;

  // The width that takes the fewest bytes; of equals, the one with the fewest escapes.
  int width = 0, escape_nbytes = 0, least = 1 << 30;
  for (int bits = kDctMinWidth + 3; bits >= kDctMinWidth; bits--) {
    const int half = 1 << (bits - 1);
    int escapes = 0;
    bool fits = true;
    for (int i = 0; i < count; i++) {
      if (bits == kDctMinWidth)
        fits &= values[i] >= -2 && values[i] <= 2;
      else if (values[i] <= -half || values[i] > half)
        escapes += values[i] > kDctWideEscape && values[i] <= 127 ? 1 : 3;
    }
    const int nbytes = (count * bits + 7) / 8 + escapes + (escapes > 0);
    if (!fits || nbytes >= least) continue;
    least = nbytes;
    width = bits;
    escape_nbytes = escapes;
  }

  const int mask_nbytes = mask ? (63 - __builtin_clzll(mask)) / 8 + 1 : 0;
  const int difference = block[0] - *prediction;
  const bool wide_dc = difference < -128 || difference > 127;
  *prediction = block[0];
  out->push_back(static_cast<uint8_t>(mask_nbytes | wide_dc << kDctWideDc |
                                      (escape_nbytes > 0) << kDctEscapes |
                                      (width - kDctMinWidth) << kDctWidth));
  out->push_back(static_cast<uint8_t>(difference));
  if (wide_dc) out->push_back(static_cast<uint8_t>(difference >> 8));
  if (escape_nbytes) out->push_back(static_cast<uint8_t>(escape_nbytes));
  for (int i = 0; i < mask_nbytes; i++) out->push_back(static_cast<uint8_t>(mask >> (8 * i)));

  const int half = 1 << (width - 1), codes = (1 << width) - 1;
  uint8_t narrow[63], wide[2 * 63];
  int narrow_count = 0, wide_nbytes = 0;
  unsigned held = 0;
  int held_bits = 0;
  for (int i = 0; i < count; i++) {
    const int value = values[i];
    int code = value & codes;  // of -2 in two bits: 2, which is taken by +2
    if (width == kDctMinWidth) {
      if (value == -2) code = 0;
    } else if (value <= -half || value > half) {
      code = 0;
      const bool fits = value > kDctWideEscape && value <= 127;
      narrow[narrow_count++] = static_cast<uint8_t>(fits ? value : kDctWideEscape);
      if (!fits) {
        store_le(wide + wide_nbytes, static_cast<uint16_t>(value));
        wide_nbytes += 2;
      }
    }
    held |= static_cast<unsigned>(code) << held_bits;
    for (held_bits += width; held_bits >= 8; held_bits -= 8, held >>= 8)
      out->push_back(static_cast<uint8_t>(held));
  }
  if (held_bits) out->push_back(static_cast<uint8_t>(held));
  out->insert(out->end(), narrow, narrow + narrow_count);
  out->insert(out->end(), wide, wide + wide_nbytes);
  return true;
}

// Blocks of all MCU rows without their offsets, and where each column block begins.
struct Blocks {
  std::vector<uint8_t> bytes;
  std::vector<size_t> starts;  // (mcu_rows * column_blocks + 1), the last one is bytes.size()
};

// Blocks that only fill up the last MCU of a row or column are told as libjpeg codes them, whatever the
// source had there: no change of the DC value, nothing else.
bool put_blocks(Source* source, const DctImage& image, const DctGrid& grid, Blocks* blocks,
                std::string* why) {
  const int column_mask = (1 << grid.log2_column_block) - 1;
  int16_t prediction[kDctMaxComponents] = {};
  for (int row = 0; row < grid.mcu_rows; row++) {
    JBLOCKARRAY rows[kDctMaxComponents];
    for (int c = 0; c < image.components; c++)
      if (!access_rows(source, c, row * image.component[c].v, image.component[c].v, &rows[c]))
        return refuse(why, source->errors.message);
    for (int column = 0; column < grid.mcus_per_row; column++) {
      if ((column & column_mask) == 0) {
        std::memset(prediction, 0, sizeof(prediction));
        blocks->starts.push_back(blocks->bytes.size());
      }
      for (int c = 0; c < image.components; c++) {
        const DctComponent& component = image.component[c];
        const jpeg_component_info& real = source->cinfo.comp_info[c];
        for (int y = 0; y < component.v; y++)
          for (int x = 0; x < component.h; x++) {
            const int block_x = column * component.h + x, block_y = row * component.v + y;
            const JCOEF* block = rows[c][y][block_x];
            JBLOCK padding = {prediction[c]};
            if (block_x >= static_cast<int>(real.width_in_blocks) ||
                block_y >= static_cast<int>(real.height_in_blocks))
              block = padding;
            if (!put_block(block, &prediction[c], &blocks->bytes))
              return refuse(why, "a coefficient beyond the range of 8-bit baseline JPEG");
          }
      }
    }
  }
  blocks->starts.push_back(blocks->bytes.size());
  return true;
}

void append(size_t value, int nbytes, std::vector<uint8_t>* out) {
  for (int i = 0; i < nbytes; i++) out->push_back(static_cast<uint8_t>(value >> (8 * i)));
}

bool assemble(const DctImage& image, const DctGrid& grid, const Blocks& blocks,
              const std::vector<uint8_t>& metadata, std::vector<uint8_t>* record, std::string* why) {
  const size_t per_row = static_cast<size_t>(grid.column_blocks), rows = static_cast<size_t>(grid.mcu_rows);
  int column_entry_nbytes = 2;
  for (size_t row = 0; row < rows; row++)
    if (blocks.starts[(row + 1) * per_row - 1] - blocks.starts[row * per_row] > UINT16_MAX)
      column_entry_nbytes = 4;
  const size_t table_nbytes = (per_row - 1) * column_entry_nbytes;
  const size_t nbytes = blocks.bytes.size() + rows * table_nbytes;
  if (nbytes > UINT32_MAX || metadata.size() > UINT32_MAX)
    return refuse(why, "more than 4 GiB of coefficients");
  const size_t last_row = (rows - 1) * table_nbytes + blocks.starts[(rows - 1) * per_row];
  const int row_entry_nbytes = last_row > UINT16_MAX ? 4 : 2;

  record->clear();
  record->reserve(kDctMaxHead + rows * row_entry_nbytes + nbytes + metadata.size());
  dct_write_head(image, grid, row_entry_nbytes, column_entry_nbytes, !metadata.empty(),
                 static_cast<uint32_t>(metadata.size()), record);
  for (size_t row = 1; row < rows; row++)
    append(row * table_nbytes + blocks.starts[row * per_row], row_entry_nbytes, record);
  for (size_t row = 0; row < rows; row++) {
    const size_t* starts = &blocks.starts[row * per_row];
    for (size_t block = 1; block < per_row; block++)
      append(starts[block] - starts[0], column_entry_nbytes, record);
    record->insert(record->end(), blocks.bytes.begin() + static_cast<ptrdiff_t>(starts[0]),
                   blocks.bytes.begin() + static_cast<ptrdiff_t>(starts[per_row]));
  }
  record->insert(record->end(), metadata.begin(), metadata.end());
  return true;
}

}  // namespace

bool dct_encode(const uint8_t* jpeg, size_t nbytes, const DctOptions& options, std::vector<uint8_t>* record,
                std::string* why) {
  int log2_column_block = 0;
  while (1 << log2_column_block < options.column_block && log2_column_block < 7) log2_column_block++;
  if (1 << log2_column_block != options.column_block)
    return refuse(why, "column_block must be a power of two in 1..128");
  Source source;
  DctImage image;
  DctGrid grid;
  Blocks blocks;
  if (!read_header(&source, jpeg, nbytes)) return refuse(why, source.errors.message);
  if (!describe(source.cinfo, &image, why)) return false;
  if (!dct_grid(image, log2_column_block, &grid))
    return refuse(why,
                  "sampling factors that no single-scan JPEG can have (more than ten blocks in an MCU, or "
                  "fractions)");
  if (!read_coefficients(&source)) return refuse(why, source.errors.message);
  if (source.errors.manager.num_warnings)
    return refuse(why, std::string("libjpeg warned: ") + source.errors.message);
  if (!take_tables(source.cinfo, &image, why)) return false;
  if (!put_blocks(&source, image, grid, &blocks, why)) return false;
  std::vector<uint8_t> metadata;
  if (options.keep_metadata) metadata = metadata_of(source.cinfo, image);
  return assemble(image, grid, blocks, metadata, record, why);
}

bool dct_encode(const uint8_t* jpeg, size_t nbytes, std::vector<uint8_t>* record, std::string* why) {
  return dct_encode(jpeg, nbytes, DctOptions(), record, why);
}

}  // namespace fastload
