#include "entropy.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "entropy_blocks.h"
#include "libjpeg_hook.h"

namespace fastload {
namespace {

// What a thread keeps from file to file.
constexpr size_t kKept = size_t{4} << 20;

// libjpeg reads up to 64 bits ahead, and fails where the file ends before.
constexpr int64_t kReadAheadBits = 128;

constexpr uint8_t kEndOfImage = 0xD9;  // EOI

// A smaller file is not worth building tables for: it is decoded with those at hand or by libjpeg, and tables
// are built when a second file wants the same. Measured: docs/performance.md.
constexpr size_t kSmall = 4096;

// A larger one is worth building wide tables for, which takes 20 us more. Measured: the same.
constexpr size_t kLarge = size_t{1} << 19;

// Copies data without its stuffing (a zero after each 0xFF), up to a marker or the end. `to` has room for as
// many bytes. Returns the end of the copy; `*marker`: the ordinary marker that ended it, or 0. 0xFF 0xFF does
// not count as one: libjpeg skips the first, and finds a data byte, a marker or the end of the file behind.
uint8_t* unstuff(const uint8_t* from, const uint8_t* end, uint8_t* to, uint8_t* marker) {
  *marker = 0;
  while (from < end) {
    const void* found = std::memchr(from, 0xFF, static_cast<size_t>(end - from));
    const uint8_t* stop = found ? static_cast<const uint8_t*>(found) : end;
    const size_t nbytes = static_cast<size_t>(stop - from);
    std::memcpy(to, from, nbytes);
    to += nbytes;
    if (end - stop < 2) break;
    if (stop[1] != 0) {
      *marker = stop[1] != 0xFF ? stop[1] : 0;
      break;
    }
    *to++ = 0xFF;
    from = stop + 2;
  }
  return to;
}

}  // namespace

struct EntropySource::Impl {
  HuffmanTable dc[NUM_HUFF_TBLS], ac[NUM_HUFF_TBLS];
  EntropyScan scan;
  const EntropyCoder* coder = nullptr;
  uint8_t* data = nullptr;
  size_t capacity = 0;
  int64_t limit;   // bits that may be taken
  uint8_t marker;  // what ends the data, 0: none
  int mcus_per_row, first_column, last_column;
  int column;        // of the MCU that libjpeg asks for next
  int64_t pending;   // MCUs before it that were not looked at
  int64_t position;  // of read(), in MCUs
  bool failed = false;

  ~Impl() { std::free(data); }

  bool build_tables(j_decompress_ptr cinfo, HuffmanTable::Effort effort);
  bool load(const uint8_t* from, size_t nbytes);
  bool fill(JBLOCKROW* blocks);
};

bool EntropySource::Impl::build_tables(j_decompress_ptr cinfo, HuffmanTable::Effort effort) {
  bool built = true;
  unsigned dc_seen = 0, ac_seen = 0;  // several components may use one table
  for (int c = 0; c < cinfo->comps_in_scan; c++) {
    const jpeg_component_info& info = *cinfo->cur_comp_info[c];
    const int dc_table = info.dc_tbl_no, ac_table = info.ac_tbl_no;
    if (dc_table < 0 || dc_table >= NUM_HUFF_TBLS || ac_table < 0 || ac_table >= NUM_HUFF_TBLS) return false;
    const JHUFF_TBL *dc_code = cinfo->dc_huff_tbl_ptrs[dc_table],
                    *ac_code = cinfo->ac_huff_tbl_ptrs[ac_table];
    if (!dc_code || !ac_code) return false;
    // All of them, for a small file that is refused is remembered.
    if (!(dc_seen >> dc_table & 1)) built &= dc[dc_table].build(*dc_code, false, effort);
    if (!(ac_seen >> ac_table & 1)) built &= ac[ac_table].build(*ac_code, true, effort);
    dc_seen |= 1u << dc_table;
    ac_seen |= 1u << ac_table;
  }
  if (!built) return false;
  // A scan of one component has one block in an MCU, whatever its sampling factors.
  const bool alone = cinfo->comps_in_scan == 1;
  scan.blocks_in_mcu = 0;
  for (int c = 0; c < cinfo->comps_in_scan; c++) {
    const jpeg_component_info& info = *cinfo->cur_comp_info[c];
    for (int left = alone ? 1 : info.h_samp_factor * info.v_samp_factor; left > 0; left--) {
      if (scan.blocks_in_mcu == D_MAX_BLOCKS_IN_MCU) return false;
      scan.blocks[scan.blocks_in_mcu++] = EntropyBlock{&dc[info.dc_tbl_no], &ac[info.ac_tbl_no], c};
    }
  }
  const int mcu_width = DCTSIZE * (alone ? 1 : cinfo->max_h_samp_factor);
  mcus_per_row = (static_cast<int>(cinfo->image_width) + mcu_width - 1) / mcu_width;
  return true;
}

// Takes the data of the scan and stands at its beginning. False if memory ran out.
bool EntropySource::Impl::load(const uint8_t* from, size_t nbytes) {
  const size_t wanted = nbytes + kEntropySlack;
  if (wanted > capacity) {
    std::free(data);
    const size_t room = wanted + wanted / 4;
    data = static_cast<uint8_t*>(std::malloc(room));
    capacity = data ? room : 0;
    if (!data) return false;
  }
  uint8_t* end = unstuff(from, from + nbytes, data, &marker);
  std::memset(end, 0, kEntropySlack);
  limit = (end - data) * 8 - (marker ? 0 : kReadAheadBits);
  scan.begin = data;
  scan.end = end;
  scan.reader = BitReader{0, 0, data};
  std::fill_n(scan.prediction, 3, 0);
  return true;
}

bool EntropySource::Impl::fill(JBLOCKROW* blocks) {
  const int64_t passed = pending;
  pending = 0;
  return (passed == 0 || coder->pass(&scan, passed)) && coder->decode(&scan, blocks);
}

EntropySource::EntropySource() : impl_(new Impl) {}
EntropySource::~EntropySource() {
  delete impl_;
}

bool EntropySource::begin(j_decompress_ptr cinfo) {
  Impl& mine = *impl_;
  mine.failed = false;
  mine.pending = mine.position = 0;
  if (cinfo->progressive_mode || cinfo->arith_code || cinfo->data_precision != 8 ||
      cinfo->restart_interval != 0)
    return false;
  if (cinfo->comps_in_scan != cinfo->num_components || cinfo->num_components > 3) return false;
  const size_t nbytes = cinfo->src->bytes_in_buffer;
  const auto effort = nbytes < kSmall   ? HuffmanTable::kLazy
                      : nbytes < kLarge ? HuffmanTable::kEager
                                        : HuffmanTable::kWide;
  if (!mine.build_tables(cinfo, effort)) return false;
  mine.coder = &entropy_coder();
  return mine.load(cinfo->src->next_input_byte, nbytes);
}

bool EntropySource::next(JCOEF (*blocks)[DCTSIZE2]) {
  return impl_->coder->decode_zigzag(&impl_->scan, blocks);
}

bool EntropySource::read(int row, int, int first, int last, const BlockRun* to) {
  Impl& mine = *impl_;
  const int64_t from = int64_t{row} * mine.mcus_per_row + first;
  mine.failed = mine.failed || (from > mine.position && !mine.coder->pass(&mine.scan, from - mine.position));
  mine.position = from + last - first;
  for (int i = 0; i < last - first && !mine.failed; i++) {
    JBLOCKROW blocks[D_MAX_BLOCKS_IN_MCU];
    for (int b = 0; b < mine.scan.blocks_in_mcu; b++)
      blocks[b] = reinterpret_cast<JBLOCKROW>(to->first[b] + i * to->step[b]);
    mine.failed = !mine.coder->decode(&mine.scan, blocks);
  }
  return !mine.failed;
}

bool EntropySource::damaged_in(int rows) {
  impl_->pending = int64_t{rows} * impl_->mcus_per_row - impl_->position;
  return damaged();
}

bool EntropySource::at_end() const {
  const int64_t left = impl_->limit - entropy_position(impl_->scan);
  return impl_->marker == kEndOfImage && left >= 0 && left < 8;
}

bool EntropySource::attach(j_decompress_ptr cinfo, int x0, int x1) {
  Impl& mine = *impl_;
  if (x0 < 0 || x1 <= x0 || x1 > static_cast<int>(cinfo->image_width)) return false;
  if (!cinfo->entropy || !begin(cinfo)) return false;
  const int mcu_width = DCTSIZE * (cinfo->comps_in_scan == 1 ? 1 : cinfo->max_h_samp_factor);
  mine.first_column = x0 / mcu_width;
  mine.last_column = (x1 - 1) / mcu_width;
  mine.column = 0;
  replace_entropy_decoder(
      cinfo,
      [](j_decompress_ptr info, JBLOCKROW* blocks) -> boolean {
        Impl* impl = static_cast<Impl*>(info->client_data);
        const int column = impl->column;
        impl->column = column + 1 == impl->mcus_per_row ? 0 : column + 1;
        if (!blocks || column < impl->first_column || column > impl->last_column) {
          impl->pending++;
        } else if (!impl->failed) {
          impl->failed = !impl->fill(blocks);
        }
        return TRUE;
      },
      impl_);
  return true;
}

bool EntropySource::failed() const {
  return impl_->failed;
}

bool EntropySource::damaged() {
  Impl& mine = *impl_;
  if (!mine.failed && mine.pending) mine.failed = !mine.coder->pass(&mine.scan, mine.pending);
  mine.pending = 0;
  if (!mine.failed) mine.failed = entropy_position(mine.scan) > mine.limit;
  return mine.failed;
}

void EntropySource::trim() {
  if (impl_->capacity <= kKept) return;
  std::free(impl_->data);
  impl_->data = nullptr;
  impl_->capacity = 0;
}

}  // namespace fastload
