#include "io/sigbus_guard.h"

#include <errno.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <new>

namespace fastload {
namespace {

std::atomic<WatchedRange*> ranges{nullptr};
struct sigaction before = {};
std::atomic<bool> passing_on{false};
std::atomic<uintptr_t> passed_last{0};
std::atomic<int> passed_again{0};

// An error that comes back so often from the same place is not mended by who was here before: faulthandler,
// for one, returns at once where it was disabled while its handler lay below ours.
constexpr int kMostPasses = 16;

// Known before the handler asks: the first map that is watched asks too.
uintptr_t page_size() noexcept {
  static const uintptr_t size = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  return size;
}

// Whether `one` watches the address. A range that changes meanwhile is another one: who reads a map keeps it.
bool watches(const WatchedRange& one, uintptr_t at, uintptr_t* begin) noexcept {
  const uint64_t version = one.version.load();
  *begin = one.begin.load();
  const size_t size = one.size.load();
  return version % 2 == 0 && one.version.load() == version && at - *begin < size;
}

// Whether a page of zeros now lies where one of ours was missing. Calls nothing that a handler may not, but
// for mmap, which is a bare system call in Linux's C libraries.
bool mended(uintptr_t at) noexcept {
  const uintptr_t page = at / page_size() * page_size();
  bool ours = false;
  for (WatchedRange* one = ranges.load(); one != nullptr; one = one->next) {
    uintptr_t begin = 0;
    if (!watches(*one, at, &begin)) continue;
    ours = true;
    size_t known = one->cut.load();
    while (page - begin < known && !one->cut.compare_exchange_weak(known, page - begin)) {
    }
  }
  return ours && mmap(reinterpret_cast<void*>(page), page_size(), PROT_READ,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) != MAP_FAILED;
}

// To who was here before, as if we were not. Where they come back here, as one does that ends by raising the
// signal again, or do not help, the process ends.
void pass_on(int number, siginfo_t* info, void* context, bool by_reading) {
  const bool informed = (before.sa_flags & SA_SIGINFO) != 0;
  if (!informed && before.sa_handler == SIG_IGN && !by_reading) return;
  const bool theirs = informed || (before.sa_handler != SIG_DFL && before.sa_handler != SIG_IGN);
  bool helps = true;
  if (by_reading) {
    const uintptr_t at = reinterpret_cast<uintptr_t>(info->si_addr);
    if (passed_last.exchange(at) != at) passed_again.store(0);
    helps = passed_again.fetch_add(1) < kMostPasses;
  }
  if (theirs && helps && !passing_on.exchange(true)) {
    if (informed) {
      before.sa_sigaction(number, info, context);
    } else {
      before.sa_handler(number);
    }
    passing_on.store(false);
    return;
  }
  signal(SIGBUS, SIG_DFL);  // an instruction that failed is run again and ends the process
  if (!by_reading) raise(number);
}

void on_bus_error(int number, siginfo_t* info, void* context) {
  const int error = errno;
  const bool by_reading = info->si_code > 0;  // not sent by a process
  if (!by_reading || !mended(reinterpret_cast<uintptr_t>(info->si_addr))) {
    pass_on(number, info, context, by_reading);
  }
  errno = error;
}

}  // namespace

Watched::Watched(const void* address, size_t size) noexcept : range_(nullptr) {
  for (WatchedRange* one = ranges.load(); one != nullptr; one = one->next) {
    bool taken = false;
    if (one->taken.compare_exchange_strong(taken, true)) {
      range_ = one;
      break;
    }
  }
  if (range_ == nullptr) {
    range_ = new (std::nothrow) WatchedRange;
    if (range_ == nullptr) return;
    range_->next = ranges.load();
    while (!ranges.compare_exchange_weak(range_->next, range_)) {
    }
  }
  range_->version.fetch_add(1);
  range_->cut.store(SIZE_MAX);
  range_->begin.store(reinterpret_cast<uintptr_t>(address));
  range_->size.store((size + page_size() - 1) / page_size() * page_size());  // the last page is read whole
  range_->version.fetch_add(1);
  install();
}

Watched::~Watched() {
  if (range_ == nullptr) return;
  range_->version.fetch_add(1);
  range_->size.store(0);
  range_->version.fetch_add(1);
  range_->taken.store(false);
}

void Watched::install() noexcept {
  struct sigaction now = {};
  if (ranges.load() == nullptr) return;
  if (sigaction(SIGBUS, nullptr, &now) == 0 && (now.sa_flags & SA_SIGINFO) != 0 &&
      now.sa_sigaction == on_bus_error) {
    return;
  }
  // Without a lock, which a fork could leave taken: of several threads one finds another's handler here.
  struct sigaction ours = {};
  ours.sa_sigaction = on_bus_error;
  ours.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;  // who was here before may raise the signal again
  sigemptyset(&ours.sa_mask);
  struct sigaction old = {};
  if (sigaction(SIGBUS, &ours, &old) != 0) return;
  if ((old.sa_flags & SA_SIGINFO) != 0 && old.sa_sigaction == on_bus_error) return;  // another thread's
  before = old;
}

}  // namespace fastload
