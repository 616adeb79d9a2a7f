#include "cut_short.h"

#include <errno.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <mutex>
#include <new>

namespace fastload {
namespace {

std::atomic<WatchedRange*> ranges{nullptr};
std::atomic<bool> passed_on{false};
struct sigaction before = {};
size_t page_size = 4096;
std::mutex installing;

// Whether a page of zeros now lies where one of ours was missing. Calls nothing that a handler may not, but
// for mmap, which is a bare system call in Linux's C libraries.
bool mended(uintptr_t at) noexcept {
  for (WatchedRange* one = ranges.load(std::memory_order_acquire); one != nullptr; one = one->next) {
    const uintptr_t begin = one->begin.load(std::memory_order_acquire);
    if (at - begin >= one->size.load(std::memory_order_acquire)) continue;
    const uintptr_t page = at / page_size * page_size;
    const size_t offset = page - begin;
    size_t known = one->cut.load(std::memory_order_acquire);
    while (offset < known && !one->cut.compare_exchange_weak(known, offset)) {
    }
    void* const zeros = mmap(reinterpret_cast<void*>(page), page_size, PROT_READ,
                             MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    return zeros != MAP_FAILED;
  }
  return false;
}

void on_bus_error(int number, siginfo_t* info, void*) {
  const int error = errno;
  const bool by_reading = info->si_code > 0;  // not sent by a process
  if (!by_reading || !mended(reinterpret_cast<uintptr_t>(info->si_addr))) {
    // As it would have gone without us: the instruction is run again, and its error handled by who was here
    // before. Should that come back to us, the process ends.
    if (passed_on.exchange(true)) {
      signal(SIGBUS, SIG_DFL);
    } else {
      sigaction(SIGBUS, &before, nullptr);
    }
    if (!by_reading) raise(number);
  }
  errno = error;
}

}  // namespace

Watched::Watched(const void* address, size_t size) noexcept : range_(nullptr) {
  for (WatchedRange* one = ranges.load(std::memory_order_acquire); one != nullptr; one = one->next) {
    bool taken = false;
    if (one->taken.compare_exchange_strong(taken, true)) {
      range_ = one;
      break;
    }
  }
  if (range_ == nullptr) {
    range_ = new (std::nothrow) WatchedRange;
    if (range_ == nullptr) return;
    range_->next = ranges.load(std::memory_order_acquire);
    while (!ranges.compare_exchange_weak(range_->next, range_)) {
    }
  }
  range_->cut.store(SIZE_MAX, std::memory_order_release);
  range_->begin.store(reinterpret_cast<uintptr_t>(address), std::memory_order_release);
  range_->size.store(size, std::memory_order_release);
  install();
}

Watched::~Watched() {
  if (range_ == nullptr) return;
  range_->size.store(0, std::memory_order_release);
  range_->taken.store(false, std::memory_order_release);
}

void Watched::install() noexcept {
  struct sigaction now = {};
  if (sigaction(SIGBUS, nullptr, &now) == 0 && (now.sa_flags & SA_SIGINFO) != 0 &&
      now.sa_sigaction == on_bus_error) {
    return;
  }
  const std::lock_guard<std::mutex> lock(installing);
  page_size = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  struct sigaction ours = {};
  ours.sa_sigaction = on_bus_error;
  ours.sa_flags = SA_SIGINFO | SA_ONSTACK;
  sigemptyset(&ours.sa_mask);
  struct sigaction old = {};
  if (sigaction(SIGBUS, &ours, &old) != 0) return;
  if ((old.sa_flags & SA_SIGINFO) != 0 && old.sa_sigaction == on_bus_error) return;  // another thread's
  before = old;
  passed_on.store(false);
}

}  // namespace fastload
