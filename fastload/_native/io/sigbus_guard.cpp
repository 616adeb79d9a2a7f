#include "io/sigbus_guard.h"

#include <errno.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <new>

namespace fastload {
namespace {

std::atomic<GuardedRange*> ranges{nullptr};
struct sigaction previous = {};
std::atomic<bool> in_previous{false};
std::atomic<uintptr_t> last_address{0};
std::atomic<int> repeats{0};

// After this many errors in a row at the same address, the previous handler does not help and the process
// ends. faulthandler, for example, returns at once if it was disabled while its handler was below ours.
constexpr int kMostRepeats = 16;

// Asked for when the core is loaded, not in a handler.
const uintptr_t page_nbytes = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));

// Whether `range` guards the address. A range that is changing belongs to another map: readers keep theirs.
bool guards(const GuardedRange& range, uintptr_t at, uintptr_t* begin) noexcept {
  const uint64_t version = range.version.load();
  *begin = range.begin.load();
  const size_t size = range.size.load();
  return version % 2 == 0 && range.version.load() == version && at - *begin < size;
}

// Maps a page of zeros over a missing page of a guarded map. Calls only async-signal-safe functions, and
// mmap, which is a bare system call in Linux's C libraries.
bool replace_missing_page(uintptr_t at) noexcept {
  const uintptr_t page = at / page_nbytes * page_nbytes;
  bool ours = false;
  for (GuardedRange* range = ranges.load(); range != nullptr; range = range->next) {
    uintptr_t begin = 0;
    if (!guards(*range, at, &begin)) continue;
    ours = true;
    size_t known = range->first_missing.load();
    while (page - begin < known && !range->first_missing.compare_exchange_weak(known, page - begin)) {
    }
  }
  // The map may be one that is written to; nobody writes to the others.
  return ours && mmap(reinterpret_cast<void*>(page), page_nbytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) != MAP_FAILED;
}

// Calls the previous handler as if ours did not exist. Ends the process if that handler comes back here
// (faulthandler does so by raising the signal again) or does not help.
void call_previous(int number, siginfo_t* info, void* context, bool by_access) {
  const bool informed = (previous.sa_flags & SA_SIGINFO) != 0;
  if (!informed && previous.sa_handler == SIG_IGN && !by_access) return;
  const bool theirs = informed || (previous.sa_handler != SIG_DFL && previous.sa_handler != SIG_IGN);
  bool helps = true;
  if (by_access) {
    const uintptr_t at = reinterpret_cast<uintptr_t>(info->si_addr);
    if (last_address.exchange(at) != at) repeats.store(0);
    helps = repeats.fetch_add(1) < kMostRepeats;
  }
  if (theirs && helps && !in_previous.exchange(true)) {
    if (informed) {
      previous.sa_sigaction(number, info, context);
    } else {
      previous.sa_handler(number);
    }
    in_previous.store(false);
    return;
  }
  signal(SIGBUS, SIG_DFL);  // a failed instruction is run again, and then ends the process
  if (!by_access) raise(number);
}

void on_bus_error(int number, siginfo_t* info, void* context) {
  const int error = errno;
  const bool by_access = info->si_code > 0;  // not sent by a process
  if (!by_access || !replace_missing_page(reinterpret_cast<uintptr_t>(info->si_addr))) {
    call_previous(number, info, context, by_access);
  }
  errno = error;
}

}  // namespace

SigbusGuard::SigbusGuard(const void* address, size_t size) noexcept : range_(nullptr) {
  for (GuardedRange* range = ranges.load(); range != nullptr; range = range->next) {
    bool taken = false;
    if (range->taken.compare_exchange_strong(taken, true)) {
      range_ = range;
      break;
    }
  }
  if (range_ == nullptr) {
    range_ = new (std::nothrow) GuardedRange;
    if (range_ == nullptr) return;
    range_->next = ranges.load();
    while (!ranges.compare_exchange_weak(range_->next, range_)) {
    }
  }
  range_->version.fetch_add(1);
  range_->first_missing.store(SIZE_MAX);
  range_->begin.store(reinterpret_cast<uintptr_t>(address));
  range_->size.store((size + page_nbytes - 1) / page_nbytes * page_nbytes);  // to the end of the last page
  range_->version.fetch_add(1);
  install();
}

SigbusGuard::~SigbusGuard() {
  if (range_ == nullptr) return;
  range_->version.fetch_add(1);
  range_->size.store(0);
  range_->version.fetch_add(1);
  range_->taken.store(false);
}

void SigbusGuard::install() noexcept {
  struct sigaction now = {};
  if (ranges.load() == nullptr) return;
  if (sigaction(SIGBUS, nullptr, &now) == 0 && (now.sa_flags & SA_SIGINFO) != 0 &&
      now.sa_sigaction == on_bus_error) {
    return;
  }
  // Without a lock, which a fork could leave locked. Of several threads, all but one find our handler here.
  struct sigaction ours = {};
  ours.sa_sigaction = on_bus_error;
  ours.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;  // the previous handler may raise the signal again
  sigemptyset(&ours.sa_mask);
  struct sigaction old = {};
  if (sigaction(SIGBUS, &ours, &old) != 0) return;
  if ((old.sa_flags & SA_SIGINFO) != 0 && old.sa_sigaction == on_bus_error)
    return;  // another thread installed it
  previous = old;
}

}  // namespace fastload
