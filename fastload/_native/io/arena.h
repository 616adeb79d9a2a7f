// Cached records in one memory file. Threads, forked children and other processes fill it together.
//
// The file: a header of kHeader bytes, a table of kEntry bytes per record, then data.
// fastload/_engine/cache/memory_file.py creates it and seals it against truncation. It is mapped whole; pages
// are allocated when written. Records are never moved, overwritten or evicted, so a published offset stays
// valid. There is no lock: room is reserved and entries are published with atomics that work across
// processes.
//
// success   claim() -> put(): every process can find the record from then on
// failure   claim() -> release(): another thread may try
// full      no room is left: existing records stay, and nothing more is claimed
// kill      a record that was claimed but not published is never cached; nothing else is lost
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
  bool converted;  // these are not the bytes that the store holds
};

class Arena {
 public:
  // Maps the file; `fd` may be closed afterwards. `lock`: lock new records into memory, as far as the system
  // allows. Throws std::runtime_error if the file is no arena, and std::bad_alloc.
  Arena(int fd, bool lock);
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  const uint8_t* data() const { return base_; }
  size_t size() const { return size_; }

  bool find(int64_t record, CachedRecord* cached) const noexcept;

  // True for exactly one caller until that caller releases the record.
  bool claim(int64_t record) noexcept;
  void release(int64_t record) noexcept;
  // Copies the bytes of a claimed record and publishes it. False: there is no room, and the claim is
  // released.
  bool put(int64_t record, const uint8_t* data, size_t nbytes, Kind kind, int width, int height,
           bool converted) noexcept;

  bool full() const noexcept;
  int64_t used() const noexcept;    // bytes of data
  int64_t count() const noexcept;   // published records
  int64_t locked() const noexcept;  // bytes that this object locked into memory

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
