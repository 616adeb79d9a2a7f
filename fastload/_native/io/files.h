// Reads bytes: files, mapped or opened for each record, and shared memory.
//
// What it does. Files reads byte ranges of a store's files. arena.h keeps cached records in a memory file
// that processes share. sigbus_guard.h keeps the process alive when a mapped file loses pages. crc32c.h
// computes checksums.
//
// Guarantees
//   bounds         every range is checked against the file's size before it is read; records above 1 GiB are
//                  not read into memory
//   errors         only constructors throw; the other functions return a Status and an errno
//   thread safety  all classes may be used by several threads and after a fork; none holds a lock
//   ownership      a Span of a mapped file is valid as long as its Files, any other until the Scratch is used
//                  again; Files borrows its arrays of paths and its mapped arrays from the caller
//
// Tests: tests/native/test_files.py, test_readahead.py, test_crc32c.py,
// tests/engine/cache/test_memory_file.py, tests/run/test_endings.py.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/status.h"
#include "io/arena.h"

namespace fastload {

class EntryTable;  // jpeg/huffman_index.h

// Layout of the pixels of a raw image that is not packed: bytes from one row, column and channel to the
// next, none of them negative. channel == 0: the image is gray.
struct PixelLayout {
  int64_t row, pixel, channel;
};

// A row of a table of entry points.
struct EntryRef {
  EntryTable* table = nullptr;  // nullptr: none are kept
  int64_t record = 0;
};

// The bytes of one record. [data, data + readable) may be read, but only nbytes belong to the record.
struct Span {
  const uint8_t* data = nullptr;
  size_t nbytes = 0;
  size_t readable = 0;
  const PixelLayout* layout = nullptr;  // of raw pixels; nullptr: packed RGB, HWC
  EntryRef entries{};                   // entry points of the record, if they are kept
};

// An array that takes the place of file number `file`.
struct MappedArray {
  int64_t file;
  const uint8_t* data;
  size_t nbytes;
  bool packed;
  PixelLayout layout;  // of all raw images in it, unless they are packed
};

// Bytes [offset, offset + nbytes) of a file; nbytes == -1: to its end.
struct FileRange {
  int32_t file;
  int64_t offset, nbytes;
};

// Per-thread memory into which files that are not mapped are read.
class Scratch {
 public:
  Scratch() = default;
  ~Scratch();
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;

  // Room for nbytes and kSlack more; the old contents are lost. nullptr: memory ran out.
  uint8_t* reserve(size_t nbytes);
  // What reserve() returned last.
  uint8_t* data() const { return data_; }
  // Frees the memory that an unusually large record took.
  void trim();

  static constexpr size_t kSlack = 64;

 private:
  uint8_t* data_ = nullptr;
  size_t capacity_ = 0;
};

class Files {
 public:
  // Path i is paths[ends[i-1], ends[i]), in the file system's encoding. The three arrays and what `memories`
  // point to are borrowed: they must outlive this object. Path offsets are checked at every use. Each array
  // of `memories` replaces a file that `mapped` calls mapped. An arena's memory file comes after the others,
  // as file number `count`. stamps: for each file its time of change (ctime, ns), its bytes and its inode:
  // one that has others is not read (kIo, ESTALE). Bytes -1, or nullptr: it may be any. Borrowed, too.
  // Throws std::bad_alloc.
  Files(const char* paths, size_t paths_nbytes, const int64_t* ends, const uint8_t* mapped, size_t count,
        std::shared_ptr<const Arena> arena, const std::vector<MappedArray>& memories,
        const int64_t* stamps = nullptr);
  ~Files();
  Files(const Files&) = delete;
  Files& operator=(const Files&) = delete;

  size_t count() const { return count_ + (arena_ ? 1 : 0); }

  // Prefetches the beginning of a span into the processor's cache. Does nothing if the file is not mapped
  // yet.
  void prefetch(int64_t file, int64_t offset, int64_t nbytes) const noexcept;

  // Bytes [offset, offset + nbytes) of a file; nbytes == -1: to its end. Reads `limit` bytes at most, to read
  // headers only. A mapped span is valid as long as this object, any other until the scratch is used again.
  // kIo sets *error to an errno.
  Status read(int64_t file, int64_t offset, int64_t nbytes, size_t limit, Scratch* scratch, Span* span,
              int* error) noexcept;

  // Whether a mapped file was found to end before this span does. If so, discard what was made from it.
  bool truncated(int64_t file, int64_t offset, int64_t nbytes) const noexcept;

  // Reads a whole file into the caller's memory, without mapping it. kPending: `room` is too small, and
  // *nbytes says what is needed. kIo sets *error to an errno; kTruncated: the file was truncated meanwhile.
  Status read_whole(int64_t file, uint8_t* into, size_t room, size_t* nbytes, int* error) const noexcept;

  // Asks the system to read these ranges into the page cache, in order of file and offset, and returns
  // without waiting. Only advice: ranges that cannot be read are skipped, and read() will report them.
  // Reorders `ranges`.
  void readahead(std::vector<FileRange>* ranges) noexcept;

 private:
  struct Mapping;
  int open_file(int64_t file, size_t* size, int* error) const noexcept;
  static Status read_span(int fd, uint8_t* into, size_t length, int64_t offset, int* error) noexcept;
  const Mapping* mapping(int64_t file, int* error) noexcept;
  void readahead_mapped(const FileRange* begin, const FileRange* end) noexcept;
  void readahead_loose(const FileRange* begin, const FileRange* end) noexcept;

  const char* paths_;
  size_t paths_nbytes_;
  const int64_t* ends_;
  const uint8_t* mapped_;
  const int64_t* stamps_;  // (count_, 3), or nullptr
  size_t count_;           // without the arena
  std::shared_ptr<const Arena> arena_;
  std::unique_ptr<std::atomic<Mapping*>[]> mappings_;  // one per file, if any file is mapped
};

}  // namespace fastload
