// An emulated CUDA: as much of libcudart as torch calls, over host memory. Shared by its parts.
//
// A stream is a queue that a thread of its own runs, late or at once, as a random number says; a
// copy reads and writes when it runs. Memory of the device lies at addresses that the host cannot
// read: what runs in a stream reaches it at another ("shadow") address. What would be a silent fault
// on a device (a copy out of memory that is pinned no more, into memory that was freed) ends the
// process with a word about it.
#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace emulated {

constexpr int kDevices = 2;
constexpr size_t kMemory = size_t{4} << 30;  // of each device
constexpr size_t kPage = size_t{2} << 20;

struct Stream;

// A point of a stream that an event was recorded at.
struct Point {
  Stream* stream;
  uint64_t number;  // of the operation behind which it is
  bool reached = false;
  std::chrono::steady_clock::time_point at{};
};

struct Operation {
  std::function<void()> run;
  std::shared_ptr<Point> awaited;   // begins when that is reached
  std::shared_ptr<Point> recorded;  // reached when this has ended
};

struct Stream {
  Stream(int device, int priority, uint64_t seed) : device(device), priority(priority), random(seed) {}

  int device;
  int priority;
  std::deque<Operation> queue;
  std::condition_variable wake;           // there is something in the queue, or the host waits
  uint64_t put = 0, done = 0, urged = 0;  // operations; up to which one the host waits for
  bool started = false, gone = false;
  std::mt19937_64 random;
  int pace = 0, steps = 0;  // how late it is now, and for how many more operations
};

struct Device {
  bool context = false;
  size_t used = 0;
  Stream* legacy;
  std::vector<Stream*> streams;
};

// All of the state, and the lock of all of it.
struct State {
  std::mutex lock;
  std::condition_variable reached;  // some stream has come further
  int waiting = 0;                  // for that
  Device devices[kDevices];
  bool ended = false;
  bool counts = false;  // faults, instead of ending the process
  int faults = 0;
  pid_t pid;
  uint64_t seed;
  std::string pace;
};

State& state();
void fault(const char* format, ...);  // ends the process, or is counted (the lock is held)

// What a runtime call returns; an error is also this thread's last one.
cudaError_t said(cudaError_t status);
cudaError_t usable();  // cudaSuccess, or why nothing can be called in this process
int current();         // this thread's device
void touch();          // makes a context on it

// --- streams (the lock is held) ---
using Lock = std::unique_lock<std::mutex>;
Stream* stream_of(cudaStream_t handle);  // nullptr where there is none
Stream* make_stream(int device, int priority);
std::shared_ptr<Point> put(Stream* stream, Operation operation);
void urge(Stream* stream, uint64_t number);
cudaError_t wait(Lock& lock, std::shared_ptr<Point> point);
cudaError_t wait_all(Lock& lock, int device);

// --- memory (the lock is held) ---
void* shadow(const void* address);
bool on_device(const void* address);
cudaError_t reserve(void** address, size_t nbytes, int device);
cudaError_t release(void* address);
void* addresses(size_t nbytes);
void map(void* address, size_t nbytes, int device);
void unmap(void* address, size_t nbytes);

}  // namespace emulated

// What nearly every runtime call begins with.
#define BEGIN                                           \
  if (cudaError_t unusable = usable()) return unusable; \
  Lock lock(state().lock)
