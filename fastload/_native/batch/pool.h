// The process's one thread pool.
//
// Threads are numbered. A job that asked for k threads is worked on by threads 0 to k-1 only, so that
// all the batches of a loader with k workers together never use more than k threads, and the pool is
// as large as the largest job asked for. A thread takes the oldest job that still has unstarted items
// and hands itself one item at a time, so the tail of one job does not idle the threads.
//
// success   the last thread to leave an exhausted job marks it done and wakes its waiters
// failure   run() does not throw; a job whose threads cannot be started is run by whoever waits for it
// cancel    unstarted items are dropped, running ones are waited for
// fork      a child has no threads: it forgets the parent's pool and makes its own on first use; an
//           unfinished job of the parent can be dropped there, but not waited for
// exit      shutdown() drops what is unstarted and joins the threads; a later job starts new ones
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>

namespace fastload {

// `count` items that can be done in any order and on any thread.
class Job {
 public:
  // threads == 0: the items are done by the caller of pool::wait.
  Job(int64_t count, int threads) : count_(count), threads_(threads) {}
  virtual ~Job() = default;
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;

  virtual void run(int64_t item) noexcept = 0;

  // No thread is inside, and none will enter.
  bool done() const { return done_.load(std::memory_order_acquire); }

 private:
  friend struct PoolState;
  const int64_t count_;
  int threads_;
  std::atomic<int64_t> next_{0};  // first item not handed out yet
  std::atomic<bool> done_{false};
  int inside_ = 0;           // threads at work on it; guarded by the pool's mutex
  uint64_t generation_ = 0;  // how many forks lay between the first process and the submitting one
};

namespace pool {

enum class Wait { kDone, kTimeout, kForked };

// Throws std::bad_alloc at worst.
void submit(const std::shared_ptr<Job>& job);

// Returns after at most about `timeout` plus one item. Any number of threads may wait for a job.
Wait wait(Job& job, std::chrono::milliseconds timeout);

// On return no thread of this process touches the job's buffers.
void cancel(Job& job);

// Joins all threads. To be called before the process ends.
void shutdown();

// Threads the pool holds now.
int size();

}  // namespace pool
}  // namespace fastload
