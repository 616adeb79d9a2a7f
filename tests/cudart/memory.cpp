// Memory of the devices, pinned memory of the host, and copies between them.
#include <sys/mman.h>

#include <cstdlib>
#include <cstring>
#include <map>

#include "emulated.h"

namespace emulated {

namespace {

constexpr size_t kAddresses = size_t{1} << 40;

struct Block {
  size_t nbytes;
  int device;
  Stream* stream = nullptr;  // of cudaMallocAsync
};

struct Pinned {
  size_t nbytes;
  uint64_t number;  // of the registration
  bool own;         // of cudaHostAlloc
};

char *device_base, *shadow_base, *next_address;
std::map<char*, Block> blocks;
std::map<char*, Pinned> pinned;
uint64_t registrations;

template <class Map>
typename Map::iterator holding(Map& map, const void* address) {
  auto* at = static_cast<char*>(const_cast<void*>(address));
  auto found = map.upper_bound(at);
  if (found == map.begin()) return map.end();
  --found;
  return at < found->first + found->second.nbytes ? found : map.end();
}

char* none(size_t nbytes) {
  int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
  void* got = mmap(nullptr, nbytes, PROT_NONE, flags, -1, 0);
  if (got == MAP_FAILED) std::abort();
  return static_cast<char*>(got);
}

// Where a running operation finds memory of a device. Neighbouring blocks may be one tensor's.
char* reached(const void* address, size_t nbytes, const char* what) {
  auto *at = static_cast<char*>(const_cast<void*>(address)), *end = at + nbytes;
  while (at < end) {
    auto block = holding(blocks, at);
    if (block == blocks.end()) {
      fault("%s of device memory that was freed (%p)", what, address);
      return nullptr;
    }
    at = block->first + block->second.nbytes;
  }
  return static_cast<char*>(shadow(address));
}

// One end of a copy: memory of a device, pinned memory, or other memory of the host.
struct End {
  char* address;
  bool device;
  uint64_t registration = 0;

  End(const void* given, size_t nbytes)
      : address(static_cast<char*>(const_cast<void*>(given))), device(on_device(given)) {
    auto found = holding(pinned, address);
    if (device || found == pinned.end()) return;
    if (address + nbytes > found->first + found->second.nbytes) {
      fault("a copy of memory that is pinned in part (%p, %zu bytes)", given, nbytes);
    }
    registration = found->second.number;
  }

  // Where an operation that runs now finds it; null where it was a fault that was counted.
  char* at(size_t nbytes, const char* what) const {
    if (device) return reached(address, nbytes, what);
    auto found = holding(pinned, address);
    if (registration && (found == pinned.end() || found->second.number != registration)) {
      fault("%s of host memory that is pinned no more (%p)", what, address);
      return nullptr;
    }
    return address;
  }
};

}  // namespace

void* addresses(size_t nbytes) {
  if (!device_base) {
    device_base = next_address = none(kAddresses);
    shadow_base = none(kAddresses);
  }
  // A page between: what is written past an end is seen.
  char* address = next_address;
  next_address += (nbytes + 2 * kPage - 1) / kPage * kPage;
  if (next_address > device_base + kAddresses) std::abort();
  return address;
}

bool on_device(const void* address) {
  return device_base && address >= device_base && address < device_base + kAddresses;
}

void* shadow(const void* address) {
  return shadow_base + (static_cast<const char*>(address) - device_base);
}

void map(void* address, size_t nbytes, int device) {
  int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED;
  size_t whole = (nbytes + 4095) / 4096 * 4096;
  void* got = mmap(shadow(address), whole, PROT_READ | PROT_WRITE, flags, -1, 0);
  if (got == MAP_FAILED) std::abort();
  std::memset(got, 0xA5, nbytes);  // never what anybody expects
  blocks[static_cast<char*>(address)] = {nbytes, device};
}

void unmap(void* address, size_t nbytes) {
  int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED;
  mmap(shadow(address), (nbytes + 4095) / 4096 * 4096, PROT_NONE, flags, -1, 0);
  auto* begin = static_cast<char*>(address);
  blocks.erase(blocks.lower_bound(begin), blocks.lower_bound(begin + nbytes));
}

cudaError_t reserve(void** address, size_t nbytes, int device) {
  size_t& used = state().devices[device].used;
  if (used + nbytes > kMemory) return cudaErrorMemoryAllocation;
  used += nbytes;
  *address = addresses(nbytes);
  map(*address, nbytes, device);
  return cudaSuccess;
}

cudaError_t release(void* address) {
  auto block = blocks.find(static_cast<char*>(address));
  if (block == blocks.end()) return cudaErrorInvalidValue;
  state().devices[block->second.device].used -= block->second.nbytes;
  unmap(address, block->second.nbytes);
  return cudaSuccess;
}

}  // namespace emulated

using namespace emulated;

// --- of devices ---

cudaError_t cudaMalloc(void** address, size_t nbytes) {
  BEGIN;
  touch();
  return said(reserve(address, nbytes, current()));
}

cudaError_t cudaFree(void* address) {
  BEGIN;
  touch();
  if (!address) return cudaSuccess;
  auto block = blocks.find(static_cast<char*>(address));
  if (block == blocks.end()) return said(cudaErrorInvalidValue);
  if (cudaError_t status = wait_all(lock, block->second.device)) return said(status);
  return said(release(address));
}

cudaError_t cudaMallocAsync(void** address, size_t nbytes, cudaStream_t handle) {
  BEGIN;
  Stream* stream = stream_of(handle);
  if (!stream) return said(cudaErrorInvalidResourceHandle);
  cudaError_t status = reserve(address, nbytes, stream->device);
  if (status) {  // as CUDA's does: memory that is free soon
    if (cudaError_t error = wait_all(lock, stream->device)) return said(error);
    status = reserve(address, nbytes, stream->device);
  }
  return said(status);
}

cudaError_t cudaFreeAsync(void* address, cudaStream_t handle) {
  BEGIN;
  Stream* stream = stream_of(handle);
  if (!stream) return said(cudaErrorInvalidResourceHandle);
  // Gone when the stream gets there, and with it whatever another stream still does with it.
  auto gone = [=] {
    Lock inside(state().lock);
    if (release(address)) fault("memory is freed that is none (%p)", address);
  };
  put(stream, {gone, nullptr, nullptr});
  return cudaSuccess;
}

cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
  BEGIN;
  touch();
  *free = kMemory - state().devices[current()].used, *total = kMemory;
  return cudaSuccess;
}

cudaError_t cudaDeviceGetDefaultMemPool(cudaMemPool_t* pool, int device) {
  *pool = reinterpret_cast<cudaMemPool_t>(&state().devices[device]);
  return usable();
}

cudaError_t cudaMemPoolGetAttribute(cudaMemPool_t pool, cudaMemPoolAttr attribute, void* value) {
  BEGIN;
  auto* device = reinterpret_cast<Device*>(pool);
  bool threshold = attribute == cudaMemPoolAttrReleaseThreshold;
  *static_cast<uint64_t*>(value) = threshold ? 0 : device->used;
  return cudaSuccess;
}

cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t, cudaMemPoolAttr, void*) {
  return usable();
}
cudaError_t cudaMemPoolTrimTo(cudaMemPool_t, size_t) {
  return usable();
}
cudaError_t cudaMemPoolSetAccess(cudaMemPool_t, const cudaMemAccessDesc*, size_t) {
  return usable();
}

// --- of the host ---

cudaError_t cudaHostRegister(void* address, size_t nbytes, unsigned) {
  BEGIN;
  touch();
  auto* begin = static_cast<char*>(address);
  auto next = pinned.lower_bound(begin);
  bool overlaps =
      holding(pinned, begin) != pinned.end() || (next != pinned.end() && next->first < begin + nbytes);
  if (overlaps) return said(cudaErrorHostMemoryAlreadyRegistered);
  pinned[begin] = {nbytes, ++registrations, false};
  return cudaSuccess;
}

cudaError_t cudaHostUnregister(void* address) {
  BEGIN;
  auto found = pinned.find(static_cast<char*>(address));
  if (found == pinned.end() || found->second.own) {
    return said(cudaErrorHostMemoryNotRegistered);
  }
  pinned.erase(found);
  return cudaSuccess;
}

cudaError_t cudaHostAlloc(void** address, size_t nbytes, unsigned) {
  BEGIN;
  touch();
  int flags = MAP_PRIVATE | MAP_ANONYMOUS;
  *address = mmap(nullptr, nbytes, PROT_READ | PROT_WRITE, flags, -1, 0);
  if (*address == MAP_FAILED) return said(cudaErrorMemoryAllocation);
  std::memset(*address, 0x5A, nbytes);
  pinned[static_cast<char*>(*address)] = {nbytes, ++registrations, true};
  return cudaSuccess;
}

cudaError_t cudaMallocHost(void** address, size_t nbytes) {
  return cudaHostAlloc(address, nbytes, 0);
}

cudaError_t cudaFreeHost(void* address) {
  BEGIN;
  auto found = pinned.find(static_cast<char*>(address));
  if (found == pinned.end() || !found->second.own) return said(cudaErrorInvalidValue);
  munmap(address, found->second.nbytes);
  pinned.erase(found);
  return cudaSuccess;
}

cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* found, const void* address) {
  BEGIN;
  *found = {};
  found->type = cudaMemoryTypeUnregistered;
  found->device = cudaInvalidDeviceId;
  found->hostPointer = const_cast<void*>(address);
  auto block = holding(blocks, address);
  if (block != blocks.end()) {
    found->type = cudaMemoryTypeDevice;
    found->device = block->second.device;
    found->devicePointer = const_cast<void*>(address);
    found->hostPointer = nullptr;
  } else if (holding(pinned, address) != pinned.end()) {
    found->type = cudaMemoryTypeHost;
    found->device = current();
    found->devicePointer = const_cast<void*>(address);
  }
  return cudaSuccess;
}

// --- copies ---

static cudaError_t copy(void* to, const void* from, size_t nbytes, cudaStream_t handle, bool waits) {
  BEGIN;
  Stream* stream = stream_of(handle);
  if (!stream) return said(cudaErrorInvalidResourceHandle);
  if (!nbytes) return cudaSuccess;
  End target(to, nbytes), source(from, nbytes);
  // Pageable memory is read before the call returns, and written by the time it does.
  std::shared_ptr<std::vector<char>> read;
  if (!source.device && !source.registration) {
    read = std::make_shared<std::vector<char>>(source.address, source.address + nbytes);
  }
  waits = waits || (!target.device && !target.registration);
  auto run = [=] {
    char *begin, *end;
    {
      Lock inside(state().lock);
      begin = target.at(nbytes, "a copy into");
      end = read ? read->data() : source.at(nbytes, "a copy out");
    }
    if (!begin || !end) return;
    std::memmove(begin, end, nbytes);
    Lock inside(state().lock);  // still there, now that it has ended
    target.at(nbytes, "a copy into");
    if (!read) source.at(nbytes, "a copy out");
  };
  auto point = put(stream, {run, nullptr, nullptr});
  return waits ? said(wait(lock, point)) : cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t nbytes, cudaMemcpyKind, cudaStream_t stream) {
  return copy(to, from, nbytes, stream, false);
}

cudaError_t cudaMemcpy(void* to, const void* from, size_t nbytes, cudaMemcpyKind) {
  return copy(to, from, nbytes, nullptr, true);
}

cudaError_t cudaMemcpyPeerAsync(void* to, int, const void* from, int, size_t nbytes, cudaStream_t stream) {
  return copy(to, from, nbytes, stream, false);
}

cudaError_t cudaMemsetAsync(void* address, int value, size_t nbytes, cudaStream_t handle) {
  BEGIN;
  Stream* stream = stream_of(handle);
  if (!stream) return said(cudaErrorInvalidResourceHandle);
  auto run = [=] {
    Lock inside(state().lock);
    if (char* at = reached(address, nbytes, "a fill")) std::memset(at, value, nbytes);
  };
  put(stream, {run, nullptr, nullptr});
  return cudaSuccess;
}

cudaError_t cudaMemset(void* address, int value, size_t nbytes) {
  return cudaMemsetAsync(address, value, nbytes, nullptr);
}

// --- for the kernels in Python ---

// Where what runs in a stream finds [address, address + nbytes).
extern "C" void* emulated_memory(void* address, size_t nbytes) {
  Lock lock(state().lock);
  return nbytes ? reached(address, nbytes, "a kernel's use") : address;
}
