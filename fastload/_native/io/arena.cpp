#include "io/arena.h"

#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <stdexcept>

namespace fastload {
namespace {

constexpr uint64_t kMagic = 0x31414e4552414c46;  // "FLARENA1"

// Records are aligned to cache lines.
constexpr uint64_t kAlignment = 64;

// The layout of Entry::place: the record's offset in the low bits, its kind above.
constexpr int kKindShift = 48;
constexpr int kConvertedShift = 50;
constexpr uint64_t kOffsetMask = (uint64_t{1} << kKindShift) - 1;
constexpr uint64_t kEmpty = 0, kClaimed = 1;  // not offsets of records: those lie behind the header

constexpr uint64_t kMaxBytes = uint64_t{1} << 30;

}  // namespace

struct Arena::Header {
  uint64_t magic, records, begin, size;
  alignas(64) std::atomic<uint64_t> used;   // offset of the free room
  alignas(64) std::atomic<uint64_t> full;   // 1: a record did not fit
  alignas(64) std::atomic<uint64_t> count;  // records published
};

struct Arena::Entry {
  std::atomic<uint64_t> place;
  std::atomic<uint32_t> nbytes;
  std::atomic<uint32_t> sides;  // width | height << 16
};

Arena::Arena(int fd, bool lock) : base_(nullptr), size_(0), records_(0), lock_(lock) {
  static_assert(sizeof(Header) <= kHeader && sizeof(Entry) == kEntry);
  // Only lock-free atomics work between processes.
  static_assert(std::atomic<uint64_t>::is_always_lock_free && std::atomic<uint32_t>::is_always_lock_free);
  struct stat info;
  if (fstat(fd, &info) != 0 || info.st_size < static_cast<off_t>(kHeader)) {
    throw std::runtime_error("arena: expected a memory file with a header");
  }
  size_ = static_cast<size_t>(info.st_size);
  void* const mapped = mmap(nullptr, size_, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, 0);
  if (mapped == MAP_FAILED) throw std::bad_alloc();
  base_ = static_cast<uint8_t*>(mapped);
  const Header& h = *header();
  const bool sound = h.magic == kMagic && h.size == size_ && h.begin >= kHeader && h.begin <= size_ &&
                     h.records <= (h.begin - kHeader) / kEntry;
  if (!sound) {
    munmap(base_, size_);
    throw std::runtime_error("arena: expected a header that fits its memory file");
  }
  records_ = static_cast<int64_t>(h.records);
#ifdef MADV_DONTDUMP
  madvise(base_, size_, MADV_DONTDUMP);  // keep it out of core dumps
#endif
}

Arena::~Arena() {
  munmap(base_, size_);
}

Arena::Header* Arena::header() const {
  return reinterpret_cast<Header*>(base_);
}

Arena::Entry* Arena::entry(int64_t record) const {
  return reinterpret_cast<Entry*>(base_ + kHeader) + record;
}

bool Arena::find(int64_t record, CachedRecord* cached) const noexcept {
  if (record < 0 || record >= records_) return false;
  const Entry& found = *entry(record);
  const uint64_t place = found.place.load(std::memory_order_acquire);
  if (place == kEmpty || place == kClaimed) return false;
  const uint32_t sides = found.sides.load(std::memory_order_relaxed);
  cached->offset = static_cast<int64_t>(place & kOffsetMask);
  cached->nbytes = found.nbytes.load(std::memory_order_relaxed);
  cached->width = static_cast<int>(sides & 0xFFFF);
  cached->height = static_cast<int>(sides >> 16);
  cached->kind = static_cast<Kind>(place >> kKindShift & 3);
  cached->converted = (place >> kConvertedShift & 1) != 0;
  return true;
}

bool Arena::claim(int64_t record) noexcept {
  if (record < 0 || record >= records_ || full()) return false;
  uint64_t expected = kEmpty;
  return entry(record)->place.compare_exchange_strong(expected, kClaimed, std::memory_order_acq_rel);
}

void Arena::release(int64_t record) noexcept {
  entry(record)->place.store(kEmpty, std::memory_order_release);
}

bool Arena::reserve(size_t nbytes, uint64_t* offset) noexcept {
  Header& h = *header();
  uint64_t used = h.used.load(std::memory_order_relaxed);
  do {
    if (used > size_ || nbytes > size_ - used) {
      h.full.store(1, std::memory_order_relaxed);
      return false;
    }
    *offset = used;
  } while (!h.used.compare_exchange_weak(used, (used + nbytes + kAlignment - 1) / kAlignment * kAlignment,
                                         std::memory_order_relaxed));
  return true;
}

bool Arena::put(int64_t record, const uint8_t* data, size_t nbytes, Kind kind, int width, int height,
                bool converted) noexcept {
  uint64_t offset = 0;
  const bool fits = nbytes <= kMaxBytes && width >= 0 && height >= 0 && width <= 0xFFFF && height <= 0xFFFF;
  if (!fits || !reserve(nbytes, &offset)) {
    release(record);
    return false;
  }
  std::memcpy(base_ + offset, data, nbytes);
  if (lock_.load(std::memory_order_relaxed)) {
    // At the system's limit, stop locking.
    if (mlock(base_ + offset, nbytes) == 0) {
      locked_.fetch_add(static_cast<int64_t>(nbytes), std::memory_order_relaxed);
    } else {
      lock_.store(false, std::memory_order_relaxed);
    }
  }
  Entry& cached = *entry(record);
  cached.nbytes.store(static_cast<uint32_t>(nbytes), std::memory_order_relaxed);
  cached.sides.store(static_cast<uint32_t>(width) | static_cast<uint32_t>(height) << 16,
                     std::memory_order_relaxed);
  const uint64_t what = static_cast<uint64_t>(kind) << kKindShift | uint64_t{converted} << kConvertedShift;
  cached.place.store(offset | what, std::memory_order_release);
  header()->count.fetch_add(1, std::memory_order_relaxed);
  return true;
}

bool Arena::full() const noexcept {
  return header()->full.load(std::memory_order_relaxed) != 0;
}
int64_t Arena::used() const noexcept {
  return static_cast<int64_t>(header()->used.load(std::memory_order_relaxed) - header()->begin);
}
int64_t Arena::count() const noexcept {
  return static_cast<int64_t>(header()->count.load(std::memory_order_relaxed));
}
int64_t Arena::locked() const noexcept {
  return locked_.load(std::memory_order_relaxed);
}

}  // namespace fastload
