// Reads a record's coefficients, for jpeg/planes.h or in place of libjpeg's entropy decoder.
#include <algorithm>
#include <cstring>

#include "dct/expand.h"
#include "dct/format.h"
#include "dct/record.h"
#include "jpeg/frame_header.h"
#include "jpeg/libjpeg_hook.h"

namespace fastload {

struct DctSource::Impl {
  DctRecord record;
  uint8_t jpeg_header[kDctMaxJpegHeader];
  size_t jpeg_header_nbytes = 0;  // 0: not made yet
  // The header of the record before, from which `header` and `frame` were made: most records of a store of
  // small images have the same one.
  uint8_t header[kDctMaxHeader];
  size_t header_nbytes = 0;
  FrameHeader frame;
  bool common;  // jpeg/planes.h can decode it
  const DctExpander* expander = &dct_expander();
  DctCursor cursor;
  // The MCU that libjpeg asks for next, or that follows the cursor.
  int row, column;
  // Columns of MCUs. Reading starts at the column block that contains first_column, expansion at
  // first_column.
  int seek_column, first_column, last_column;
  bool corrupt = false;

  bool seek(int at_row, int at_column);
  void fill(const int* component, JBLOCKROW* blocks, int at_row, int at_column);
};

// Moves the cursor to the start of a column block.
bool DctSource::Impl::seek(int at_row, int at_column) {
  cursor = DctCursor{nullptr, record.data_end, {0, 0, 0}};
  if (at_row < record.grid.mcu_rows)
    cursor.at = dct_column_block(record, at_row, at_column >> record.grid.log2_column_block);
  return cursor.at != nullptr;
}

void DctSource::Impl::fill(const int* component, JBLOCKROW* blocks, int at_row, int at_column) {
  const DctGrid& grid = record.grid;
  if ((at_column & ((1 << grid.log2_column_block) - 1)) == 0 && !seek(at_row, at_column)) {
    corrupt = true;
    return;
  }
  if (at_column < first_column) {
    corrupt = !expander->skip(&cursor, component, grid.blocks_in_mcu);
    return;
  }
  corrupt = !expander->expand(&cursor, component, grid.blocks_in_mcu, blocks);
  if (corrupt)
    for (int b = 0; b < grid.blocks_in_mcu; b++) std::memset(blocks[b], 0, sizeof(JBLOCK));
}

DctSource::DctSource() : impl_(new Impl) {}
DctSource::~DctSource() {
  delete impl_;
}

bool DctSource::open(const uint8_t* record, size_t nbytes) {
  impl_->expander = &dct_expander();
  impl_->corrupt = true;
  size_t& header_nbytes = impl_->header_nbytes;
  if (header_nbytes == 0 || nbytes < header_nbytes ||
      std::memcmp(record, impl_->header, header_nbytes) != 0) {
    header_nbytes = 0;  // in case parsing fails
    const size_t parsed = dct_parse_header(record, nbytes, &impl_->record);
    if (parsed == 0) return false;
    impl_->jpeg_header_nbytes = 0;
    impl_->common = read_frame_header(impl_->record.image, &impl_->frame);
    std::memcpy(impl_->header, record, parsed);
    header_nbytes = parsed;
  }
  impl_->corrupt = !dct_parse_tables(record, nbytes, header_nbytes, &impl_->record);
  impl_->row = -1;
  return !impl_->corrupt;
}

const FrameHeader* DctSource::frame_header() const {
  return impl_->common ? &impl_->frame : nullptr;
}

bool DctSource::read(int row, int first, int last, const BlockRun& to) {
  Impl& impl = *impl_;
  const int column_mask = (1 << impl.record.grid.log2_column_block) - 1;
  const int count = impl.record.grid.blocks_in_mcu;
  int component[kDctMaxBlocksInMcu];
  for (int b = 0; b < count; b++) component[b] = count == 1 ? 0 : std::max(0, b - (count - 3));
  int column = row == impl.row && first == impl.column ? first : first & ~column_mask;
  for (; column < last; column++) {
    if ((column & column_mask) == 0 && !impl.seek(row, column)) return false;
    if (column < first) {
      if (!impl.expander->skip(&impl.cursor, component, count)) return false;
      continue;
    }
    JBLOCKROW blocks[kDctMaxBlocksInMcu];
    for (int b = 0; b < count; b++)
      blocks[b] = reinterpret_cast<JBLOCKROW>(to.first[b] + (column - first) * to.step[b]);
    if (!impl.expander->expand(&impl.cursor, component, count, blocks)) return false;
  }
  impl.row = row;
  impl.column = last;
  return true;
}

const uint8_t* DctSource::jpeg_header(size_t* nbytes) {
  if (impl_->jpeg_header_nbytes == 0)
    impl_->jpeg_header_nbytes = dct_synthesise_header(impl_->record.image, impl_->jpeg_header);
  *nbytes = impl_->jpeg_header_nbytes;
  return impl_->jpeg_header;
}

bool DctSource::attach(j_decompress_ptr cinfo, int x0, int x1) {
  const DctImage& image = impl_->record.image;
  const DctGrid& grid = impl_->record.grid;
  if (!cinfo->entropy || cinfo->progressive_mode || cinfo->arith_code || cinfo->data_precision != 8)
    return false;
  if (static_cast<int>(cinfo->image_width) != image.width ||
      static_cast<int>(cinfo->image_height) != image.height || cinfo->num_components != image.components ||
      cinfo->comps_in_scan != image.components ||
      static_cast<int>(cinfo->MCUs_per_row) != grid.mcus_per_row ||
      static_cast<int>(cinfo->MCU_rows_in_scan) != grid.mcu_rows ||
      cinfo->blocks_in_MCU != grid.blocks_in_mcu)
    return false;
  for (int b = 0; b < grid.blocks_in_mcu; b++)
    if (cinfo->MCU_membership[b] < 0 || cinfo->MCU_membership[b] >= image.components) return false;
  if (x0 < 0 || x1 <= x0 || x1 > image.width) return false;

  impl_->row = impl_->column = 0;
  impl_->first_column = x0 / grid.mcu_width;
  impl_->last_column = (x1 - 1) / grid.mcu_width;
  impl_->seek_column = impl_->first_column >> grid.log2_column_block << grid.log2_column_block;
  impl_->corrupt = false;
  replace_entropy_decoder(
      cinfo,
      [](j_decompress_ptr info, JBLOCKROW* blocks) -> boolean {
        Impl* impl = static_cast<Impl*>(info->client_data);
        const int row = impl->row, column = impl->column;
        if (++impl->column == impl->record.grid.mcus_per_row) {
          impl->column = 0;
          impl->row++;
        }
        if (blocks && column >= impl->seek_column && column <= impl->last_column && !impl->corrupt)
          impl->fill(info->MCU_membership, blocks, row, column);
        return TRUE;
      },
      impl_);
  return true;
}

bool DctSource::corrupt() const {
  return impl_->corrupt;
}

bool dct_size(const uint8_t* record, size_t nbytes, int* width, int* height) {
  DctRecord parsed;
  if (!dct_parse(record, nbytes, &parsed)) return false;
  *width = parsed.image.width;
  *height = parsed.image.height;
  return true;
}

}  // namespace fastload
