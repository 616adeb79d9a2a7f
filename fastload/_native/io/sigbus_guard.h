// Keeps the process alive when a mapped file loses pages: it was truncated, or its disk failed.
//
// Note [Bus errors]. Reading a page of a map beyond its file's end raises SIGBUS, which would end the
// process; a program that rewrites a file truncates it first. Our handler maps a page of zeros over the
// missing page and stores its offset (`SigbusGuard::first_missing`). The reader then discards what it read
// from there on and does not read that part again. Servers handle memory that their clients may shrink in the
// same way. A bus error at any other address goes to the handler that was installed before ours.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace fastload {

// One mapped range. Its memory is reused but never freed, because a handler may be reading it.
struct GuardedRange {
  std::atomic<bool> taken{true};
  std::atomic<uint64_t> version{0};  // odd while the fields below change
  std::atomic<uintptr_t> begin{0};
  std::atomic<size_t> size{0};  // 0: nothing is guarded
  std::atomic<size_t> first_missing{SIZE_MAX};
  GuardedRange* next = nullptr;
};

// Guards a map for its lifetime; destroy it before the map.
class SigbusGuard {
 public:
  // If memory runs out, it guards nothing.
  SigbusGuard(const void* address, size_t size) noexcept;
  ~SigbusGuard();
  SigbusGuard(const SigbusGuard&) = delete;
  SigbusGuard& operator=(const SigbusGuard&) = delete;

  // Offset of the first page that was found missing; SIZE_MAX: none was.
  size_t first_missing() const noexcept {
    return range_ == nullptr ? SIZE_MAX : range_->first_missing.load(std::memory_order_acquire);
  }

  // Installs the handler again if another library replaced it. One system call; none in a process that never
  // guarded a map, whose own handler stays.
  static void install() noexcept;

 private:
  GuardedRange* range_;
};

}  // namespace fastload
