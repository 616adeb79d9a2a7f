#include "jpeg/entropy.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "jpeg/entropy_blocks.h"
#include "jpeg/libjpeg_hook.h"

namespace fastload {
namespace {

// An entry point for each row of MCUs, and further ones in a row that is at least twice as long as this. What
// is beside a crop is passed; a photo of 500 pixels does without them. Measured on large photos: 8 % less
// decoding time; a point for each 16 MCUs of a small photo gained 7 % for three times as many bytes.
constexpr int kPointEvery = 32;

// What a thread keeps from file to file.
constexpr size_t kKept = size_t{4} << 20;

// libjpeg reads up to 64 bits ahead, and fails where the file ends before.
constexpr int64_t kReadAheadBits = 128;

constexpr uint8_t kEndOfImage = 0xD9;  // EOI

// A smaller file is not worth building tables for: it is decoded with those at hand or by libjpeg, and tables
// are built when a second file wants the same. Measured on files with tables of their own: at 2.0 KB 24.3 us
// with tables always built and 20.2 with libjpeg, at 3.9 KB equal, at 6.3 KB 62.1 and 69.8.
constexpr size_t kSmall = 4096;

// A larger one is worth building wide tables for, which takes 20 us more. Measured: crops of 12-megapixel
// photos take 2 to 7 % less time with them, crops of photos of 128 KB and more 2 % more.
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
  int64_t limit;         // bits that may be taken
  uint8_t marker;        // what ends the data, 0: none
  const uint8_t* codes;  // where they begin in the file
  size_t codes_nbytes;
  int64_t before;  // bytes of the data before those in `data`, both without stuffing; -1: nothing is loaded
  EntryNotes notes;
  int points_per_row;
  int mcus_per_row, first_column, last_column;
  int row, column;  // of the MCU that libjpeg asks for next
  int64_t stands;   // the MCU that `scan` stands before
  bool failed = false;

  ~Impl() { std::free(data); }

  bool build_tables(j_decompress_ptr cinfo, HuffmanTable::Effort effort);
  bool load(const uint8_t* from);
  bool prepare(j_decompress_ptr cinfo);

  int64_t row_begins(int at) const { return int64_t{at} * mcus_per_row; }
  // The MCU that a point is about, and the last point that is not behind an MCU. No point is about the first.
  int64_t mcu_of(int point) const {
    return row_begins((point + 1) / points_per_row) + (point + 1) % points_per_row * kPointEvery;
  }
  int point_at(int64_t mcu) const {
    const int at = static_cast<int>(mcu / mcus_per_row), column = static_cast<int>(mcu % mcus_per_row);
    return at * points_per_row + std::min(column / kPointEvery, points_per_row - 1) - 1;
  }
  bool seek(int point);
  bool load_at(int point);
  bool note();
  int64_t until_note(int64_t mcus) const;
  bool move_to(int64_t mcu);
  bool read_run(const BlockRun& to, int mcus);
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
  points_per_row = std::max(1, mcus_per_row / kPointEvery);
  return true;
}

// Takes the data of the scan from some byte of the file on. False if memory ran out.
bool EntropySource::Impl::load(const uint8_t* from) {
  const size_t nbytes = codes_nbytes - static_cast<size_t>(from - codes);
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

// Stands before the MCU of a point that holds; false if it cannot be.
bool EntropySource::Impl::seek(int point) {
  const int64_t byte = notes.flat(point) - before;
  if (byte < 0 || byte >= scan.end - scan.begin) return false;
  entropy_seek(&scan, byte * 8 + notes.bit(point));
  std::copy_n(notes.dc(point), 3, scan.prediction);
  stands = mcu_of(point);
  return true;
}

// Loads the data from a point on, or, where it is none, all of it.
bool EntropySource::Impl::load_at(int point) {
  const bool known = point >= 0 && notes.holds(point);
  before = known ? notes.flat(point) : 0;
  return load(known ? notes.byte(point) : codes) && (!known || seek(point));
}

// Makes a point of where `scan` stands, if that is the next one.
bool EntropySource::Impl::note() {
  if (!notes.wants() || stands != mcu_of(notes.known())) return true;
  const int64_t position = entropy_position(scan);
  if (position > limit) return false;
  notes.add(before * 8 + position, scan.prediction);
  return true;
}

// So many MCUs from here on, up to the next one that a point is to be made of.
int64_t EntropySource::Impl::until_note(int64_t mcus) const {
  const int64_t next = notes.wants() ? mcu_of(notes.known()) - stands : 0;
  return next > 0 ? std::min(mcus, next) : mcus;
}

// Stands before an MCU that is not behind: by way of the last point before it, or past those between.
bool EntropySource::Impl::move_to(int64_t mcu) {
  const int point = std::min(point_at(mcu), notes.known() - 1);
  if (before < 0 && !load_at(point)) return false;
  if (!note()) return false;
  if (point >= 0 && point < notes.known() && mcu_of(point) > stands && notes.holds(point) && !seek(point))
    return false;
  while (stands < mcu) {
    const int64_t part = until_note(mcu - stands);
    if (!coder->pass(&scan, part)) return false;
    stands += part;
    if (!note()) return false;
  }
  return true;
}

// The next MCUs.
bool EntropySource::Impl::read_run(const BlockRun& to, int mcus) {
  BlockRun rest = to;
  while (mcus > 0) {
    const int part = static_cast<int>(until_note(mcus));
    if (!coder->decode_run(&scan, rest, part)) return false;
    stands += part;
    mcus -= part;
    if (!note()) return false;
    for (int b = 0; mcus > 0 && b < scan.blocks_in_mcu; b++) rest.first[b] += part * rest.step[b];
  }
  return true;
}

EntropySource::EntropySource() : impl_(new Impl) {}
EntropySource::~EntropySource() {
  delete impl_;
}

bool EntropySource::Impl::prepare(j_decompress_ptr cinfo) {
  failed = false;
  row = column = 0;
  stands = 0;
  before = -1;
  notes.end();
  if (cinfo->progressive_mode || cinfo->arith_code || cinfo->data_precision != 8 ||
      cinfo->restart_interval != 0)
    return false;
  if (cinfo->comps_in_scan != cinfo->num_components || cinfo->num_components > 3) return false;
  codes = cinfo->src->next_input_byte;
  codes_nbytes = cinfo->src->bytes_in_buffer;
  const auto effort = codes_nbytes < kSmall   ? HuffmanTable::kLazy
                      : codes_nbytes < kLarge ? HuffmanTable::kEager
                                              : HuffmanTable::kWide;
  if (!build_tables(cinfo, effort)) return false;
  coder = &entropy_coder();
  return true;
}

bool EntropySource::begin(j_decompress_ptr cinfo) {
  return impl_->prepare(cinfo) && impl_->load_at(-1);
}

bool EntropySource::open(j_decompress_ptr cinfo, const EntropyFile& file) {
  Impl& mine = *impl_;
  if (!mine.prepare(cinfo)) return false;
  // A scan of one component has one block in an MCU.
  const int mcu_height = DCTSIZE * (cinfo->comps_in_scan == 1 ? 1 : cinfo->max_v_samp_factor);
  const int rows = (static_cast<int>(cinfo->image_height) + mcu_height - 1) / mcu_height;
  mine.notes.begin(file.entries, file.data, file.nbytes, mine.codes, rows * mine.points_per_row - 1);
  return true;
}

bool EntropySource::next(JCOEF (*blocks)[DCTSIZE2]) {
  return impl_->coder->decode_zigzag(&impl_->scan, blocks);
}

bool EntropySource::read(int row, int first, int last, const BlockRun& to) {
  Impl& mine = *impl_;
  mine.failed =
      mine.failed || !mine.move_to(mine.row_begins(row) + first) || !mine.read_run(to, last - first);
  return !mine.failed;
}

bool EntropySource::damaged_in(int rows) {
  impl_->row = rows;
  return damaged();
}

bool EntropySource::at_end() const {
  const int64_t left = impl_->limit - entropy_position(impl_->scan);
  return impl_->marker == kEndOfImage && left >= 0 && left < 8;
}

bool EntropySource::attach(j_decompress_ptr cinfo, const EntropyFile& file, int x0, int x1) {
  Impl& mine = *impl_;
  if (x0 < 0 || x1 <= x0 || x1 > static_cast<int>(cinfo->image_width)) return false;
  if (!cinfo->entropy || !open(cinfo, file)) return false;
  const int mcu_width = DCTSIZE * (cinfo->comps_in_scan == 1 ? 1 : cinfo->max_h_samp_factor);
  mine.first_column = x0 / mcu_width;
  mine.last_column = (x1 - 1) / mcu_width;
  replace_entropy_decoder(
      cinfo,
      [](j_decompress_ptr info, JBLOCKROW* blocks) -> boolean {
        Impl* impl = static_cast<Impl*>(info->client_data);
        const int row = impl->row, column = impl->column;
        const bool last = column + 1 == impl->mcus_per_row;
        impl->row = row + last;
        impl->column = last ? 0 : column + 1;
        if (blocks && column >= impl->first_column && column <= impl->last_column && !impl->failed) {
          impl->failed =
              !impl->move_to(impl->row_begins(row) + column) || !impl->coder->decode(&impl->scan, blocks);
          impl->stands++;
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
  if (!mine.failed)
    mine.failed =
        !mine.move_to(mine.row_begins(mine.row) + mine.column) || entropy_position(mine.scan) > mine.limit;
  if (!mine.failed) mine.notes.publish();
  mine.notes.end();
  return mine.failed;
}

void EntropySource::trim() {
  if (impl_->capacity <= kKept) return;
  std::free(impl_->data);
  impl_->data = nullptr;
  impl_->capacity = 0;
}

}  // namespace fastload
