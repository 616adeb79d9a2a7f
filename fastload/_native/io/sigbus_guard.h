// Mapped files that are cut short, or whose disk fails, while they are read.
//
// Note [Bus errors]. Reading a page of a map that its file no longer reaches raises SIGBUS, which would end
// the process, and whoever writes a file anew cuts it short first. So the handler puts a page of zeros in the
// place of the one that is missing, as servers do with memory their clients may shrink, and notes where:
// what was read from there on is then given up (`Watched::cut`), and nothing reads there again. What is not
// ours goes to the handler that was there before.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace fastload {

// One mapped range. Its memory is never given back, as a handler may be reading it, but used again.
struct WatchedRange {
  std::atomic<bool> taken{true};
  std::atomic<uint64_t> version{0};  // odd while the others change
  std::atomic<uintptr_t> begin{0};
  std::atomic<size_t> size{0};  // 0: nothing is watched
  std::atomic<size_t> cut{SIZE_MAX};
  WatchedRange* next = nullptr;
};

// Watches a map for as long as it lives; destroy it before the map.
class Watched {
 public:
  // With no more memory it watches nothing.
  Watched(const void* address, size_t size) noexcept;
  ~Watched();
  Watched(const Watched&) = delete;
  Watched& operator=(const Watched&) = delete;

  // Offset of the first page that was found missing; SIZE_MAX: none was.
  size_t cut() const noexcept {
    return range_ == nullptr ? SIZE_MAX : range_->cut.load(std::memory_order_acquire);
  }

  // Puts the handler in its place again, where somebody has put theirs over it since. One system call; none
  // in a process that never watched anything, which keeps its own handler.
  static void install() noexcept;

 private:
  WatchedRange* range_;
};

}  // namespace fastload
