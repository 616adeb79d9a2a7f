#include "jpeg/entropy.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "jpeg/entropy_blocks.h"
#include "jpeg/libjpeg_hook.h"

namespace fastload {
namespace {

// An entry point for each row of MCUs, and more in a row at least twice as long as this, because crops skip
// what is to their left: 8 % of the decoder's time in photos of 12 megapixels. In a photo 500 pixels wide,
// points every 16 MCUs saved 7 % for three times as many bytes.
constexpr int kPointEvery = 32;

// Bytes that a thread keeps from file to file.
constexpr size_t kKept = size_t{4} << 20;

// libjpeg reads up to 64 bits ahead, and fails if the file ends within them.
constexpr int64_t kReadAheadBits = 128;

constexpr uint8_t kEndOfImage = 0xD9;  // EOI

// Building tables takes longer than decoding a smaller file: with tables of its own, a file of 2.0 KB
// takes 24.3 us if they are always built and 20.2 with libjpeg; at 3.9 KB both take the same time, at 6.3
// KB 62.1 and 69.8. A smaller file is decoded with the tables at hand or by libjpeg; tables are built when a
// second file needs the same ones.
constexpr size_t kSmall = 4096;

// From this size on wide tables pay off, although building them takes 27 us instead of 7: crops of photos of
// 12 megapixels take 2 to 7 % less time, those of photos of 128 KB and more 2 % more.
constexpr size_t kLarge = size_t{1} << 19;

// Copies data without its stuffing (a zero after each 0xFF), up to a marker or the end. `to` must have room
// for as many bytes. Returns the end of the copy. `*marker`: the ordinary marker that ended it, or 0. 0xFF
// 0xFF does not count as a marker: libjpeg skips the first byte and finds data, a marker or the end of the
// file after it.
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

struct EntropyDecoder::Impl {
  HuffmanTable dc[NUM_HUFF_TBLS], ac[NUM_HUFF_TBLS];
  EntropyScan scan;
  const EntropyKernels* kernels = nullptr;
  uint8_t* data = nullptr;
  size_t capacity = 0;
  int64_t limit;         // bits that may be consumed
  uint8_t marker;        // the marker that ends the data, 0: none
  const uint8_t* codes;  // the Huffman codes in the file
  size_t codes_nbytes;
  int64_t skipped_bytes;  // bytes of the scan before those in `data`, both without stuffing; -1: nothing is
                          // loaded
  FileEntryPoints points;
  int points_per_row;
  int mcus_per_row, first_column, last_column;
  int row, column;   // of the MCU that libjpeg asks for next
  int64_t next_mcu;  // the MCU that `scan` decodes next
  bool failed = false;

  ~Impl() { std::free(data); }

  bool build_tables(j_decompress_ptr cinfo, HuffmanTable::Effort effort);
  bool load(const uint8_t* from);
  bool prepare(j_decompress_ptr cinfo);

  int64_t first_mcu(int at) const { return int64_t{at} * mcus_per_row; }
  // The MCU at which a point lies, and the last point at or before an MCU. No point lies at the first MCU.
  int64_t mcu_of(int point) const {
    return first_mcu((point + 1) / points_per_row) + (point + 1) % points_per_row * kPointEvery;
  }
  int point_before(int64_t mcu) const {
    const int at = static_cast<int>(mcu / mcus_per_row), column = static_cast<int>(mcu % mcus_per_row);
    return at * points_per_row + std::min(column / kPointEvery, points_per_row - 1) - 1;
  }
  bool seek_point(int point);
  bool load_from_point(int point);
  bool add_point();
  int64_t until_point(int64_t mcus) const;
  bool seek_mcu(int64_t mcu);
  bool read_run(const BlockRun& to, int mcus);
};

bool EntropyDecoder::Impl::build_tables(j_decompress_ptr cinfo, HuffmanTable::Effort effort) {
  bool built = true;
  unsigned dc_seen = 0, ac_seen = 0;  // several components may share one table
  for (int c = 0; c < cinfo->comps_in_scan; c++) {
    const jpeg_component_info& info = *cinfo->cur_comp_info[c];
    const int dc_table = info.dc_tbl_no, ac_table = info.ac_tbl_no;
    if (dc_table < 0 || dc_table >= NUM_HUFF_TBLS || ac_table < 0 || ac_table >= NUM_HUFF_TBLS) return false;
    const JHUFF_TBL *dc_code = cinfo->dc_huff_tbl_ptrs[dc_table],
                    *ac_code = cinfo->ac_huff_tbl_ptrs[ac_table];
    if (!dc_code || !ac_code) return false;
    // Build all of them: a table that refuses its code for a small file remembers it.
    if (!(dc_seen >> dc_table & 1)) built &= dc[dc_table].build(*dc_code, false, effort);
    if (!(ac_seen >> ac_table & 1)) built &= ac[ac_table].build(*ac_code, true, effort);
    dc_seen |= 1u << dc_table;
    ac_seen |= 1u << ac_table;
  }
  if (!built) return false;
  // A scan of one component has one block per MCU, whatever its sampling factors.
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

// Loads the data of the scan from a byte of the file on. False if memory ran out.
bool EntropyDecoder::Impl::load(const uint8_t* from) {
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

// Moves to the MCU of a valid point. False if the point lies outside the loaded data.
bool EntropyDecoder::Impl::seek_point(int point) {
  const int64_t byte = points.flat(point) - skipped_bytes;
  if (byte < 0 || byte >= scan.end - scan.begin) return false;
  entropy_seek(&scan, byte * 8 + points.bit(point));
  std::copy_n(points.dc(point), 3, scan.prediction);
  next_mcu = mcu_of(point);
  return true;
}

// Loads the data from a point on if it is valid, otherwise all of it.
bool EntropyDecoder::Impl::load_from_point(int point) {
  const bool known = point >= 0 && points.holds(point);
  skipped_bytes = known ? points.flat(point) : 0;
  return load(known ? points.byte(point) : codes) && (!known || seek_point(point));
}

// Adds an entry point at the current MCU, if that is where the next one belongs.
bool EntropyDecoder::Impl::add_point() {
  if (!points.wants() || next_mcu != mcu_of(points.known())) return true;
  const int64_t position = entropy_position(scan);
  if (position > limit) return false;
  points.add(skipped_bytes * 8 + position, scan.prediction);
  return true;
}

// The number of MCUs, at most `mcus`, up to the next entry point to be added.
int64_t EntropyDecoder::Impl::until_point(int64_t mcus) const {
  const int64_t next = points.wants() ? mcu_of(points.known()) - next_mcu : 0;
  return next > 0 ? std::min(mcus, next) : mcus;
}

// Moves to an MCU at or after the current one, from the last entry point before it, and skips those between.
bool EntropyDecoder::Impl::seek_mcu(int64_t mcu) {
  const int point = std::min(point_before(mcu), points.known() - 1);
  if (skipped_bytes < 0 && !load_from_point(point)) return false;
  if (!add_point()) return false;
  if (point >= 0 && point < points.known() && mcu_of(point) > next_mcu && points.holds(point) &&
      !seek_point(point))
    return false;
  while (next_mcu < mcu) {
    const int64_t count = until_point(mcu - next_mcu);
    if (!kernels->skip(&scan, count)) return false;
    next_mcu += count;
    if (!add_point()) return false;
  }
  return true;
}

// Decodes the next MCUs.
bool EntropyDecoder::Impl::read_run(const BlockRun& to, int mcus) {
  BlockRun rest = to;
  while (mcus > 0) {
    const int count = static_cast<int>(until_point(mcus));
    if (!kernels->decode_run(&scan, rest, count)) return false;
    next_mcu += count;
    mcus -= count;
    if (!add_point()) return false;
    for (int b = 0; mcus > 0 && b < scan.blocks_in_mcu; b++) rest.first[b] += count * rest.step[b];
  }
  return true;
}

EntropyDecoder::EntropyDecoder() : impl_(new Impl) {}
EntropyDecoder::~EntropyDecoder() {
  delete impl_;
}

bool EntropyDecoder::Impl::prepare(j_decompress_ptr cinfo) {
  failed = false;
  row = column = 0;
  next_mcu = 0;
  skipped_bytes = -1;
  points.end();
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
  kernels = &entropy_kernels();
  return true;
}

bool EntropyDecoder::begin(j_decompress_ptr cinfo) {
  return impl_->prepare(cinfo) && impl_->load_from_point(-1);
}

bool EntropyDecoder::open(j_decompress_ptr cinfo, const EntropyFile& file) {
  Impl& impl = *impl_;
  if (!impl.prepare(cinfo)) return false;
  // A scan of one component has one block per MCU.
  const int mcu_height = DCTSIZE * (cinfo->comps_in_scan == 1 ? 1 : cinfo->max_v_samp_factor);
  const int rows = (static_cast<int>(cinfo->image_height) + mcu_height - 1) / mcu_height;
  impl.points.begin(file.entries, file.data, file.nbytes, impl.codes, rows * impl.points_per_row - 1);
  return true;
}

bool EntropyDecoder::next(JCOEF (*blocks)[DCTSIZE2]) {
  return impl_->kernels->decode_zigzag(&impl_->scan, blocks);
}

bool EntropyDecoder::read(int row, int first, int last, const BlockRun& to) {
  Impl& impl = *impl_;
  impl.failed =
      impl.failed || !impl.seek_mcu(impl.first_mcu(row) + first) || !impl.read_run(to, last - first);
  return !impl.failed;
}

bool EntropyDecoder::damaged_in(int rows) {
  impl_->row = rows;
  return damaged();
}

bool EntropyDecoder::at_end() const {
  const int64_t left = impl_->limit - entropy_position(impl_->scan);
  return impl_->marker == kEndOfImage && left >= 0 && left < 8;
}

bool EntropyDecoder::attach(j_decompress_ptr cinfo, const EntropyFile& file, int x0, int x1) {
  Impl& impl = *impl_;
  if (x0 < 0 || x1 <= x0 || x1 > static_cast<int>(cinfo->image_width)) return false;
  if (!cinfo->entropy || !open(cinfo, file)) return false;
  const int mcu_width = DCTSIZE * (cinfo->comps_in_scan == 1 ? 1 : cinfo->max_h_samp_factor);
  impl.first_column = x0 / mcu_width;
  impl.last_column = (x1 - 1) / mcu_width;
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
              !impl->seek_mcu(impl->first_mcu(row) + column) || !impl->kernels->decode(&impl->scan, blocks);
          impl->next_mcu++;
        }
        return TRUE;
      },
      impl_);
  return true;
}

bool EntropyDecoder::failed() const {
  return impl_->failed;
}

bool EntropyDecoder::damaged() {
  Impl& impl = *impl_;
  if (!impl.failed)
    impl.failed = !impl.seek_mcu(impl.first_mcu(impl.row) + impl.column) ||
                  entropy_position(impl.scan) > impl.limit ||
                  impl.marker != kEndOfImage;  // after others libjpeg may find an error beyond the last row
  if (!impl.failed) impl.points.publish();
  impl.points.end();
  return impl.failed;
}

void EntropyDecoder::trim() {
  if (impl_->capacity <= kKept) return;
  std::free(impl_->data);
  impl_->data = nullptr;
  impl_->capacity = 0;
}

}  // namespace fastload
