// Restores JPEG files from records.
#include <cstring>

#include "dct/expand.h"
#include "dct/format.h"
#include "dct/record.h"
#include "jpeg/libjpeg.h"

namespace fastload {
namespace {

// A JPEG being written. `source` only parses the synthetic header, from which libjpeg copies the settings.
struct Restoration {
  jpeg_decompress_struct source;
  jpeg_compress_struct target;
  LibjpegErrors source_errors, target_errors;
  jvirt_barray_ptr arrays[kDctMaxComponents];
  LibjpegOutput out;

  Restoration() {
    std::memset(&source, 0, sizeof(source));
    std::memset(&target, 0, sizeof(target));
    source_errors.install(reinterpret_cast<jpeg_common_struct*>(&source));
    target_errors.install(reinterpret_cast<jpeg_common_struct*>(&target));
  }
  ~Restoration() {
    jpeg_destroy_compress(&target);
    jpeg_destroy_decompress(&source);
  }
  Restoration(const Restoration&) = delete;
  Restoration& operator=(const Restoration&) = delete;
};

// Note [setjmp] (jpeg/libjpeg.h) applies to the next four functions.
bool read_header(Restoration* restoration, const uint8_t* header, size_t nbytes) {
  if (setjmp(restoration->source_errors.jump)) return false;
  jpeg_create_decompress(&restoration->source);
  jpeg_mem_src(&restoration->source, const_cast<unsigned char*>(header), static_cast<unsigned long>(nbytes));
  jpeg_read_header(&restoration->source, TRUE);
  return true;
}

bool begin(Restoration* restoration, const DctImage& image, const DctGrid& grid) {
  jpeg_compress_struct* target = &restoration->target;
  if (setjmp(restoration->source_errors.jump) || setjmp(restoration->target_errors.jump)) return false;
  jpeg_create_compress(target);
  restoration->out.install(target);
  jpeg_copy_critical_parameters(&restoration->source, target);
  target->optimize_coding = TRUE;
  target->write_JFIF_header = FALSE;  // written from the record's segments
  target->write_Adobe_marker = FALSE;
  for (int c = 0; c < image.components; c++)
    restoration->arrays[c] = target->mem->request_virt_barray(
        reinterpret_cast<j_common_ptr>(target), JPOOL_IMAGE, TRUE,
        static_cast<JDIMENSION>(grid.mcus_per_row * image.component[c].h),
        static_cast<JDIMENSION>(grid.mcu_rows * image.component[c].v), image.component[c].v);
  jpeg_write_coefficients(target, restoration->arrays);
  return true;
}

bool access_rows(Restoration* restoration, int component, int first, int count, JBLOCKARRAY* rows) {
  jpeg_compress_struct* target = &restoration->target;
  if (setjmp(restoration->target_errors.jump)) return false;
  *rows =
      target->mem->access_virt_barray(reinterpret_cast<j_common_ptr>(target), restoration->arrays[component],
                                      static_cast<JDIMENSION>(first), static_cast<JDIMENSION>(count), TRUE);
  return true;
}

// Writes `segments`, which segments_of has checked, and all coefficients.
bool finish(Restoration* restoration, const uint8_t* segments, size_t nbytes) {
  jpeg_compress_struct* target = &restoration->target;
  if (setjmp(restoration->target_errors.jump)) return false;
  for (size_t at = 0; at < nbytes;) {
    const unsigned length = static_cast<unsigned>(segments[at + 2] << 8 | segments[at + 3]);
    jpeg_write_marker(target, segments[at + 1], segments + at + 4, length - 2);
    at += 2 + length;
  }
  jpeg_finish_compress(target);
  return true;
}

// The record's marker segments, or those that its flags imply. False: they are not a sequence of segments.
bool segments_of(const DctRecord& record, std::vector<uint8_t>* segments) {
  if (!record.metadata) {
    uint8_t segment[kDctJfifNbytes > kDctAdobeNbytes ? kDctJfifNbytes : kDctAdobeNbytes];
    if (record.image.jfif) {
      dct_jfif_segment(segment);
      segments->insert(segments->end(), segment, segment + kDctJfifNbytes);
    }
    if (record.image.adobe) {
      dct_adobe_segment(record.image.adobe_transform, segment);
      segments->insert(segments->end(), segment, segment + kDctAdobeNbytes);
    }
    return true;
  }
  const uint8_t* bytes = record.metadata;
  for (size_t at = 0; at < record.metadata_nbytes;) {
    if (record.metadata_nbytes - at < 4 || bytes[at] != 0xFF) return false;
    const bool application = bytes[at + 1] >= JPEG_APP0 && bytes[at + 1] <= JPEG_APP0 + 15;
    const size_t length = static_cast<size_t>(bytes[at + 2] << 8 | bytes[at + 3]);
    if ((!application && bytes[at + 1] != JPEG_COM) || length < 2) return false;
    if (record.metadata_nbytes - at < 2 + length) return false;
    at += 2 + length;
  }
  segments->assign(bytes, bytes + record.metadata_nbytes);
  return true;
}

// Expands one MCU row into libjpeg's arrays.
bool expand_row(const DctRecord& record, int row, JBLOCKARRAY* rows) {
  const DctGrid& grid = record.grid;
  const DctExpander& expander = dct_expander();
  int component[kDctMaxBlocksInMcu];
  DctCursor cursor{nullptr, record.data_end, {0, 0, 0}};
  for (int column = 0; column < grid.mcus_per_row; column++) {
    if ((column & ((1 << grid.log2_column_block) - 1)) == 0) {
      cursor = DctCursor{
          dct_column_block(record, row, column >> grid.log2_column_block), record.data_end, {0, 0, 0}};
      if (!cursor.at) return false;
    }
    JBLOCKROW blocks[kDctMaxBlocksInMcu];
    int count = 0;
    for (int c = 0; c < record.image.components; c++)
      for (int y = 0; y < record.image.component[c].v; y++)
        for (int x = 0; x < record.image.component[c].h; x++) {
          component[count] = c;
          blocks[count++] = rows[c][y] + column * record.image.component[c].h + x;
        }
    if (!expander.expand(&cursor, component, count, blocks)) return false;
  }
  return true;
}

bool refuse(std::string* why, const char* reason) {
  *why = reason;
  return false;
}

}  // namespace

bool dct_to_jpeg(const uint8_t* record, size_t nbytes, std::vector<uint8_t>* jpeg, std::string* why) {
  DctRecord parsed;
  std::vector<uint8_t> segments;
  uint8_t header[kDctMaxJpegHeader];
  if (!dct_parse(record, nbytes, &parsed)) return refuse(why, "not a DCT record, or its head is corrupt");
  if (!segments_of(parsed, &segments)) return refuse(why, "corrupt metadata segments");
  Restoration restoration;
  if (!read_header(&restoration, header, dct_synthesise_header(parsed.image, header)))
    return refuse(why, restoration.source_errors.message);
  if (!begin(&restoration, parsed.image, parsed.grid)) {
    const bool in_source = restoration.source_errors.message[0] != '\0';
    return refuse(why, in_source ? restoration.source_errors.message : restoration.target_errors.message);
  }
  for (int row = 0; row < parsed.grid.mcu_rows; row++) {
    JBLOCKARRAY rows[kDctMaxComponents];
    for (int c = 0; c < parsed.image.components; c++) {
      const int v = parsed.image.component[c].v;
      if (!access_rows(&restoration, c, row * v, v, &rows[c]))
        return refuse(why, restoration.target_errors.message);
    }
    if (!expand_row(parsed, row, rows)) return refuse(why, "corrupt blocks");
  }
  if (!finish(&restoration, segments.data(), segments.size()))
    return refuse(why, restoration.target_errors.message);
  jpeg->assign(restoration.out.bytes, restoration.out.bytes + restoration.out.nbytes);
  return true;
}

}  // namespace fastload
