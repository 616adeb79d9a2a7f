// Captured graphs: what was put into a stream while it was captured, to be put there again.
#include <algorithm>

#include "emulated.h"

static thread_local cudaStreamCaptureMode thread_mode = cudaStreamCaptureModeGlobal;

namespace emulated {

cudaError_t unsafe() {
  bool forbidden = false;
  if (thread_mode == cudaStreamCaptureModeRelaxed) return cudaSuccess;
  for (auto& graph : state().captures) {
    bool own = graph->thread == std::this_thread::get_id();
    bool reaches = graph->mode == cudaStreamCaptureModeGlobal
                       ? thread_mode == cudaStreamCaptureModeGlobal || own
                       : graph->mode == cudaStreamCaptureModeThreadLocal && own;
    graph->broken = graph->broken || reaches;
    forbidden = forbidden || reaches;
  }
  return forbidden ? cudaErrorStreamCaptureUnsupported : cudaSuccess;
}

}  // namespace emulated

using namespace emulated;

cudaError_t cudaStreamBeginCapture(cudaStream_t handle, cudaStreamCaptureMode mode) {
  static uint64_t captures = 0;
  BEGIN;
  Stream* stream = stream_of(handle);
  if (!stream) return said(cudaErrorInvalidResourceHandle);
  if (stream == state().devices[stream->device].legacy || stream->capture) {
    return said(cudaErrorStreamCaptureUnsupported);
  }
  stream->capture = std::make_shared<Graph>();
  stream->capture->id = ++captures;
  stream->capture->mode = mode;
  stream->capture->thread = std::this_thread::get_id();
  state().captures.push_back(stream->capture);
  return cudaSuccess;
}

cudaError_t cudaStreamEndCapture(cudaStream_t handle, cudaGraph_t* out) {
  BEGIN;
  Stream* stream = stream_of(handle);
  if (!stream || !stream->capture) return said(cudaErrorIllegalState);
  auto graph = stream->capture;
  auto& captures = state().captures;
  captures.erase(std::find(captures.begin(), captures.end(), graph));
  for (Device& device : state().devices) {
    for (Stream* other : device.streams) {
      if (other->capture == graph) other->capture = nullptr;
    }
  }
  *out = nullptr;
  if (graph->broken) return said(cudaErrorStreamCaptureInvalidated);
  *out = reinterpret_cast<cudaGraph_t>(new std::vector<Operation>(graph->nodes));
  return cudaSuccess;
}

cudaError_t cudaStreamIsCapturing(cudaStream_t handle, cudaStreamCaptureStatus* status) {
  BEGIN;
  Stream* stream = stream_of(handle);
  if (!stream) return said(cudaErrorInvalidResourceHandle);
  *status = !stream->capture          ? cudaStreamCaptureStatusNone
            : stream->capture->broken ? cudaStreamCaptureStatusInvalidated
                                      : cudaStreamCaptureStatusActive;
  return cudaSuccess;
}

cudaError_t cudaStreamGetCaptureInfo(cudaStream_t handle, cudaStreamCaptureStatus* status,
                                     unsigned long long* id, cudaGraph_t* graph,
                                     const cudaGraphNode_t** dependencies, const cudaGraphEdgeData** edges,
                                     size_t* count) {
  if (cudaError_t error = cudaStreamIsCapturing(handle, status)) return error;
  if (graph) *graph = nullptr;
  if (dependencies) *dependencies = nullptr;
  if (edges) *edges = nullptr;
  if (count) *count = 0;
  Lock lock(state().lock);
  Stream* stream = stream_of(handle);
  if (id && stream->capture) *id = stream->capture->id;
  return cudaSuccess;
}

cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode) {
  std::swap(*mode, thread_mode);
  return usable();
}

cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t*, size_t* count) {
  *count = reinterpret_cast<std::vector<Operation>*>(graph)->size();
  return usable();
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t* out, cudaGraph_t graph, unsigned long long) {
  auto* nodes = reinterpret_cast<std::vector<Operation>*>(graph);
  *out = reinterpret_cast<cudaGraphExec_t>(new std::vector<Operation>(*nodes));
  return usable();
}

cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t* out, cudaGraph_t graph, unsigned long long flags) {
  return cudaGraphInstantiate(out, graph, flags);
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t graph, cudaStream_t handle) {
  BEGIN;
  Stream* stream = stream_of(handle);
  if (!stream) return said(cudaErrorInvalidResourceHandle);
  for (auto& node : *reinterpret_cast<std::vector<Operation>*>(graph)) {
    put(stream, {node.run, nullptr, nullptr});
  }
  return cudaSuccess;
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  delete reinterpret_cast<std::vector<Operation>*>(graph);
  return cudaSuccess;
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t graph) {
  delete reinterpret_cast<std::vector<Operation>*>(graph);
  return cudaSuccess;
}
