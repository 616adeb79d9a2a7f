// Records kept in one memory file, which threads, forked children and other processes fill together.
//
// The file: a header of kHeader bytes, a table of kEntry bytes a record, then data. It was made by
// fastload/_engine/cache/memory.py, sealed against truncation, and is mapped whole; pages come into being
// when they are written. Nothing is ever moved, overwritten or dropped, so that a place once published stays
// valid, and there is no lock: room is taken and entries are published with atomics that work across
// processes.
//
// success   claim() -> put(): the record can be found from then on, by everybody
// failure   claim() -> release(): somebody else may try
// full      no room is left: what is in it stays, and nothing is claimed any more
// kill      a record that was claimed and not published is never kept; nothing else is lost
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "base/kind.h"

namespace fastload {

struct CachedRecord {
  int64_t offset;  // in the memory file
  int64_t nbytes;
  int width, height;
  Kind kind;
  bool converted;  // not the bytes that the store holds
};

class Arena {
 public:
  // Maps the file; `fd` may be closed afterwards. `lock`: keep what is put here from being swapped out, as
  // far as the system allows. Throws std::runtime_error where it is not such a file, std::bad_alloc.
  Arena(int fd, bool lock);
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  const uint8_t* data() const { return base_; }
  size_t size() const { return size_; }
  int64_t records() const { return records_; }

  bool find(int64_t record, CachedRecord* kept) const noexcept;

  // True for exactly one caller, until it releases the record.
  bool claim(int64_t record) noexcept;
  void release(int64_t record) noexcept;
  // Copies the bytes of a claimed record and publishes it. False, and released: there is no room.
  bool put(int64_t record, const uint8_t* data, size_t nbytes, Kind kind, int width, int height,
           bool converted) noexcept;

  bool full() const noexcept;
  int64_t used() const noexcept;    // bytes of data
  int64_t count() const noexcept;   // records kept
  int64_t locked() const noexcept;  // bytes that this object locked

  static constexpr size_t kHeader = 4096;
  static constexpr size_t kEntry = 16;

 private:
  struct Header;
  struct Entry;
  Header* header() const;
  Entry* entry(int64_t record) const;
  bool reserve(size_t nbytes, uint64_t* offset) noexcept;

  uint8_t* base_;
  size_t size_;
  int64_t records_;
  std::atomic<bool> lock_;
  std::atomic<int64_t> locked_{0};
};

}  // namespace fastload
