// Makes records from JPEG files.
#include <cstring>
#include <memory>
#include <utility>

#include "dct/format.h"
#include "dct/pack.h"
#include "dct/record.h"
#include "jpeg/entropy.h"
#include "jpeg/libjpeg.h"

namespace fastload {
namespace {

// A JPEG with more scans is made to waste a decoder's time; real progressive files have about ten.
constexpr int kMaxScans = 200;

// A JPEG file opened with libjpeg.
struct JpegSource {
  jpeg_decompress_struct cinfo;
  LibjpegErrors errors;
  jpeg_progress_mgr progress;
  jvirt_barray_ptr* arrays = nullptr;

  JpegSource() {
    std::memset(&cinfo, 0, sizeof(cinfo));
    errors.install(reinterpret_cast<jpeg_common_struct*>(&cinfo));
  }
  ~JpegSource() { jpeg_destroy_decompress(&cinfo); }
  JpegSource(const JpegSource&) = delete;
  JpegSource& operator=(const JpegSource&) = delete;
};

// Note [setjmp] (jpeg/libjpeg.h) applies to the next four functions.
bool read_header(JpegSource* source, const uint8_t* jpeg, size_t nbytes) {
  jpeg_decompress_struct* cinfo = &source->cinfo;
  if (setjmp(source->errors.jump)) return false;
  jpeg_create_decompress(cinfo);
  jpeg_mem_src(cinfo, const_cast<unsigned char*>(jpeg), static_cast<unsigned long>(nbytes));
  jpeg_save_markers(cinfo, JPEG_COM, 0xFFFF);
  for (int n = 0; n < 16; n++) jpeg_save_markers(cinfo, JPEG_APP0 + n, 0xFFFF);
  jpeg_read_header(cinfo, TRUE);
  return true;
}

// Reads a single-scan file up to its entropy-coded data.
bool start_scan(JpegSource* source) {
  if (setjmp(source->errors.jump)) return false;
  source->cinfo.raw_data_out = TRUE;  // libjpeg prepares no pixel conversion
  return jpeg_start_decompress(&source->cinfo);
}

bool read_coefficients(JpegSource* source) {
  if (setjmp(source->errors.jump)) return false;
  source->progress.progress_monitor = [](j_common_ptr common) {
    if (reinterpret_cast<j_decompress_ptr>(common)->input_scan_number <= kMaxScans) return;
    LibjpegErrors* errors = reinterpret_cast<LibjpegErrors*>(common->err);
    std::snprintf(errors->message, sizeof(errors->message), "more than %d scans", kMaxScans);
    std::longjmp(errors->jump, 1);
  };
  source->cinfo.progress = &source->progress;
  source->arrays = jpeg_read_coefficients(&source->cinfo);
  return source->arrays != nullptr;
}

bool access_rows(JpegSource* source, int component, int first, int count, JBLOCKARRAY* rows) {
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
      static_cast<int64_t>(cinfo.image_width) * cinfo.image_height > kMaxPixels)
    return refuse(why, std::to_string(cinfo.image_width) + "x" + std::to_string(cinfo.image_height) +
                           " pixels, a record holds at most " + std::to_string(kMaxPixels));
  image->width = static_cast<int>(cinfo.image_width);
  image->height = static_cast<int>(cinfo.image_height);
  image->components = cinfo.num_components;
  image->jfif = cinfo.saw_JFIF_marker;
  image->adobe = cinfo.saw_Adobe_marker;
  image->adobe_transform = image->adobe && cinfo.Adobe_transform == 1;
  for (int c = 0; c < image->components; c++) {
    const jpeg_component_info& component = cinfo.comp_info[c];
    image->component[c].id = static_cast<uint8_t>(component.component_id);
    // A single component is never subsampled, whatever its factors are.
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
    for (int k = 0; k < 64; k++) image->component[c].quant[k] = table->quantval[kNaturalOrder[k]];
    if (!cinfo.progressive_mode) continue;
    for (int k = 0; k < 64; k++)
      if (cinfo.coef_bits[c][k] != 0)
        return refuse(why, "coefficients incomplete: a progressive JPEG without its last scans");
  }
  return true;
}

// The source's marker segments; empty if the flags imply them all.
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

// The blocks of all MCU rows without the tables of offsets, and where each column block begins.
struct PackedBlocks {
  std::unique_ptr<uint8_t[]> bytes;  // not a vector, which would zero memory that is then overwritten
  size_t nbytes = 0, capacity = 0;
  std::vector<size_t> starts;  // (mcu_rows * column_blocks + 1,); the last one is nbytes

  // Makes room for `more` bytes. Throws std::bad_alloc.
  void reserve(size_t more) {
    if (capacity - nbytes >= more) return;
    const size_t wanted = nbytes + more + capacity;
    std::unique_ptr<uint8_t[]> grown(new uint8_t[wanted]);
    if (nbytes) std::memcpy(grown.get(), bytes.get(), nbytes);
    bytes = std::move(grown);
    capacity = wanted;
  }
};

// Coefficients MCU by MCU from libjpeg's arrays.
class ArrayCoefficients {
 public:
  ArrayCoefficients(JpegSource* source, const DctImage& image) : source_(source), image_(image) {}

  // Reads one MCU's blocks in zig-zag order. False, with a message in the source's errors.
  bool next(int row, int column, JCOEF (*zigzag)[DCTSIZE2]) {
    for (int c = 0; c < image_.components; c++) {
      const DctComponent& component = image_.component[c];
      if (column == 0 && !access_rows(source_, c, row * component.v, component.v, &rows_[c])) return false;
      for (int y = 0; y < component.v; y++)
        for (int x = 0; x < component.h; x++, zigzag++) {
          const JCOEF* block = rows_[c][y][column * component.h + x];
          for (int k = 0; k < DCTSIZE2; k++) (*zigzag)[k] = block[kNaturalOrder[k]];
        }
    }
    return true;
  }

 private:
  JpegSource* source_;
  const DctImage& image_;
  JBLOCKARRAY rows_[kDctMaxComponents];
};

// Coefficients MCU by MCU from the file's Huffman codes.
class ScanCoefficients {
 public:
  ScanCoefficients(EntropyDecoder* entropy, int blocks_in_mcu)
      : entropy_(entropy), blocks_in_mcu_(blocks_in_mcu) {}

  // False: the data is damaged.
  bool next(int, int, JCOEF (*zigzag)[DCTSIZE2]) {
    std::memset(zigzag, 0, sizeof(*zigzag) * static_cast<size_t>(blocks_in_mcu_));
    return entropy_->next(zigzag);
  }

 private:
  EntropyDecoder* entropy_;
  int blocks_in_mcu_;
};

// Padding blocks of the last MCU of a row or column are written as libjpeg codes them, whatever the source
// contains: the DC of the block before, and nothing else.
template <typename Coefficients>
bool pack_blocks(const JpegSource& source, const DctImage& image, const DctGrid& grid,
                 Coefficients coefficients, PackedBlocks* blocks, std::string* why) {
  alignas(64) JCOEF mcu[kDctMaxBlocksInMcu][DCTSIZE2];
  const DctPacker pack = dct_packer();
  const int column_mask = (1 << grid.log2_column_block) - 1;
  const size_t row_room =
      kDctPackedRoom * static_cast<size_t>(grid.mcus_per_row) * static_cast<size_t>(grid.blocks_in_mcu);
  int16_t prediction[kDctMaxComponents] = {};
  for (int row = 0; row < grid.mcu_rows; row++) {
    blocks->reserve(row_room);
    uint8_t* out = blocks->bytes.get() + blocks->nbytes;
    for (int column = 0; column < grid.mcus_per_row; column++) {
      if ((column & column_mask) == 0) {
        std::memset(prediction, 0, sizeof(prediction));
        blocks->starts.push_back(static_cast<size_t>(out - blocks->bytes.get()));
      }
      if (!coefficients.next(row, column, mcu)) return refuse(why, source.errors.message);
      JCOEF* block = mcu[0];
      for (int c = 0; c < image.components; c++) {
        const DctComponent& component = image.component[c];
        const jpeg_component_info& real = source.cinfo.comp_info[c];
        for (int y = 0; y < component.v; y++)
          for (int x = 0; x < component.h; x++, block += DCTSIZE2) {
            const int block_x = column * component.h + x, block_y = row * component.v + y;
            const bool inside = block_x < static_cast<int>(real.width_in_blocks) &&
                                block_y < static_cast<int>(real.height_in_blocks);
            if (!inside) {
              std::memset(block, 0, sizeof(JBLOCK));
              block[0] = prediction[c];
            }
            out = pack(block, &prediction[c], out);
            if (!out) return refuse(why, "a coefficient beyond the range of 8-bit baseline JPEG");
          }
      }
    }
    blocks->nbytes = static_cast<size_t>(out - blocks->bytes.get());
  }
  blocks->starts.push_back(blocks->nbytes);
  return true;
}

void append(size_t value, int nbytes, std::vector<uint8_t>* out) {
  for (int i = 0; i < nbytes; i++) out->push_back(static_cast<uint8_t>(value >> (8 * i)));
}

bool assemble(const DctImage& image, const DctGrid& grid, const PackedBlocks& blocks,
              const std::vector<uint8_t>& metadata, std::vector<uint8_t>* record, std::string* why) {
  const size_t per_row = static_cast<size_t>(grid.column_blocks), rows = static_cast<size_t>(grid.mcu_rows);
  int column_entry_nbytes = 2;
  for (size_t row = 0; row < rows; row++)
    if (blocks.starts[(row + 1) * per_row - 1] - blocks.starts[row * per_row] > UINT16_MAX)
      column_entry_nbytes = 4;
  const size_t table_nbytes = (per_row - 1) * column_entry_nbytes;
  const size_t nbytes = blocks.nbytes + rows * table_nbytes;
  if (nbytes > UINT32_MAX || metadata.size() > UINT32_MAX)
    return refuse(why, "more than 4 GiB of coefficients");
  const size_t last_row = (rows - 1) * table_nbytes + blocks.starts[(rows - 1) * per_row];
  const int row_entry_nbytes = last_row > UINT16_MAX ? 4 : 2;

  record->clear();
  record->reserve(kDctMaxHeader + rows * row_entry_nbytes + nbytes + metadata.size());
  dct_write_header(image, grid, row_entry_nbytes, column_entry_nbytes, !metadata.empty(),
                   static_cast<uint32_t>(metadata.size()), record);
  for (size_t row = 1; row < rows; row++)
    append(row * table_nbytes + blocks.starts[row * per_row], row_entry_nbytes, record);
  for (size_t row = 0; row < rows; row++) {
    const size_t* starts = &blocks.starts[row * per_row];
    for (size_t block = 1; block < per_row; block++)
      append(starts[block] - starts[0], column_entry_nbytes, record);
    record->insert(record->end(), blocks.bytes.get() + starts[0], blocks.bytes.get() + starts[per_row]);
  }
  record->insert(record->end(), metadata.begin(), metadata.end());
  return true;
}

// The thread's decoder for files that libjpeg need not decode.
EntropyDecoder& thread_decoder() {
  static thread_local EntropyDecoder mine;
  return mine;
}

// Packs a file with one plain baseline scan by our own Huffman decoder. False: libjpeg must decode it.
bool pack_scan(JpegSource* source, const DctImage& image, const DctGrid& grid, PackedBlocks* blocks) {
  const jpeg_decompress_struct& cinfo = source->cinfo;
  if (jpeg_has_multiple_scans(&source->cinfo) || cinfo.arith_code || !start_scan(source)) return false;
  EntropyDecoder& entropy = thread_decoder();
  std::string why;
  const bool read =
      entropy.begin(&source->cinfo) &&
      pack_blocks(*source, image, grid, ScanCoefficients(&entropy, grid.blocks_in_mcu), blocks, &why) &&
      entropy.at_end() && cinfo.err->num_warnings == 0;
  entropy.trim();
  return read;
}

enum class HuffmanDecoder { kOwn, kLibjpeg };
enum class Outcome { kDone, kRefused, kUndecided };

Outcome encode(const uint8_t* jpeg, size_t nbytes, HuffmanDecoder decoder, int log2_column_block,
               bool keep_metadata, std::vector<uint8_t>* record, std::string* why) {
  JpegSource source;
  DctImage image;
  DctGrid grid;
  PackedBlocks blocks;
  const auto refused = [why](std::string reason) {
    *why = std::move(reason);
    return Outcome::kRefused;
  };
  if (!read_header(&source, jpeg, nbytes)) return refused(source.errors.message);
  if (!describe(source.cinfo, &image, why)) return Outcome::kRefused;
  if (!dct_grid(image, log2_column_block, &grid))
    return refused(
        "sampling factors that no single-scan JPEG can have (more than ten blocks in an MCU, or fractions)");
  if (decoder == HuffmanDecoder::kOwn) {
    blocks.reserve(nbytes + nbytes / 2);
    if (!pack_scan(&source, image, grid, &blocks)) return Outcome::kUndecided;
  } else {
    if (!read_coefficients(&source)) return refused(source.errors.message);
    if (source.errors.manager.num_warnings)
      return refused(std::string("libjpeg warned: ") + source.errors.message);
    if (!pack_blocks(source, image, grid, ArrayCoefficients(&source, image), &blocks, why))
      return Outcome::kRefused;
  }
  if (!take_tables(source.cinfo, &image, why)) return Outcome::kRefused;
  std::vector<uint8_t> metadata;
  if (keep_metadata) metadata = metadata_of(source.cinfo, image);
  return assemble(image, grid, blocks, metadata, record, why) ? Outcome::kDone : Outcome::kRefused;
}

}  // namespace

bool dct_encode(const uint8_t* jpeg, size_t nbytes, const DctOptions& options, std::vector<uint8_t>* record,
                std::string* why) {
  int log2_column_block = 0;
  while (1 << log2_column_block < options.column_block && log2_column_block < 7) log2_column_block++;
  if (1 << log2_column_block != options.column_block)
    return refuse(why, "column_block must be a power of two in 1..128");
  const auto with = [&](HuffmanDecoder decoder) {
    return encode(jpeg, nbytes, decoder, log2_column_block, options.keep_metadata, record, why);
  };
  Outcome outcome = with(HuffmanDecoder::kOwn);
  if (outcome == Outcome::kUndecided) outcome = with(HuffmanDecoder::kLibjpeg);
  return outcome == Outcome::kDone;
}

}  // namespace fastload
