#include "jpeg/huffman_index.h"

#include <sys/mman.h>

#include <cstring>
#include <new>

#include "io/crc32c.h"

namespace fastload {
namespace {

// MappedArray is reserved in units of this many bytes; places count units.
constexpr size_t kUnit = 16;
constexpr uint32_t kNone = 0, kClaimed = 1;  // not places of blocks: those lie behind the header
constexpr uint32_t kBusy = 1u << 31;         // an append is in progress
constexpr size_t kHeader = 256;

// Places and bit positions have 32 bits.
constexpr uint64_t kMostUnits = uint64_t{1} << 32;
constexpr size_t kMostBytes = size_t{1} << 29;

// The most points of a file: enough for a hundred megapixels.
constexpr int kMostPoints = 65536;

}  // namespace

struct EntryTable::Header {
  alignas(64) std::atomic<uint64_t> used;  // units
  alignas(64) std::atomic<uint64_t> count, begin;
};

struct EntryTable::Block {
  std::atomic<uint32_t> count;  // and kBusy
  uint32_t room;
  uint64_t unused;
  EntryPoint* points() { return reinterpret_cast<EntryPoint*>(this + 1); }
};

EntryTable::EntryTable(int64_t records, size_t limit) : base_(nullptr), size_(0), records_(records) {
  static_assert(sizeof(Header) <= kHeader && sizeof(Block) == kUnit && sizeof(EntryPoint) == kUnit);
  // Only lock-free atomics work between processes.
  static_assert(std::atomic<uint64_t>::is_always_lock_free && std::atomic<uint32_t>::is_always_lock_free);
  const size_t table = (kHeader + static_cast<size_t>(records) * sizeof(uint32_t) + kUnit - 1) / kUnit;
  const size_t units = limit / kUnit < kMostUnits ? limit / kUnit : static_cast<size_t>(kMostUnits);
  // Shared with children that are forked later: the points they find serve the next ones.
  void* const mapped = units <= table ? MAP_FAILED
                                      : mmap(nullptr, units * kUnit, PROT_READ | PROT_WRITE,
                                             MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapped == MAP_FAILED) {
    records_ = 0;
    return;
  }
  size_ = units * kUnit;
  base_ = static_cast<uint8_t*>(mapped);
  header()->begin.store(table, std::memory_order_relaxed);
  header()->used.store(table, std::memory_order_relaxed);
#ifdef MADV_DONTDUMP
  madvise(base_, size_, MADV_DONTDUMP);
#endif
}

EntryTable::~EntryTable() {
  if (base_) munmap(base_, size_);
}

EntryTable::Header* EntryTable::header() const {
  return reinterpret_cast<Header*>(base_);
}

std::atomic<uint32_t>* EntryTable::place(int64_t record) const {
  return reinterpret_cast<std::atomic<uint32_t>*>(base_ + kHeader) + record;
}

EntryTable::Block* EntryTable::block(uint32_t place) const {
  return reinterpret_cast<Block*>(base_ + size_t{place} * kUnit);
}

uint32_t EntryTable::reserve(size_t nbytes) noexcept {
  const uint64_t units = (nbytes + kUnit - 1) / kUnit, all = size_ / kUnit;
  std::atomic<uint64_t>& used = header()->used;
  uint64_t at = used.load(std::memory_order_relaxed);
  do {
    if (units > all - at) return kNone;
  } while (!used.compare_exchange_weak(at, at + units, std::memory_order_relaxed));
  return static_cast<uint32_t>(at);
}

EntryList EntryTable::find(int64_t record) const noexcept {
  if (record < 0 || record >= records_) return {};
  const uint32_t at = place(record)->load(std::memory_order_acquire);
  if (at == kNone || at == kClaimed) return {};
  Block* const found = block(at);
  const uint32_t count = found->count.load(std::memory_order_acquire) & ~kBusy;
  return {found->points(), static_cast<int>(count), at};
}

void EntryTable::append(int64_t record, const EntryList& known, const EntryPoint* points, int count,
                        int most) noexcept {
  if (record < 0 || record >= records_ || count <= 0 || known.count + count > most) return;
  const size_t nbytes = static_cast<size_t>(count) * sizeof(EntryPoint);
  if (known.place != kNone) {
    Block* const old = block(known.place);
    uint32_t expected = static_cast<uint32_t>(known.count);
    if (expected + static_cast<uint32_t>(count) > old->room ||
        !old->count.compare_exchange_strong(expected, expected | kBusy, std::memory_order_acquire)) {
      return;
    }
    std::memcpy(static_cast<void*>(old->points() + known.count), points, nbytes);
    old->count.store(expected + static_cast<uint32_t>(count), std::memory_order_release);
    return;
  }
  uint32_t expected = kNone;
  if (!place(record)->compare_exchange_strong(expected, kClaimed, std::memory_order_acquire)) return;
  // Room for all points that the file can have, because crops that reach further down add to them.
  const uint32_t at = reserve(sizeof(Block) + static_cast<size_t>(most) * sizeof(EntryPoint));
  if (at != kNone) {
    Block* const made = block(at);
    made->room = static_cast<uint32_t>(most);
    std::memcpy(static_cast<void*>(made->points()), points, nbytes);
    made->count.store(static_cast<uint32_t>(count), std::memory_order_relaxed);
    header()->count.fetch_add(1, std::memory_order_relaxed);
  }
  place(record)->store(at, std::memory_order_release);
}

void EntryTable::forget(int64_t record, const EntryList& known) noexcept {
  if (record < 0 || record >= records_ || known.place == kNone) return;
  uint32_t expected = known.place;
  if (place(record)->compare_exchange_strong(expected, kNone, std::memory_order_acq_rel))
    header()->count.fetch_sub(1, std::memory_order_relaxed);
}

int64_t EntryTable::used() const noexcept {
  if (!base_) return 0;
  const uint64_t used = header()->used.load(std::memory_order_relaxed);
  return static_cast<int64_t>((used - header()->begin.load(std::memory_order_relaxed)) * kUnit);
}

int64_t EntryTable::count() const noexcept {
  return base_ ? static_cast<int64_t>(header()->count.load(std::memory_order_relaxed)) : 0;
}

void FileEntryPoints::begin(const EntryRef& ref, const uint8_t* file, size_t nbytes, const uint8_t* data,
                            int most) {
  end();
  if (!ref.table || nbytes < kSmall || nbytes > kMostBytes || most <= 0 || most > kMostPoints) return;
  try {
    // Now: libjpeg may be among the callers of add(), and no exception may pass through it.
    found_.reserve(static_cast<size_t>(most));
  } catch (const std::bad_alloc&) {
    return;
  }
  ref_ = ref;
  list_ = ref.table->find(ref.record);
  file_ = file;
  end_ = file + nbytes;
  data_ = data;
  most_ = most;
  rewind();
}

void FileEntryPoints::end() {
  list_ = {};
  found_.clear();
  most_ = 0;
}

void FileEntryPoints::rewind() {
  summed_ = file_;
  walked_ = data_;
  sum_ = stuffed_ = 0;
}

// The checksum of a point whose byte lies in the file, at or after that of the last one checked.
uint32_t FileEntryPoints::checked(const EntryPoint& point) {
  const uint8_t* const end = file_ + (point.bit >> 3) + 1;
  sum_ = crc32c(sum_, summed_, static_cast<size_t>(end - summed_));
  summed_ = end;
  return crc32c(sum_, &point.bit, sizeof(point) - offsetof(EntryPoint, bit));
}

bool FileEntryPoints::holds(int which) {
  if (which >= list_.count) return which < known();
  const EntryPoint& point = list_.points[which];
  const uint8_t* const byte = file_ + (point.bit >> 3);
  const bool inside = byte < end_ && byte + 1 >= summed_ && byte - data_ >= point.stuffed;
  if (inside && checked(point) == point.check) {
    walked_ = byte;
    stuffed_ = point.stuffed;
    return true;
  }
  ref_.table->forget(ref_.record, list_);
  list_ = {};
  found_.clear();
  rewind();
  return false;
}

void FileEntryPoints::add(int64_t bit, const int* prediction) {
  // Counts stuffed bytes from the last point to the byte of the file that contains `bit`.
  const uint8_t* at = walked_;
  uint32_t stuffed = stuffed_;
  for (int64_t left = (bit >> 3) - (at - data_ - stuffed); left > 0;) {
    if (left > end_ - at) return;
    const void* const found = std::memchr(at, 0xFF, static_cast<size_t>(left));
    if (!found) {
      at += left;
      break;
    }
    const uint8_t* const zero = static_cast<const uint8_t*>(found) + 1;
    left -= zero - at;
    at = zero + 1;
    stuffed++;
  }
  if (at >= end_ || stuffed > UINT16_MAX) return;
  EntryPoint point;
  point.bit = static_cast<uint32_t>(at - file_) << 3 | static_cast<uint32_t>(bit & 7);
  for (int c = 0; c < 3; c++) point.dc[c] = static_cast<int16_t>(prediction[c]);
  point.stuffed = static_cast<uint16_t>(stuffed);
  point.check = checked(point);
  found_.push_back(point);
  walked_ = at;
  stuffed_ = stuffed;
}

void FileEntryPoints::publish() {
  if (!found_.empty())
    ref_.table->append(ref_.record, list_, found_.data(), static_cast<int>(found_.size()), most_);
  end();
}

}  // namespace fastload
