// Where MCUs begin in the Huffman codes of a JPEG file, remembered from an earlier decoding of it: the first
// of each row, and a few more of a long one (jpeg/entropy.cpp).
//
// Note [Entry points]
// An entry point is a position in the file and the DC predictors that hold there: a decoder can begin with
// it. What holds at a position depends on nothing but the bytes before it, so each point has a checksum of
// all of them, from the first byte of the file on, and of itself. It is used only where the file still has
// these bytes: then what comes of it is what decoding from the beginning gives, and what was passed without
// a word the first time would be passed without a word again. A file that has changed, or a point that is
// damaged, is decoded from the beginning, and its points are forgotten.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace fastload {

struct EntryPoint {
  uint32_t check;    // CRC32C of the file up to and with the byte of `bit`, then of what follows here
  uint32_t bit;      // of the file
  int16_t dc[3];     // DC predictors
  uint16_t stuffed;  // zeros stuffed into the data before it
};
static_assert(sizeof(EntryPoint) == 16);

// The points of one file, in order.
struct EntryList {
  const EntryPoint* points = nullptr;
  int count = 0;
  uint32_t place = 0;  // what the table knows them by; 0: there are none
};

// The points of a store's records, which threads and forked children fill and read together without a lock:
// a point once published never changes nor moves, and memory is given back with the table, not before.
//
// success   append(): the points can be found from then on, by everybody
// full      what is in it stays, and nothing is added for further records
// meanwhile somebody else appended to the same record: his points stay
// kill      of a process in the middle of append(): this record gets no further points
class EntryTable {
 public:
  // Of at most `limit` bytes, taken as they are used. Where that is too little for a place a record, or
  // memory cannot be had, nothing is remembered.
  EntryTable(int64_t records, size_t limit);
  ~EntryTable();
  EntryTable(const EntryTable&) = delete;
  EntryTable& operator=(const EntryTable&) = delete;

  // What is known of a record; it stays readable as long as the table.
  EntryList find(int64_t record) const noexcept;

  // Adds points behind those of `known`, of `most` that the file can have.
  void append(int64_t record, const EntryList& known, const EntryPoint* points, int count, int most) noexcept;

  // From now on nothing is known of the record, if what was known is `known`.
  void forget(int64_t record, const EntryList& known) noexcept;

  int64_t used() const noexcept;   // bytes of points
  int64_t count() const noexcept;  // records of which points were kept

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

// A record of a table.
struct EntryRef {
  EntryTable* table = nullptr;  // none: nothing is remembered
  int64_t record = 0;
};

// Of a file while it is decoded: the points that are known, and those that are found. Per thread; reused.
class EntryNotes {
 public:
  // A smaller file gains little. Measured: 13.3 us a crop without points and 11.4 with, at 5.7 KB; 49.1 and
  // 40.0 at 20 KB.
  static constexpr size_t kSmall = 8192;

  // Begins with a file that may have `most` points; its Huffman codes begin at `data`. Points are found in
  // order, and nothing is asked of the file before those that were asked for last.
  void begin(const EntryRef& ref, const uint8_t* file, size_t nbytes, const uint8_t* data, int most);
  // Without a file.
  void end();

  // Points that are known, and how many there can be. 0: none are wanted.
  int known() const { return list_.count + static_cast<int>(found_.size()); }
  bool wants() const { return known() < most_; }

  // Whether this point may be used; if not all of them are forgotten.
  bool holds(int which);
  // One that holds: the byte of the file that it lies in, its bit there, and its byte in the whole data
  // without stuffing.
  const uint8_t* byte(int which) const { return file_ + (at(which).bit >> 3); }
  int bit(int which) const { return static_cast<int>(at(which).bit & 7); }
  int64_t flat(int which) const { return byte(which) - data_ - at(which).stuffed; }
  const int16_t* dc(int which) const { return at(which).dc; }

  // The next point: a bit of the whole data without stuffing, and the predictors, within 16 bits.
  void add(int64_t bit, const int* prediction);

  // Everything went well: what was found is for others too.
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
