// The runtime: devices, errors, kernels' names, and the few functions of the driver.
#include <unistd.h>

#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <unordered_map>

#include "emulated.h"

namespace emulated {

namespace {
thread_local int device_now = 0;
thread_local cudaError_t last = cudaSuccess;
thread_local std::string missing;  // the kernel that was launched though there is none
}  // namespace

State& state() {
  // Never destroyed: streams' threads use it until the process ends.
  static State* made = [] {
    auto* s = new State;
    const char *seed = std::getenv("EMULATED_CUDA_SEED"), *pace = std::getenv("EMULATED_CUDA_PACE");
    s->seed = seed ? std::strtoull(seed, nullptr, 10) : 0;
    s->pace = pace ? pace : "mixed";
    s->pid = getpid();
    for (int i = 0; i < kDevices; i++) {
      s->devices[i].legacy = new Stream(i, 0, s->seed * 1000003 + i);
      s->devices[i].streams.push_back(s->devices[i].legacy);
    }
    return s;
  }();
  return *made;
}

void fault(const char* format, ...) {
  state().faults++;
  if (state().counts) return;
  va_list arguments;
  va_start(arguments, format);
  std::fputs("emulated CUDA: ", stderr);
  std::vfprintf(stderr, format, arguments);
  std::fputs("\n", stderr);
  std::abort();
}

cudaError_t said(cudaError_t status) {
  if (status) last = status;
  return status;
}

cudaError_t usable() {
  State& s = state();
  return getpid() == s.pid ? cudaSuccess : said(cudaErrorInitializationError);
}

int current() {
  return device_now;
}
void touch() {
  state().devices[device_now].context = true;
}

}  // namespace emulated

using namespace emulated;

// --- devices ---

cudaError_t cudaGetDeviceCount(int* count) {
  *count = kDevices;
  return usable();
}

cudaError_t cudaGetDevice(int* device) {
  *device = device_now;
  return usable();
}

cudaError_t cudaSetDevice(int device) {
  if (device < 0 || device >= kDevices) return said(cudaErrorInvalidDevice);
  device_now = device;
  if (cudaError_t unusable = usable()) return unusable;
  touch();  // since CUDA 12
  return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int) {
  switch (attribute) {
    case cudaDevAttrComputeCapabilityMajor:
      *value = 9;
      break;
    case cudaDevAttrWarpSize:
      *value = 32;
      break;
    case cudaDevAttrMaxThreadsPerBlock:
      *value = 1024;
      break;
    case cudaDevAttrMultiProcessorCount:
      *value = 8;
      break;
    case cudaDevAttrUnifiedAddressing:
    case cudaDevAttrMemoryPoolsSupported:
    case cudaDevAttrHostRegisterSupported:
      *value = 1;
      break;
    default:
      *value = 0;
  }
  return usable();
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* found, int device) {
  if (device < 0 || device >= kDevices) return said(cudaErrorInvalidDevice);
  std::memset(found, 0, sizeof *found);
  std::snprintf(found->name, sizeof found->name, "emulated (no GPU)");
  found->major = 9;
  found->totalGlobalMem = kMemory;
  found->multiProcessorCount = 8;
  found->warpSize = 32;
  found->maxThreadsPerBlock = found->maxThreadsDim[0] = 1024;
  found->maxThreadsPerMultiProcessor = 2048;
  found->sharedMemPerBlock = found->sharedMemPerMultiprocessor = 48 << 10;
  found->regsPerMultiprocessor = 65536;
  found->unifiedAddressing = 1;
  found->pciBusID = device;
  return usable();
}

cudaError_t cudaDeviceGetPCIBusId(char* text, int length, int device) {
  std::snprintf(text, static_cast<size_t>(length), "0000:%02x:00.0", device);
  return usable();
}

cudaError_t cudaDeviceCanAccessPeer(int* can, int device, int peer) {
  *can = device != peer;
  return usable();
}
cudaError_t cudaDeviceEnablePeerAccess(int, unsigned) {
  return usable();
}
cudaError_t cudaDriverGetVersion(int* version) {
  return *version = CUDART_VERSION, cudaSuccess;
}
cudaError_t cudaRuntimeGetVersion(int* version) {
  return *version = CUDART_VERSION, cudaSuccess;
}
cudaError_t cudaProfilerStart() {
  return usable();
}
cudaError_t cudaProfilerStop() {
  return usable();
}

// --- errors ---

cudaError_t cudaGetLastError() {
  return std::exchange(last, cudaSuccess);
}
cudaError_t cudaPeekAtLastError() {
  return last;
}

const char* cudaGetErrorName(cudaError_t error) {
  return error ? "error" : "cudaSuccess";
}

const char* cudaGetErrorString(cudaError_t error) {
  static thread_local std::string text;
  switch (error) {
    case cudaSuccess:
      return "no error";
    case cudaErrorMemoryAllocation:
      return "out of memory";
    case cudaErrorInvalidDeviceFunction:
      return (text = "the emulated device has no kernel " + missing).c_str();
    default:
      return (text = "emulated CUDA error " + std::to_string(error)).c_str();
  }
}

// --- kernels: one, which waits; all others are missing ---

static std::unordered_map<const void*, const char*>& kernels() {
  static auto* names = new std::unordered_map<const void*, const char*>;
  return *names;
}

extern "C" {

void** __cudaRegisterFatBinary(void*) {
  static void* handle;
  return &handle;
}
void __cudaRegisterFatBinaryEnd(void**) {}
void __cudaUnregisterFatBinary(void**) {}
void __cudaRegisterVar(void**, char*, char*, const char*, int, size_t, int, int) {}

void __cudaRegisterFunction(void**, const char* function, char*, const char* name, int, void*, void*, void*,
                            void*, int*) {
  kernels()[function] = name;
}

struct Configuration {
  dim3 grid, block;
  size_t shared;
  cudaStream_t stream;
};
static thread_local std::vector<Configuration> configurations;

unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared, cudaStream_t stream) {
  configurations.push_back({grid, block, shared, stream});
  return 0;
}

cudaError_t __cudaPopCallConfiguration(dim3* grid, dim3* block, size_t* shared, void* stream) {
  Configuration top = configurations.back();
  configurations.pop_back();
  *grid = top.grid, *block = top.block, *shared = top.shared;
  *static_cast<cudaStream_t*>(stream) = top.stream;
  return cudaSuccess;
}

cudaError_t __cudaGetKernel(cudaKernel_t* kernel, const void* function) {
  *kernel = reinterpret_cast<cudaKernel_t>(const_cast<void*>(function));
  return cudaSuccess;
}

cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void** arguments, size_t shared,
                               cudaStream_t stream) {
  return cudaLaunchKernel(kernel, grid, block, arguments, shared, stream);
}

}  // extern "C"

cudaError_t cudaLaunchKernel(const void* function, dim3, dim3, void** arguments, size_t,
                             cudaStream_t handle) {
  if (cudaError_t unusable = usable()) return unusable;
  auto found = kernels().find(function);
  missing = found == kernels().end() ? "(unknown)" : found->second;
  // torch.cuda._sleep, whose argument is in cycles: 2 GHz here.
  if (missing.find("spin_kernel") == std::string::npos) {
    return said(cudaErrorInvalidDeviceFunction);
  }
  auto time = std::chrono::nanoseconds(*static_cast<int64_t*>(arguments[0]) / 2);
  Lock lock(state().lock);
  Stream* stream = stream_of(handle);
  if (!stream || stream->device != current()) return said(cudaErrorInvalidResourceHandle);
  put(stream, {[=] { std::this_thread::sleep_for(time); }, nullptr, nullptr});
  return cudaSuccess;
}

// --- for the kernels in Python ---

// Let ``function(number)`` run in a stream, as a kernel would. The status is cudaGetLastError's
// behind a launch: an error from before comes out here.
extern "C" int emulated_launch(cudaStream_t handle, void (*function)(int64_t), int64_t number) {
  if (cudaError_t unusable = usable()) return unusable;
  if (cudaError_t before = cudaGetLastError()) return before;
  Lock lock(state().lock);
  Stream* stream = stream_of(handle);
  if (!stream || stream->device != current()) return cudaErrorInvalidResourceHandle;
  put(stream, {[=] { function(number); }, nullptr, nullptr});
  return 0;
}

// How many faults there were; from now on they are counted.
extern "C" int emulated_faults() {
  Lock lock(state().lock);
  state().counts = true;
  return std::exchange(state().faults, 0);
}

// Everything that is in a stream runs now, and from now on nothing does: Python is at its end.
extern "C" void emulated_end() {
  Lock lock(state().lock);
  for (int device = 0; device < kDevices; device++) wait_all(lock, device);
  state().ended = true;
}

// --- the driver ---

namespace {

struct Handle {  // of memory without an address
  size_t nbytes;
  int device;
};

CUresult unsupported() {
  return CUDA_ERROR_NOT_SUPPORTED;
}

CUresult error_string(CUresult, const char** text) {
  *text = "an error of the emulated driver";
  return CUDA_SUCCESS;
}

CUresult device_get(CUdevice* device, int index) {
  *device = index;
  return CUDA_SUCCESS;
}

CUresult device_attribute(int* value, CUdevice_attribute attribute, CUdevice device) {
  auto status = cudaDeviceGetAttribute(value, static_cast<cudaDeviceAttr>(attribute), device);
  if (attribute == CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED) *value = 1;
  return static_cast<CUresult>(status);
}

CUresult granularity(size_t* nbytes, const CUmemAllocationProp*, CUmemAllocationGranularity_flags) {
  *nbytes = kPage;
  return CUDA_SUCCESS;
}

CUresult address_reserve(CUdeviceptr* address, size_t nbytes, size_t, CUdeviceptr, unsigned long long) {
  Lock lock(state().lock);
  *address = reinterpret_cast<CUdeviceptr>(addresses(nbytes));
  return CUDA_SUCCESS;
}

CUresult address_free(CUdeviceptr, size_t) {
  return CUDA_SUCCESS;
}

CUresult memory_create(CUmemGenericAllocationHandle* handle, size_t nbytes, const CUmemAllocationProp* wanted,
                       unsigned long long) {
  Lock lock(state().lock);
  Device& device = state().devices[wanted->location.id];
  if (device.used + nbytes > kMemory) return CUDA_ERROR_OUT_OF_MEMORY;
  device.used += nbytes;
  *handle = reinterpret_cast<uintptr_t>(new Handle{nbytes, wanted->location.id});
  return CUDA_SUCCESS;
}

CUresult memory_release(CUmemGenericAllocationHandle handle) {
  Lock lock(state().lock);
  auto* memory = reinterpret_cast<Handle*>(handle);
  state().devices[memory->device].used -= memory->nbytes;
  delete memory;
  return CUDA_SUCCESS;
}

CUresult memory_map(CUdeviceptr address, size_t nbytes, size_t, CUmemGenericAllocationHandle handle,
                    unsigned long long) {
  Lock lock(state().lock);
  map(reinterpret_cast<void*>(address), nbytes, reinterpret_cast<Handle*>(handle)->device);
  return CUDA_SUCCESS;
}

CUresult memory_unmap(CUdeviceptr address, size_t nbytes) {
  Lock lock(state().lock);
  unmap(reinterpret_cast<void*>(address), nbytes);
  return CUDA_SUCCESS;
}

CUresult set_access(CUdeviceptr, size_t, const CUmemAccessDesc*, size_t) {
  return CUDA_SUCCESS;
}

}  // namespace

CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned* flags, int* active) {
  Lock lock(state().lock);
  *flags = 0, *active = state().devices[device].context;
  return CUDA_SUCCESS;
}

cudaError_t cudaGetDriverEntryPointByVersion(const char* symbol, void** function, unsigned,
                                             unsigned long long, cudaDriverEntryPointQueryResult* status) {
  static const std::unordered_map<std::string, void*> functions = {
      {"cuGetErrorString", reinterpret_cast<void*>(error_string)},
      {"cuDeviceGet", reinterpret_cast<void*>(device_get)},
      {"cuDeviceGetAttribute", reinterpret_cast<void*>(device_attribute)},
      {"cuDevicePrimaryCtxGetState", reinterpret_cast<void*>(cuDevicePrimaryCtxGetState)},
      {"cuMemGetAllocationGranularity", reinterpret_cast<void*>(granularity)},
      {"cuMemAddressReserve", reinterpret_cast<void*>(address_reserve)},
      {"cuMemAddressFree", reinterpret_cast<void*>(address_free)},
      {"cuMemCreate", reinterpret_cast<void*>(memory_create)},
      {"cuMemRelease", reinterpret_cast<void*>(memory_release)},
      {"cuMemMap", reinterpret_cast<void*>(memory_map)},
      {"cuMemUnmap", reinterpret_cast<void*>(memory_unmap)},
      {"cuMemSetAccess", reinterpret_cast<void*>(set_access)},
  };
  auto found = functions.find(symbol);
  *function = found == functions.end() ? reinterpret_cast<void*>(unsupported) : found->second;
  if (status) *status = cudaDriverEntryPointSuccess;
  return usable();
}
