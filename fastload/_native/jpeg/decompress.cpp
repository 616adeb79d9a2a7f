#include "jpeg/decompress.h"

#include <algorithm>
#include <cstring>

#include "base/limits.h"
#include "jpeg/errors.h"

namespace fastload {
namespace {

void on_message(j_common_ptr cinfo, int level) {
  if (level < 0) escape(cinfo);
}

void source_init(j_decompress_ptr) {}

boolean source_fill(j_decompress_ptr cinfo) {
  escape(reinterpret_cast<j_common_ptr>(cinfo));
}

void source_skip(j_decompress_ptr cinfo, long nbytes) {
  if (nbytes <= 0) return;
  if (static_cast<unsigned long>(nbytes) > cinfo->src->bytes_in_buffer)
    escape(reinterpret_cast<j_common_ptr>(cinfo));
  cinfo->src->next_input_byte += nbytes;
  cinfo->src->bytes_in_buffer -= static_cast<size_t>(nbytes);
}

// libjpeg itself reports a library that does not match its headers here.
bool create(Decompressor* decompressor) {
  if (setjmp(decompressor->error.escape)) return false;
  jpeg_create_decompress(&decompressor->cinfo);
  return true;
}

bool has_codes(const JHUFF_TBL* table) {
  return table != nullptr && std::any_of(table->bits + 1, table->bits + 17, [](UINT8 n) { return n != 0; });
}

}  // namespace

void escape(j_common_ptr cinfo) {
  longjmp(reinterpret_cast<decltype(Decompressor::error)*>(cinfo->err)->escape, 1);
}

Decompressor::Decompressor() {
  cinfo.err = quiet_errors(&error.base);
  error.base.error_exit = escape;
  error.base.emit_message = on_message;
  source.init_source = source_init;
  source.fill_input_buffer = source_fill;
  source.skip_input_data = source_skip;
  source.resync_to_restart = jpeg_resync_to_restart;
  source.term_source = source_init;
  usable = create(this);
  cinfo.src = &source;
}

Decompressor::~Decompressor() {
  jpeg_destroy_decompress(&cinfo);
}

void Decompressor::read_from(const uint8_t* data, size_t nbytes) {
  source.next_input_byte = data;
  source.bytes_in_buffer = nbytes;
}

void forget_tables(jpeg_decompress_struct* cinfo) {
  for (JQUANT_TBL* table : cinfo->quant_tbl_ptrs) {
    if (table != nullptr) std::memset(table->quantval, 0, sizeof(table->quantval));
  }
  for (int i = 0; i < NUM_HUFF_TBLS; i++) {
    for (JHUFF_TBL* table : {cinfo->dc_huff_tbl_ptrs[i], cinfo->ac_huff_tbl_ptrs[i]}) {
      if (table != nullptr) std::memset(table->bits, 0, sizeof(table->bits));
    }
  }
}

bool quantisation_defined(const jpeg_decompress_struct& cinfo) {
  for (int c = 0; c < cinfo.num_components; c++) {
    const int number = cinfo.comp_info[c].quant_tbl_no;
    if (number < 0 || number >= NUM_QUANT_TBLS) return false;
    const JQUANT_TBL* table = cinfo.quant_tbl_ptrs[number];
    if (table == nullptr || table->quantval[0] == 0) return false;
  }
  return true;
}

bool codes_defined(const jpeg_decompress_struct& cinfo) {
  if (cinfo.progressive_mode) return true;
  for (int c = 0; c < cinfo.num_components; c++) {
    const int dc = cinfo.comp_info[c].dc_tbl_no, ac = cinfo.comp_info[c].ac_tbl_no;
    if (dc < 0 || dc >= NUM_HUFF_TBLS || ac < 0 || ac >= NUM_HUFF_TBLS) return false;
    if (!has_codes(cinfo.dc_huff_tbl_ptrs[dc]) || !has_codes(cinfo.ac_huff_tbl_ptrs[ac])) return false;
  }
  return true;
}

bool supported(const jpeg_decompress_struct& cinfo) {
  if (cinfo.data_precision != 8 || cinfo.arith_code) return false;
  if (static_cast<int64_t>(cinfo.image_width) * cinfo.image_height > kMaxPixels) return false;
  if (cinfo.num_components == 1) return cinfo.jpeg_color_space == JCS_GRAYSCALE;
  return cinfo.num_components == 3 &&
         (cinfo.jpeg_color_space == JCS_YCbCr || cinfo.jpeg_color_space == JCS_RGB);
}

}  // namespace fastload
