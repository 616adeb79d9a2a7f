// Files of a store: spans of bytes out of mapped or loose files. Thread-safe without locks, so a fork
// in the middle leaves nothing locked; all state is per process or shared read-only.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/status.h"
#include "io/arena.h"
#include "jpeg/huffman_index.h"

namespace fastload {

// How the pixels of a raw image lie where it is not packed: bytes from one row, column and channel to the
// next, none of them negative. Where `channel` is 0 the image is gray.
struct Layout {
  int64_t row, pixel, channel;
};

// Bytes of one record. [data, data + readable) may be read, though only nbytes belong to the record.
struct Span {
  const uint8_t* data = nullptr;
  size_t nbytes = 0;
  size_t readable = 0;
  const Layout* layout = nullptr;  // of raw pixels; nullptr: packed, HWC, RGB
  EntryRef entries{};              // what is remembered of the record
};

// Memory that takes the place of file number `file`.
struct Memory {
  int64_t file;
  const uint8_t* data;
  size_t nbytes;
  bool packed;
  Layout layout;  // of all raw images in it, unless they are packed
};

// Bytes [offset, offset + nbytes) of a file; nbytes == -1: up to its end.
struct FileRange {
  int32_t file;
  int64_t offset, nbytes;
};

// Per-thread memory that loose files are read into.
class Scratch {
 public:
  Scratch() = default;
  ~Scratch();
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;

  // Room for nbytes and kSlack more, contents lost; nullptr if memory ran out.
  uint8_t* reserve(size_t nbytes);
  // Gives back what an unusually large record took.
  void trim();

  static constexpr size_t kSlack = 64;

 private:
  uint8_t* data_ = nullptr;
  size_t capacity_ = 0;
};

class Files {
 public:
  // Path i is paths[ends[i-1], ends[i]), in the file system's encoding. The three arrays are borrowed:
  // they must outlive this object, and are checked anew at every use; so must what `memories` point to, each
  // of which stands for a file that `mapped` calls mapped. With an arena its memory file comes after the
  // others, as file number `count`. Throws std::bad_alloc.
  Files(const char* paths, size_t paths_nbytes, const int64_t* ends, const uint8_t* mapped, size_t count,
        std::shared_ptr<const Arena> arena, const std::vector<Memory>& memories);
  ~Files();
  Files(const Files&) = delete;
  Files& operator=(const Files&) = delete;

  size_t count() const { return count_ + (arena_ ? 1 : 0); }

  // Asks the processor for the beginning of a span that is read soon. Does nothing where it is not mapped
  // yet.
  void prefetch(int64_t file, int64_t offset, int64_t nbytes) const noexcept;

  // Bytes [offset, offset + nbytes) of a file; nbytes == -1: up to its end. At most `limit` bytes if
  // that is less (to read headers only). A mapped span lives as long as this object, any other until
  // the scratch is used again. kIo sets *error to an errno.
  Status read(int64_t file, int64_t offset, int64_t nbytes, size_t limit, Scratch* scratch, Span* span,
              int* error) noexcept;

  // Whether a mapped file was found not to reach the end of this span any more: what was made of it is worth
  // nothing.
  bool cut_short(int64_t file, int64_t offset, int64_t nbytes) const noexcept;

  // The whole of a loose file into memory of the caller. kPending: `room` is too small; *nbytes says how
  // large it is. kIo sets *error to an errno; kTruncated: it was cut short meanwhile.
  Status read_whole(int64_t file, uint8_t* into, size_t room, size_t* nbytes, int* error) const noexcept;

  // Asks the system to read these ranges into the page cache, sorted by file and offset, and returns without
  // waiting for the data. Advice only: what cannot be opened or lies outside its file is left out, for
  // read() to report. Reorders `ranges`.
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
  size_t count_;  // without the arena
  std::shared_ptr<const Arena> arena_;
  std::unique_ptr<std::atomic<Mapping*>[]> mappings_;  // one per file, if any file is mapped
};

}  // namespace fastload
