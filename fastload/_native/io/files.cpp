#include "io/files.h"

#include "io/sigbus_guard.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <new>
#include <utility>

namespace fastload {
namespace {

// Larger records are not read into memory. Pillow's own limit on pixels is far below this.
constexpr uint64_t kMaxRecord = uint64_t{1} << 30;

// Bytes of scratch that a thread keeps between records.
constexpr size_t kScratchKept = size_t{16} << 20;

// Linux reads at most max(read_ahead_kb, the device's largest request) for one advice and silently drops the
// rest (force_page_cache_ra in mm/readahead.c). 128 KiB is the default of read_ahead_kb.
constexpr size_t kAdvice = size_t{128} << 10;

// Ranges this close are read as one: half of what the system reads around a missing page by itself. A disk
// that answers 16,000 requests a second at 250 MB/s reads a gap of 16 KiB in the time of one request. 64 KiB
// helps tiny records, whose neighbours are needed next.
constexpr size_t kGap = size_t{64} << 10;

// The length of [offset, offset + nbytes) if it lies within `size` bytes; false otherwise.
bool clip(size_t size, int64_t offset, int64_t nbytes, size_t* length) {
  if (offset < 0 || nbytes < -1 || static_cast<uint64_t>(offset) > size) return false;
  const size_t left = size - static_cast<size_t>(offset);
  if (nbytes >= 0 && static_cast<uint64_t>(nbytes) > left) return false;
  *length = nbytes < 0 ? left : static_cast<size_t>(nbytes);
  return true;
}

// Whether a file has this time of change (ctime, which no program can set back) in nanoseconds, so many bytes
// (-1: everything fits), and this inode.
bool has_stamp(const struct stat& info, const int64_t* stamp) {
  if (stamp[1] < 0) return true;
#ifdef __APPLE__
  const struct timespec& time = info.st_ctimespec;
#else
  const struct timespec& time = info.st_ctim;
#endif
  return int64_t{time.tv_sec} * 1'000'000'000 + time.tv_nsec == stamp[0] &&
         static_cast<int64_t>(info.st_size) == stamp[1] && static_cast<int64_t>(info.st_ino) == stamp[2];
}

}  // namespace

Scratch::~Scratch() {
  std::free(data_);
}

uint8_t* Scratch::reserve(size_t nbytes) {
  if (data_ == nullptr || nbytes > capacity_) {
    // Half as much again, so that slowly growing records do not reallocate each time.
    const size_t wanted = std::max<size_t>(nbytes + nbytes / 2, 1 << 16);
    std::free(data_);
    data_ = static_cast<uint8_t*>(std::malloc(wanted + kSlack));
    capacity_ = data_ == nullptr ? 0 : wanted;
  }
  return data_;
}

void Scratch::trim() {
  if (capacity_ <= kScratchKept) return;
  std::free(data_);
  data_ = nullptr;
  capacity_ = 0;
}

struct Files::Mapping {
  void* address;
  size_t size;
  size_t readable;  // to the end of the last page
  bool ours;        // false: the caller's memory
  bool packed;
  PixelLayout layout;
  std::unique_ptr<SigbusGuard> guard;  // for our own maps; see Note [Bus errors]
};

Files::Files(const char* paths, size_t paths_nbytes, const int64_t* ends, const uint8_t* mapped, size_t count,
             std::shared_ptr<const Arena> arena, const std::vector<MappedArray>& memories,
             const int64_t* stamps)
    : paths_(paths),
      paths_nbytes_(paths_nbytes),
      ends_(ends),
      mapped_(mapped),
      stamps_(stamps),
      count_(count),
      arena_(std::move(arena)) {
  if (std::any_of(mapped, mapped + count, [](uint8_t flag) { return flag != 0; })) {
    mappings_.reset(new std::atomic<Mapping*>[count]());
  }
  for (const MappedArray& memory : memories) {
    mappings_[static_cast<size_t>(memory.file)].store(
        new Mapping{const_cast<uint8_t*>(memory.data), memory.nbytes, memory.nbytes, false, memory.packed,
                    memory.layout, nullptr},
        std::memory_order_release);
  }
}

Files::~Files() {
  if (!mappings_) return;
  for (size_t i = 0; i < count_; i++) {
    Mapping* found = mappings_[i].load(std::memory_order_acquire);
    if (found == nullptr) continue;
    found->guard.reset();
    if (found->ours && found->size > 0) munmap(found->address, found->size);
    delete found;
  }
}

int Files::open_file(int64_t file, size_t* size, int* error) const noexcept {
  const int64_t begin = file == 0 ? 0 : ends_[file - 1];
  const int64_t end = ends_[file];
  char path[PATH_MAX];
  if (begin < 0 || end < begin || static_cast<uint64_t>(end) > paths_nbytes_) {
    *error = EINVAL;
    return -1;
  }
  const size_t length = static_cast<size_t>(end - begin);
  if (length >= sizeof path) {
    *error = ENAMETOOLONG;
    return -1;
  }
  std::memcpy(path, paths_ + begin, length);
  path[length] = '\0';
  int fd;
  do {
    fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);  // non-blocking, so that a FIFO cannot hang us
  } while (fd < 0 && errno == EINTR);
  if (fd < 0) {
    *error = errno;
    return -1;
  }
  struct stat info;
  if (fstat(fd, &info) != 0) {
    *error = errno;
  } else if (!S_ISREG(info.st_mode)) {
    *error = S_ISDIR(info.st_mode) ? EISDIR : EINVAL;
  } else if (stamps_ != nullptr && !has_stamp(info, stamps_ + 3 * file)) {
    *error = ESTALE;
  } else {
    *size = static_cast<size_t>(info.st_size);
    return fd;
  }
  close(fd);
  return -1;
}

const Files::Mapping* Files::mapping(int64_t file, int* error) noexcept {
  std::atomic<Mapping*>& slot = mappings_[static_cast<size_t>(file)];
  Mapping* existing = slot.load(std::memory_order_acquire);
  if (existing != nullptr) return existing;
  size_t size = 0;
  const int fd = open_file(file, &size, error);
  if (fd < 0) return nullptr;
  void* address = nullptr;
  if (size > 0) {
    address = mmap(nullptr, size, PROT_READ, MAP_SHARED, fd, 0);
    if (address == MAP_FAILED) {
      *error = errno;
      close(fd);
      return nullptr;
    }
  }
  close(fd);
  const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  Mapping* fresh = new (std::nothrow)
      Mapping{address, size, (size + page - 1) / page * page, true, true, PixelLayout{}, nullptr};
  if (fresh != nullptr && size > 0) fresh->guard.reset(new (std::nothrow) SigbusGuard(address, size));
  if (fresh != nullptr && slot.compare_exchange_strong(existing, fresh, std::memory_order_acq_rel))
    return fresh;
  const bool out_of_memory = fresh == nullptr;
  delete fresh;  // otherwise another thread was first
  if (size > 0) munmap(address, size);
  if (!out_of_memory) return existing;
  *error = ENOMEM;
  return nullptr;
}

Status Files::read(int64_t file, int64_t offset, int64_t nbytes, size_t limit, Scratch* scratch, Span* span,
                   int* error) noexcept {
  *error = 0;
  if (file < 0 || static_cast<uint64_t>(file) >= count()) {
    *error = EINVAL;
    return Status::kIo;
  }
  size_t length = 0;
  if (static_cast<uint64_t>(file) == count_) {
    if (!clip(arena_->size(), offset, nbytes, &length)) return Status::kTruncated;
    span->data = arena_->data() + offset;
    span->nbytes = std::min(length, limit);
    span->readable = arena_->size() - static_cast<size_t>(offset);
    return Status::kOk;
  }
  if (mappings_ && mapped_[file] != 0) {
    const Mapping* found = mapping(file, error);
    if (found == nullptr) return Status::kIo;
    if (!clip(found->size, offset, nbytes, &length)) return Status::kTruncated;
    if (found->guard && static_cast<size_t>(offset) + length > found->guard->first_missing()) {
      return Status::kTruncated;
    }
    static const uint8_t nothing[1] = {0};
    const size_t start = static_cast<size_t>(offset);
    span->data = found->size > 0 ? static_cast<const uint8_t*>(found->address) + start : nothing;
    span->nbytes = std::min(length, limit);
    span->readable = found->readable - start;
    span->layout = found->packed ? nullptr : &found->layout;
    return Status::kOk;
  }
  size_t size = 0;
  const int fd = open_file(file, &size, error);
  if (fd < 0) return Status::kIo;
  Status status = Status::kOk;
  if (!clip(size, offset, nbytes, &length)) {
    status = Status::kTruncated;
  } else if ((length = std::min(length, limit)) > kMaxRecord) {
    *error = EFBIG;
    status = Status::kIo;
  } else {
    uint8_t* into = scratch->reserve(length);
    if (into == nullptr) {
      *error = ENOMEM;
      status = Status::kIo;
    }
    if (status == Status::kOk) status = read_span(fd, into, length, offset, error);
    span->data = into;
    span->nbytes = length;
    span->readable = length + Scratch::kSlack;
  }
  close(fd);
  return status;
}

bool Files::truncated(int64_t file, int64_t offset, int64_t nbytes) const noexcept {
  if (!mappings_ || file < 0 || static_cast<uint64_t>(file) >= count_) return false;
  const Mapping* found = mappings_[static_cast<size_t>(file)].load(std::memory_order_acquire);
  size_t length = 0;
  return found != nullptr && found->guard && clip(found->size, offset, nbytes, &length) &&
         static_cast<size_t>(offset) + length > found->guard->first_missing();
}

void Files::prefetch(int64_t file, int64_t offset, int64_t nbytes) const noexcept {
  // As much as a small image takes; for larger ones the hardware detects the sequential access.
  constexpr size_t kMost = 4096, kLine = 64;
  if (!mappings_ || file < 0 || static_cast<uint64_t>(file) >= count_ || mapped_[file] == 0) return;
  const Mapping* found = mappings_[static_cast<size_t>(file)].load(std::memory_order_acquire);
  size_t length = 0;
  if (found == nullptr || !clip(found->size, offset, nbytes, &length)) return;
  const uint8_t* at = static_cast<const uint8_t*>(found->address) + offset;
  for (size_t i = 0; i < std::min(length, kMost); i += kLine) __builtin_prefetch(at + i);
}

Status Files::read_span(int fd, uint8_t* into, size_t length, int64_t offset, int* error) noexcept {
  size_t got = 0;
  while (got < length) {
    const ssize_t n =
        pread(fd, into + got, length - got, static_cast<off_t>(offset) + static_cast<off_t>(got));
    if (n > 0) {
      got += static_cast<size_t>(n);
    } else if (n == 0) {
      return Status::kTruncated;  // truncated since fstat
    } else if (errno != EINTR) {
      *error = errno;
      return Status::kIo;
    }
  }
  return Status::kOk;
}

Status Files::read_whole(int64_t file, uint8_t* into, size_t room, size_t* nbytes,
                         int* error) const noexcept {
  *error = 0;
  *nbytes = 0;
  if (file < 0 || static_cast<uint64_t>(file) >= count_) {
    *error = EINVAL;
    return Status::kIo;
  }
  const int fd = open_file(file, nbytes, error);
  if (fd < 0) return Status::kIo;
  Status status = Status::kPending;
  if (*nbytes > kMaxRecord) {
    *error = EFBIG;
    status = Status::kIo;
  } else if (*nbytes <= room) {
    status = read_span(fd, into, *nbytes, 0, error);
  }
  close(fd);
  return status;
}

void Files::readahead(std::vector<FileRange>* ranges) noexcept {
  std::sort(ranges->begin(), ranges->end(), [](const FileRange& a, const FileRange& b) {
    return a.file != b.file ? a.file < b.file : a.offset < b.offset;
  });
  const FileRange* at = ranges->data();
  const FileRange* const end = at + ranges->size();
  while (at < end) {
    const int32_t file = at->file;
    const FileRange* const begin = at;
    while (at < end && at->file == file) at++;
    if (file < 0 || static_cast<uint64_t>(file) >= count_) continue;
    if (mappings_ && mapped_[file] != 0) {
      readahead_mapped(begin, at);
    } else {
      readahead_loose(begin, at);
    }
  }
}

void Files::readahead_mapped(const FileRange* begin, const FileRange* end) noexcept {
  int error = 0;
  const Mapping* found = mapping(begin->file, &error);
  if (found == nullptr || !found->ours) return;
  const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  uint8_t* const address = static_cast<uint8_t*>(found->address);
  size_t first = 0, last = 0;  // the run of whole pages that is being merged
  const auto advise = [&] {
    for (; first < last; first += std::min(kAdvice, last - first)) {
      madvise(address + first, std::min(kAdvice, last - first), MADV_WILLNEED);
    }
  };
  for (; begin < end; begin++) {
    size_t length = 0;
    if (!clip(found->size, begin->offset, begin->nbytes, &length) || length == 0) continue;
    const size_t start = static_cast<size_t>(begin->offset) / page * page;
    if (start > last + kGap) {
      advise();
      first = start;
    }
    last = std::max(last, (static_cast<size_t>(begin->offset) + length + page - 1) / page * page);
  }
  advise();
}

void Files::readahead_loose(const FileRange* begin, const FileRange* end) noexcept {
  size_t size = 0;
  int error = 0;
  const int fd = open_file(begin->file, &size, &error);
  if (fd < 0) return;
  for (; begin < end; begin++) {
    size_t left = 0;
    if (!clip(size, begin->offset, begin->nbytes, &left)) continue;
    for (off_t at = static_cast<off_t>(begin->offset); left > 0;) {
      const size_t piece = std::min(kAdvice, left);
#ifdef __APPLE__
      radvisory advice{at, static_cast<int>(piece)};  // kAdvice fits an int
      fcntl(fd, F_RDADVISE, &advice);
#else
      posix_fadvise(fd, at, static_cast<off_t>(piece), POSIX_FADV_WILLNEED);
#endif
      at += static_cast<off_t>(piece);
      left -= piece;
    }
  }
  close(fd);
}

}  // namespace fastload
