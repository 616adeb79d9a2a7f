#include "jpeg_repeat.h"

#include <algorithm>
#include <cstring>

#include "libjpeg_hook.h"

namespace fastload {
namespace {

// Headers of small files: tables, and perhaps a colour profile.
constexpr size_t kMostHeader = 4096;

// Files of one header in a row before it is set up for, which costs more than one image gains by it.
// Measured: docs/performance.md.
constexpr int kSightings = 3;

}  // namespace

bool RepeatedHeader::begins(const uint8_t* file, size_t nbytes, const std::vector<uint8_t>& header) {
  return nbytes >= header.size() && std::memcmp(file, header.data(), header.size()) == 0;
}

void RepeatedHeader::note(const uint8_t* header, size_t nbytes) {
  if (nbytes > kMostHeader) return;
  if (candidate_.size() != nbytes || !begins(header, nbytes, candidate_)) {
    candidate_.assign(header, header + nbytes);
    sightings_ = 0;
  }
  if (++sightings_ != kSightings) return;  // beyond that it was refused
  header_ = candidate_;
  stream_ = candidate_;
  stream_.insert(stream_.end(), {0xFF, JPEG_EOI});
  ready_ = libjpeg_.usable && set_up();
  if (!ready_) jpeg_abort_decompress(&libjpeg_.cinfo);
}

bool RepeatedHeader::set_up() {
  if (setjmp(libjpeg_.error.escape)) return false;  // Note [Errors of libjpeg]
  return set_up_body();
}

bool RepeatedHeader::set_up_body() {
  jpeg_decompress_struct& cinfo = libjpeg_.cinfo;
  jpeg_abort_decompress(&cinfo);
  forget_tables(&cinfo);
  libjpeg_.read_from(stream_.data(), stream_.size());
  if (jpeg_read_header(&cinfo, TRUE) != JPEG_HEADER_OK || !supported(cinfo)) return false;
  if (!quantisation_defined(cinfo) || jpeg_has_multiple_scans(&cinfo)) return false;
  if (!small(static_cast<int>(cinfo.image_width), static_cast<int>(cinfo.image_height))) return false;
  cinfo.out_color_space = JCS_RGB;
  cinfo.dct_method = JDCT_ISLOW;
  cinfo.do_block_smoothing = FALSE;
  cinfo.buffered_image = TRUE;
  if (!jpeg_start_decompress(&cinfo)) return false;
  replace_entropy_decoder(&cinfo, [](j_decompress_ptr, JBLOCKROW*) -> boolean { return TRUE; }, nullptr);
  for (int result = 0; result != JPEG_REACHED_EOI;) {
    result = jpeg_consume_input(&cinfo);
    if (result == JPEG_SUSPENDED) return false;
  }
  jvirt_barray_ptr* arrays = jpeg_read_coefficients(&cinfo);
  blocks_.components = cinfo.num_components;
  blocks_.mcus_per_row = static_cast<int>(cinfo.MCUs_per_row);
  blocks_.mcu_rows = static_cast<int>(cinfo.MCU_rows_in_scan);
  blocks_.blocks_in_mcu = cinfo.blocks_in_MCU;
  for (int c = 0, b = 0; c < cinfo.num_components; c++) {
    const jpeg_component_info& info = cinfo.comp_info[c];
    const int high = info.v_samp_factor;
    const int rows = (static_cast<int>(info.height_in_blocks) + high - 1) / high * high;
    if (rows > CoefficientRows::kMostRows) return false;
    for (int row = 0; row < rows; row += high) {
      JBLOCKARRAY found =
          cinfo.mem->access_virt_barray(reinterpret_cast<j_common_ptr>(&cinfo), arrays[c],
                                        static_cast<JDIMENSION>(row), static_cast<JDIMENSION>(high), TRUE);
      std::copy_n(found, high, blocks_.rows[c] + row);
    }
    // info.MCU_width and MCU_height are 1 in a scan of one component, whatever its sampling factors.
    for (int y = 0; y < info.MCU_height; y++) {
      for (int x = 0; x < info.MCU_width; x++, b++)
        blocks_.at[b] = {c, x, y, info.MCU_width, info.MCU_height};
    }
  }
  return true;
}

Status RepeatedHeader::begin(const Placement& placement, Resampler* resampler, int* rows) {
  const jpeg_decompress_struct& cinfo = libjpeg_.cinfo;
  *rows = 0;
  const Status begun = begin_placement(placement, static_cast<int>(cinfo.image_width),
                                       static_cast<int>(cinfo.image_height), resampler);
  if (begun != Status::kOk) return begun;
  if (resampler->need_x1() <= resampler->need_x0() || resampler->need_y1() <= resampler->need_y0()) {
    resampler->finish();
    return Status::kOk;
  }
  x0_ = placement.box_x + resampler->need_x0();
  y0_ = placement.box_y + resampler->need_y0();
  y1_ = placement.box_y + resampler->need_y1();
  // Down to the rows of MCUs below, which upsampling may look at. A scan of one component has several such
  // rows where libjpeg counts one.
  const int rows_in_one = cinfo.comps_in_scan == 1 ? cinfo.max_v_samp_factor : 1;
  const int wanted = (y1_ - 1) / (DCTSIZE * cinfo.max_v_samp_factor) + 2;
  *rows = std::min(blocks_.mcu_rows, wanted * rows_in_one);
  sightings_ = 0;
  return Status::kOk;
}

const CoefficientRows& RepeatedHeader::clear(int rows) {
  for (int c = 0; c < blocks_.components; c++) {
    const jpeg_component_info& info = libjpeg_.cinfo.comp_info[c];
    const size_t width = static_cast<size_t>(blocks_.mcus_per_row * info.MCU_width) * sizeof(JBLOCK);
    for (int row = 0; row < rows * info.MCU_height; row++) std::memset(blocks_.rows[c][row], 0, width);
  }
  return blocks_;
}

Status RepeatedHeader::show(RowBuffer* buffer, Resampler* resampler) {
  if (!buffer->reserve(static_cast<size_t>(libjpeg_.cinfo.output_width) * 3)) return Status::kIo;
  const Status status = guarded_show(buffer, resampler);
  if (status != Status::kOk) ready_ = false;
  return status;
}

Status RepeatedHeader::guarded_show(RowBuffer* buffer, Resampler* resampler) {
  if (setjmp(libjpeg_.error.escape)) return Status::kUnsupported;  // Note [Errors of libjpeg]
  return show_body(buffer, resampler);
}

Status RepeatedHeader::show_body(RowBuffer* buffer, Resampler* resampler) {
  jpeg_decompress_struct& cinfo = libjpeg_.cinfo;
  JSAMPROW rows[RowBuffer::kRows];
  for (int i = 0; i < RowBuffer::kRows; i++) rows[i] = buffer->row(i);
  if (!jpeg_start_output(&cinfo, 1)) return Status::kUnsupported;
  const uint8_t* first = rows[0] + static_cast<size_t>(x0_) * 3;
  for (int y = 0; y < y1_;) {
    const int end = y < y0_ ? y0_ : y1_;  // rows above are not wanted
    const JDIMENSION want = static_cast<JDIMENSION>(std::min(RowBuffer::kRows, end - y));
    JDIMENSION got = 0;
    while (got < want) {
      const JDIMENSION n = jpeg_read_scanlines(&cinfo, rows + got, want - got);
      if (n == 0) return Status::kUnsupported;
      got += n;
    }
    if (y >= y0_) resampler->rows(first, buffer->stride(), static_cast<int>(want));
    y += static_cast<int>(want);
  }
  resampler->finish();
  return jpeg_finish_output(&cinfo) ? Status::kOk : Status::kUnsupported;
}

}  // namespace fastload
