// An index into Huffman codes: where MCUs begin in a JPEG file, remembered from an earlier decode. It holds
// the first MCU of each row, and more of a long row (jpeg/entropy.cpp).
//
// Note [Entry points]
// An entry point is a position in the file and the DC predictors at that position: a decoder can start there.
// It depends only on the bytes before it, so each point has a checksum of all of them, from the first byte of
// the file on, and of itself. A point is used only if the file still has these bytes. Then decoding from it
// gives what decoding from the beginning gives, and the bytes that are skipped are those that were found
// sound the first time. If the file has changed or a point is damaged, the file is decoded from the beginning
// and its points are dropped.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "io/files.h"

namespace fastload {

struct EntryPoint {
  uint32_t check;    // CRC32C of the file up to and including the byte of `bit`, then of the fields below
  uint32_t bit;      // position in the file
  int16_t dc[3];     // DC predictors
  uint16_t stuffed;  // stuffed zero bytes in the data before it
};
static_assert(sizeof(EntryPoint) == 16);

// The points of one file, in order.
struct EntryList {
  const EntryPoint* points = nullptr;
  int count = 0;
  uint32_t place = 0;  // their position in the table; 0: there are none
};

// The entry points of a store's records. Threads and forked children fill and read it without a lock: a
// published point never changes or moves, and memory is freed only with the table.
//
// success   append(): every process can find the points from then on
// full      existing points stay; further records get none
// race      another thread appended to the same record first: its points stay
// kill      a process that dies inside append(): this record gets no further points
class EntryTable {
 public:
  // Takes at most `limit` bytes, as they are used. Remembers nothing if that is less than one slot per
  // record, or if memory cannot be mapped.
  EntryTable(int64_t records, size_t limit);
  ~EntryTable();
  EntryTable(const EntryTable&) = delete;
  EntryTable& operator=(const EntryTable&) = delete;

  // The points of a record; they stay readable as long as the table.
  EntryList find(int64_t record) const noexcept;

  // Appends points to `known`, of `most` that the file can have.
  void append(int64_t record, const EntryList& known, const EntryPoint* points, int count, int most) noexcept;

  // Drops the points of a record, if they are still `known`.
  void forget(int64_t record, const EntryList& known) noexcept;

  int64_t used() const noexcept;   // bytes of points
  int64_t count() const noexcept;  // records with points

 private:
  struct Header;
  struct Block;
  Header* header() const;
  std::atomic<uint32_t>* place(int64_t record) const;
  Block* block(uint32_t place) const;
  uint32_t reserve(size_t nbytes) noexcept;

  uint8_t* base_;
  size_t size_;
  int64_t records_;
};

// The entry points of a file while it is decoded: known ones, and those found now. Per thread; reused.
class FileEntryPoints {
 public:
  // Smaller files gain too little: Huffman decoding of a crop took 13.3 us without and 11.4 us with points in
  // files of 5.7 KB, 49.1 and 40.0 us in files of 20 KB.
  static constexpr size_t kSmall = 8192;

  // Starts a file that can have `most` points; its Huffman codes begin at `data`. Points must be found in
  // order, and lookups never go back.
  void begin(const EntryRef& ref, const uint8_t* file, size_t nbytes, const uint8_t* data, int most);
  // Forgets the file.
  void end();

  // The number of known points, and whether more can be added.
  int known() const { return list_.count + static_cast<int>(found_.size()); }
  bool wants() const { return known() < most_; }

  // Whether this point matches the file; if not, drops all of them.
  bool holds(int which);
  // A point that holds: its byte in the file, its bit in that byte, and the position of that byte in the data
  // without stuffing.
  const uint8_t* byte(int which) const { return file_ + (at(which).bit >> 3); }
  int bit(int which) const { return static_cast<int>(at(which).bit & 7); }
  int64_t flat(int which) const { return byte(which) - data_ - at(which).stuffed; }
  const int16_t* dc(int which) const { return at(which).dc; }

  // Adds the next point: a bit of the data without stuffing, and the predictors, which fit 16 bits.
  void add(int64_t bit, const int* prediction);

  // Stores the points that were found, after the whole decode succeeded.
  void publish();

 private:
  const EntryPoint& at(int which) const {
    return which < list_.count ? list_.points[which] : found_[static_cast<size_t>(which - list_.count)];
  }
  uint32_t checked(const EntryPoint& point);
  void rewind();

  EntryRef ref_;
  EntryList list_;
  std::vector<EntryPoint> found_;
  const uint8_t *file_ = nullptr, *end_ = nullptr, *data_ = nullptr;
  int most_ = 0;
  const uint8_t *summed_ = nullptr, *walked_ = nullptr;  // how far `sum_` and `stuffed_` reach
  uint32_t sum_ = 0, stuffed_ = 0;
};

}  // namespace fastload
