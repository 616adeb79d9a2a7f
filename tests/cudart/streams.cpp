// Streams and events.
#include <thread>

#include "emulated.h"

namespace emulated {

using Clock = std::chrono::steady_clock;

struct Event {
  int device;
  bool timed;
  std::shared_ptr<Point> point;
};

namespace {

// How long an operation waits although it could run. A stream keeps to one pace for a while: at
// once, at random, or not before the host waits for it.
std::chrono::microseconds delay(Stream* stream) {
  auto draw = [&](uint64_t n) { return stream->random() % n; };
  if (stream->steps-- <= 0) {  // another pace
    const std::string& pace = state().pace;
    stream->pace = pace == "prompt"   ? 0
                   : pace == "random" ? 1
                   : pace == "late"   ? 2
                                      : static_cast<int>(draw(3));
    stream->steps = 8 + static_cast<int>(draw(56));
  }
  if (stream->pace == 0) return std::chrono::microseconds(0);
  if (stream->pace == 2) return std::chrono::microseconds(3000);
  uint64_t dice = draw(100);
  return std::chrono::microseconds(dice < 60 ? 0 : dice < 95 ? draw(400) : draw(3000));
}

void until_reached(Lock& lock, Point& point) {
  state().waiting++;
  state().reached.wait(lock, [&] { return point.reached; });
  state().waiting--;
}

void work(Stream* stream) {
  State& s = state();
  Lock lock(s.lock);
  for (;;) {
    stream->wake.wait(lock, [&] { return !stream->queue.empty(); });
    Operation& operation = stream->queue.front();
    if (operation.awaited) until_reached(lock, *operation.awaited);
    auto late = delay(stream);
    auto urged = [&] { return stream->urged > stream->done; };
    if (late.count() && !stream->wake.wait_for(lock, late, urged)) stream->steps -= 8;  // enough
    if (operation.run) {
      lock.unlock();
      operation.run();
      lock.lock();
    }
    stream->done++;
    if (operation.recorded) {
      operation.recorded->reached = true;
      operation.recorded->at = Clock::now();
    }
    // What it holds goes when the lock is free: that may call back.
    Operation over = std::move(operation);
    stream->queue.pop_front();
    if (s.waiting) s.reached.notify_all();
    lock.unlock();
    over = {};
    lock.lock();
  }
}

}  // namespace

Stream* make_stream(int device, int priority) {
  Device& owner = state().devices[device];
  uint64_t seed = state().seed * 1000003 + owner.streams.size() * 31 + device;
  auto* stream = new Stream(device, priority, seed);
  owner.streams.push_back(stream);
  return stream;
}

Stream* stream_of(cudaStream_t handle) {
  if (handle == nullptr || handle == cudaStreamLegacy) {
    touch();
    return state().devices[current()].legacy;
  }
  for (Device& device : state().devices) {
    for (Stream* stream : device.streams) {
      if (reinterpret_cast<cudaStream_t>(stream) == handle && !stream->gone) return stream;
    }
  }
  return nullptr;
}

std::shared_ptr<Point> put(Stream* stream, Operation operation) {
  auto point = operation.recorded;
  if (!point) point = operation.recorded = std::make_shared<Point>();
  point->stream = stream;
  point->reached = state().ended;  // then nothing runs any more
  if (state().ended) return point;
  point->number = ++stream->put;
  stream->queue.push_back(std::move(operation));
  if (!stream->started) {
    stream->started = true;
    std::thread(work, stream).detach();
  }
  if (stream->queue.size() > 1000) urge(stream, stream->put - 500);  // a device's queue is as long
  stream->wake.notify_one();
  return point;
}

void urge(Stream* stream, uint64_t number) {
  if (stream->urged >= number) return;
  stream->urged = number;
  uint64_t at = stream->done;
  for (Operation& operation : stream->queue) {
    if (++at > number) break;
    if (operation.awaited && !operation.awaited->reached) {
      urge(operation.awaited->stream, operation.awaited->number);
    }
  }
  stream->wake.notify_one();
}

cudaError_t wait(Lock& lock, std::shared_ptr<Point> point) {
  urge(point->stream, point->number);
  until_reached(lock, *point);
  return cudaSuccess;
}

cudaError_t wait_all(Lock& lock, int device) {
  std::vector<std::shared_ptr<Point>> points;
  for (Stream* stream : state().devices[device].streams) {
    if (stream->done < stream->put) points.push_back(put(stream, {}));
  }
  for (auto& point : points) {
    if (cudaError_t status = wait(lock, point)) return status;
  }
  return cudaSuccess;
}

}  // namespace emulated

using namespace emulated;

static Event* event_of(cudaEvent_t handle) {
  return reinterpret_cast<Event*>(handle);
}

// --- streams ---

cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned flags, int priority) {
  BEGIN;
  // The others would wait for the legacy stream by themselves, which torch's never do.
  if (flags != cudaStreamNonBlocking) return said(cudaErrorNotSupported);
  touch();
  *stream = reinterpret_cast<cudaStream_t>(make_stream(current(), priority));
  return cudaSuccess;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) {
  return cudaStreamCreateWithPriority(stream, flags, 0);
}

cudaError_t cudaStreamCreate(cudaStream_t* stream) {
  return cudaStreamCreateWithPriority(stream, cudaStreamDefault, 0);
}

cudaError_t cudaStreamDestroy(cudaStream_t handle) {
  BEGIN;
  Stream* stream = stream_of(handle);
  if (!stream) return said(cudaErrorInvalidResourceHandle);
  stream->gone = true;  // what is in it runs to its end
  return cudaSuccess;
}

cudaError_t cudaStreamGetPriority(cudaStream_t handle, int* priority) {
  BEGIN;
  Stream* stream = stream_of(handle);
  if (!stream) return said(cudaErrorInvalidResourceHandle);
  *priority = stream->priority;
  return cudaSuccess;
}

cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  *least = 0, *greatest = -5;
  return usable();
}

cudaError_t cudaStreamSynchronize(cudaStream_t handle) {
  BEGIN;
  Stream* stream = stream_of(handle);
  if (!stream) return said(cudaErrorInvalidResourceHandle);
  return said(wait(lock, put(stream, {})));
}

cudaError_t cudaStreamQuery(cudaStream_t handle) {
  BEGIN;
  Stream* stream = stream_of(handle);
  if (!stream) return said(cudaErrorInvalidResourceHandle);
  if (stream->done == stream->put) return cudaSuccess;
  if (stream->random() % 8 == 0) urge(stream, stream->done + 1);
  return cudaErrorNotReady;
}

cudaError_t cudaDeviceSynchronize() {
  BEGIN;
  touch();
  return said(wait_all(lock, current()));
}

cudaError_t cudaStreamWaitEvent(cudaStream_t handle, cudaEvent_t event, unsigned) {
  BEGIN;
  Stream* stream = stream_of(handle);
  if (!stream) return said(cudaErrorInvalidResourceHandle);
  auto point = event_of(event)->point;
  if (!point) return cudaSuccess;  // never recorded
  put(stream, {{}, point, nullptr});
  return cudaSuccess;
}

cudaError_t cudaLaunchHostFunc(cudaStream_t handle, cudaHostFn_t function, void* data) {
  BEGIN;
  Stream* stream = stream_of(handle);
  if (!stream) return said(cudaErrorInvalidResourceHandle);
  put(stream, {[=] { function(data); }, nullptr, nullptr});
  return cudaSuccess;
}

cudaError_t cudaStreamAddCallback(cudaStream_t stream, cudaStreamCallback_t callback, void* data, unsigned) {
  struct Call {
    cudaStream_t stream;
    cudaStreamCallback_t callback;
    void* data;
  };
  auto run = [](void* given) {
    std::unique_ptr<Call> call(static_cast<Call*>(given));
    call->callback(call->stream, cudaSuccess, call->data);
  };
  return cudaLaunchHostFunc(stream, run, new Call{stream, callback, data});
}

// Nothing is ever captured.
cudaError_t cudaStreamIsCapturing(cudaStream_t, cudaStreamCaptureStatus* status) {
  *status = cudaStreamCaptureStatusNone;
  return usable();
}

cudaError_t cudaStreamGetCaptureInfo(cudaStream_t stream, cudaStreamCaptureStatus* status,
                                     unsigned long long*, cudaGraph_t* graph,
                                     const cudaGraphNode_t** dependencies, const cudaGraphEdgeData** edges,
                                     size_t* count) {
  if (graph) *graph = nullptr;
  if (dependencies) *dependencies = nullptr;
  if (edges) *edges = nullptr;
  if (count) *count = 0;
  return cudaStreamIsCapturing(stream, status);
}

cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode) {
  static thread_local cudaStreamCaptureMode now = cudaStreamCaptureModeGlobal;
  std::swap(*mode, now);
  return usable();
}

// --- events ---

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
  BEGIN;
  touch();
  bool timed = !(flags & cudaEventDisableTiming);
  *event = reinterpret_cast<cudaEvent_t>(new Event{current(), timed, nullptr});
  return cudaSuccess;
}

cudaError_t cudaEventCreate(cudaEvent_t* event) {
  return cudaEventCreateWithFlags(event, 0);
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
  BEGIN;
  delete event_of(event);
  return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t handle, cudaStream_t stream_handle) {
  BEGIN;
  Stream* stream = stream_of(stream_handle);
  Event* event = event_of(handle);
  if (!stream || stream->device != event->device) return said(cudaErrorInvalidResourceHandle);
  event->point = put(stream, {});
  return cudaSuccess;
}

cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned) {
  return cudaEventRecord(event, stream);
}

cudaError_t cudaEventQuery(cudaEvent_t handle) {
  BEGIN;
  auto point = event_of(handle)->point;
  if (!point || point->reached) return cudaSuccess;
  // Who asks again and again gets there, and who asks once learns nothing by asking.
  if (point->stream->random() % 8 == 0) urge(point->stream, point->number);
  return cudaErrorNotReady;
}

cudaError_t cudaEventSynchronize(cudaEvent_t handle) {
  BEGIN;
  auto point = event_of(handle)->point;
  return point ? said(wait(lock, point)) : cudaSuccess;
}

cudaError_t cudaEventElapsedTime(float* ms, cudaEvent_t begin, cudaEvent_t end) {
  BEGIN;
  Event *first = event_of(begin), *second = event_of(end);
  bool timed = first->timed && second->timed && first->device == second->device;
  if (!timed || !first->point || !second->point) return said(cudaErrorInvalidResourceHandle);
  if (!first->point->reached || !second->point->reached) return cudaErrorNotReady;
  std::chrono::duration<float, std::milli> between = second->point->at - first->point->at;
  *ms = between.count();
  return cudaSuccess;
}
