#include "batch/pool.h"

#include <pthread.h>
#include <signal.h>

#include <algorithm>
#include <condition_variable>
#include <cstdio>
#include <deque>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

#include "base/clock.h"

namespace fastload {

// Never start more threads than this, whatever a job asks for.
constexpr int kMaxThreads = 1024;

// Blocks all signals in its scope but a thread's own errors: if those were blocked, they would end the
// process without running any handler (io/sigbus_guard.h, faulthandler).
class SignalsBlocked {
 public:
  SignalsBlocked() {
    sigset_t all;
    sigfillset(&all);
    for (const int fault : {SIGBUS, SIGSEGV, SIGFPE, SIGILL}) sigdelset(&all, fault);
    pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~SignalsBlocked() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  SignalsBlocked(const SignalsBlocked&) = delete;
  SignalsBlocked& operator=(const SignalsBlocked&) = delete;

 private:
  sigset_t before_;
};

struct PoolState {
  using Clock = std::chrono::steady_clock;

  std::mutex mutex;
  std::condition_variable work;      // signals a new job, or `stopping`
  std::condition_variable finished;  // signals that a job is done
  std::deque<std::shared_ptr<Job>> queue;
  std::vector<std::thread> threads;
  bool stopping = false;

  static bool exhausted(const Job& job) { return job.next_.load(std::memory_order_relaxed) >= job.count_; }

  void finish(Job& job) {
    job.done_.store(true, std::memory_order_release);
    finished.notify_all();
  }

  void leave(Job& job) {
    job.active_threads_--;
    if (job.active_threads_ == 0 && exhausted(job)) finish(job);
  }

  // The oldest job that thread `index` may work on. Removes exhausted jobs from the queue on the way.
  std::shared_ptr<Job> pick(int index) {
    for (auto it = queue.begin(); it != queue.end();) {
      if (exhausted(**it)) {
        it = queue.erase(it);
      } else if (index < (*it)->threads_) {
        return *it;
      } else {
        ++it;
      }
    }
    return nullptr;
  }

  static void drain(Job& job) {
    for (;;) {
      const int64_t item = job.next_.fetch_add(1, std::memory_order_relaxed);
      if (item >= job.count_) return;
      job.run(item);
    }
  }

  void thread_main(int index) {
    char name[16];
    std::snprintf(name, sizeof name, "fastload-%d", index);
#ifdef __APPLE__
    pthread_setname_np(name);
#else
    pthread_setname_np(pthread_self(), name);
#endif
    std::unique_lock<std::mutex> lock(mutex);
    while (!stopping) {
      std::shared_ptr<Job> job = pick(index);
      if (!job) {
        work.wait(lock);
        continue;
      }
      job->active_threads_++;
      lock.unlock();
      const int64_t begin_ns = thread_cpu_ns();
      drain(*job);
      job->cpu_ns_.fetch_add(thread_cpu_ns() - begin_ns, std::memory_order_relaxed);
      lock.lock();
      leave(*job);
      if (exhausted(*job)) {
        // Dropping the last reference may free the job: do that without the mutex.
        auto it = std::find(queue.begin(), queue.end(), job);
        if (it != queue.end()) queue.erase(it);
        lock.unlock();
        job.reset();
        lock.lock();
      }
    }
  }

  // Starts threads until there are `count`; the caller holds the mutex.
  void grow(int count) {
    count = std::min(count, kMaxThreads);
    if (static_cast<int>(threads.size()) >= count) return;
    const SignalsBlocked blocked;  // in the new threads: signals are left to Python's
    try {
      threads.reserve(static_cast<size_t>(count));
      while (static_cast<int>(threads.size()) < count) {
        const int index = static_cast<int>(threads.size());
        threads.emplace_back([this, index] { thread_main(index); });
      }
    } catch (const std::system_error&) {
      // The system grants no more threads: run the job on those that exist.
    }
  }

  void submit(const std::shared_ptr<Job>& job, uint64_t generation) {
    job->generation_ = generation;
    if (job->count_ <= 0) {
      job->done_.store(true, std::memory_order_release);
      return;
    }
    if (job->threads_ <= 0) return;
    std::lock_guard<std::mutex> lock(mutex);
    if (!stopping) grow(job->threads_);
    if (stopping || threads.empty()) {
      job->threads_ = 0;
      return;
    }
    queue.push_back(job);
    work.notify_all();
  }

  pool::Wait wait(Job& job, std::chrono::milliseconds timeout, uint64_t generation) {
    if (job.done()) return pool::Wait::kDone;
    if (job.generation_ != generation) return pool::Wait::kForked;
    const Clock::time_point deadline = Clock::now() + timeout;
    std::unique_lock<std::mutex> lock(mutex);
    if (job.threads_ <= 0 && !exhausted(job)) {
      job.active_threads_++;
      lock.unlock();
      do {
        const int64_t item = job.next_.fetch_add(1, std::memory_order_relaxed);
        if (item >= job.count_) break;
        job.run(item);
      } while (Clock::now() < deadline);
      lock.lock();
      leave(job);
    }
    const bool done = finished.wait_until(lock, deadline, [&job] { return job.done(); });
    return done ? pool::Wait::kDone : pool::Wait::kTimeout;
  }

  void cancel(Job& job, uint64_t generation) {
    if (job.done() || job.generation_ != generation) return;
    std::shared_ptr<Job> dropped;  // freed without the mutex
    std::unique_lock<std::mutex> lock(mutex);
    job.next_.store(job.count_, std::memory_order_relaxed);
    for (auto it = queue.begin(); it != queue.end(); ++it) {
      if (it->get() == &job) {
        dropped = std::move(*it);
        queue.erase(it);
        break;
      }
    }
    if (job.done()) return;
    if (job.active_threads_ == 0) {
      finish(job);
      return;
    }
    finished.wait(lock, [&job] { return job.done(); });
  }

  void shutdown() {
    std::vector<std::thread> joining;
    std::deque<std::shared_ptr<Job>> dropped;
    {
      std::lock_guard<std::mutex> lock(mutex);
      stopping = true;
      joining.swap(threads);
      dropped.swap(queue);
      for (const auto& job : dropped) {
        job->next_.store(job->count_, std::memory_order_relaxed);
        if (job->active_threads_ == 0 && !job->done()) finish(*job);
      }
      work.notify_all();
    }
    for (std::thread& thread : joining) thread.join();
    std::lock_guard<std::mutex> lock(mutex);
    stopping = false;
  }
};

namespace pool {
namespace {

// Never freed: threads may still use it while the process ends, and a forked child must not touch its
// parent's mutexes, because another thread may have held one at the time of the fork.
std::atomic<PoolState*> current{nullptr};
std::atomic<uint64_t> generation{0};

void forget_after_fork() {
  current.store(nullptr, std::memory_order_relaxed);
  generation.fetch_add(1, std::memory_order_relaxed);
}

PoolState& state() {
  static const int registered = pthread_atfork(nullptr, nullptr, forget_after_fork);
  (void)registered;
  PoolState* existing = current.load(std::memory_order_acquire);
  if (existing != nullptr) return *existing;
  PoolState* fresh = new PoolState;
  if (current.compare_exchange_strong(existing, fresh, std::memory_order_acq_rel)) return *fresh;
  delete fresh;
  return *existing;
}

}  // namespace

void submit(const std::shared_ptr<Job>& job) {
  PoolState& pool = state();
  pool.submit(job, generation.load());
}
Wait wait(Job& job, std::chrono::milliseconds timeout) {
  return state().wait(job, timeout, generation.load());
}
void cancel(Job& job) {
  state().cancel(job, generation.load());
}
void shutdown() {
  if (current.load() != nullptr) state().shutdown();
}
int size() {
  PoolState& pool = state();
  std::lock_guard<std::mutex> lock(pool.mutex);
  return static_cast<int>(pool.threads.size());
}

}  // namespace pool
}  // namespace fastload
