// The process's only thread pool.
//
// Threads are numbered. A job that asks for k threads runs on threads 0 to k-1 only. So all batches of a
// loader with k workers together never use more than k threads, and the pool grows to the largest job's
// request. Each thread takes the oldest job that still has unstarted items, one item at a time, so threads do
// not idle while a job finishes.
//
// success   the last thread to leave an exhausted job marks it done and wakes its waiters
// failure   run() does not throw; if no thread can be started, the thread that waits for the job runs it
// cancel    drops unstarted items and waits for running ones
// fork      a child has no threads: it abandons the parent's pool and creates its own on first use. It can
// drop
//           an unfinished job of the parent, but not wait for it
// exit      shutdown() drops unstarted items and joins the threads; a later job starts new ones
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>

namespace fastload {

// `count` items that may run in any order and on any thread.
class Job {
 public:
  // threads == 0: the caller of pool::wait runs the items.
  Job(int64_t count, int threads) : count_(count), threads_(threads) {}
  virtual ~Job() = default;
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;

  virtual void run(int64_t item) noexcept = 0;

  // True once no thread works on it and none will.
  bool done() const { return done_.load(std::memory_order_acquire); }

  // CPU time that the pool's threads spent on it. Complete once it is done.
  int64_t cpu_ns() const { return cpu_ns_.load(std::memory_order_relaxed); }

 private:
  friend struct PoolState;
  const int64_t count_;
  int threads_;
  std::atomic<int64_t> next_{0};  // the first unstarted item
  std::atomic<bool> done_{false};
  std::atomic<int64_t> cpu_ns_{0};
  int active_threads_ = 0;   // threads that work on it; guarded by the pool's mutex
  uint64_t generation_ = 0;  // number of forks between the first process and the one that submitted it
};

namespace pool {

enum class Wait { kDone, kTimeout, kForked };

// Throws only std::bad_alloc.
void submit(const std::shared_ptr<Job>& job);

// Returns after about `timeout` plus one item at most. Any number of threads may wait for a job.
Wait wait(Job& job, std::chrono::milliseconds timeout);

// When it returns, no thread of this process uses the job's buffers.
void cancel(Job& job);

// Joins all threads. Call it before the process ends.
void shutdown();

// Number of threads in the pool now.
int size();

}  // namespace pool
}  // namespace fastload
