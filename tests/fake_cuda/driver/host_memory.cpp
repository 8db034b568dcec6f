// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Host memory that the device can reach, and what pointers are.
#include <sys/mman.h>

#include <cerrno>
#include <cstdlib>

#include "state.h"

namespace fake_cuda {
namespace {

CUresult host_alloc(void** pointer, size_t bytes, unsigned flags) {
  FAKE_CUDA_ENTER(context);
  if (!pointer || bytes == 0) return CUDA_ERROR_INVALID_VALUE;
  if (const CUresult refused = capture_allows()) return refused;
  std::lock_guard<std::mutex> driver(context->lock);
  hold_context_lock(*context);
  *pointer = take_host_memory(*context, bytes, {.kind = Kind::host, .flags = flags});
  return *pointer ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

// An I/O page (a NIC's UAR) gets an address of the device's own.
CUresult host_register(void* pointer, size_t bytes, unsigned flags) {
  FAKE_CUDA_ENTER(context);
  const auto host = reinterpret_cast<uint64_t>(pointer);
  if (!pointer || bytes == 0) return CUDA_ERROR_INVALID_VALUE;
  if (const CUresult refused = capture_allows()) return refused;
  std::lock_guard<std::mutex> hold(state().lock);
  for (const auto& [address, allocation] : state().memory)
    if ((allocation.kind == Kind::registered || allocation.kind == Kind::io) &&
        allocation.host < host + bytes && host < allocation.host + allocation.bytes)
      return CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
  const bool io = flags & CU_MEMHOSTREGISTER_IOMEMORY;
  uint64_t address = host;
  if (io) {
    // Pages: offsets inside them stay what they are.
    const uint64_t within = host % 4096;
    address = take_addresses(within + bytes, 65536);
    if (!address) return CUDA_ERROR_OUT_OF_MEMORY;
    address += within;
  }
  Allocation& made = state().memory[address];
  made = {};
  made.address = address;
  made.bytes = bytes;
  made.kind = io ? Kind::io : Kind::registered;
  made.context = context;
  made.device = context->device;
  made.host = host;
  made.flags = flags;
  return CUDA_SUCCESS;
}

const Allocation* of_host(uint64_t host) {
  for (const auto& [address, allocation] : state().memory) {
    const uint64_t begin = allocation.kind == Kind::host ? allocation.address : allocation.host;
    if (begin && host >= begin && host - begin < allocation.bytes) return &allocation;
  }
  return nullptr;
}

bool on_device(const Allocation& allocation) {
  return allocation.kind == Kind::device || allocation.kind == Kind::mapped ||
         allocation.kind == Kind::managed;
}

}  // namespace
}  // namespace fake_cuda

using namespace fake_cuda;

CUresult cuMemAllocHost_v2(void** pointer, size_t bytes) {
  return host_alloc(pointer, bytes, CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP);
}
CUresult cuMemHostAlloc(void** pointer, size_t bytes, unsigned flags) {
  return host_alloc(pointer, bytes, flags);
}

CUresult cuMemFreeHost(void* pointer) {
  FAKE_CUDA_ENTER(context);
  if (const CUresult refused = capture_allows()) return refused;
  std::lock_guard<std::mutex> driver(context->lock);
  hold_context_lock(*context);
  std::lock_guard<std::mutex> hold(state().lock);
  const auto found = state().memory.find(reinterpret_cast<uint64_t>(pointer));
  if (found == state().memory.end() || found->second.kind != Kind::host)
    return CUDA_ERROR_INVALID_VALUE;
  munmap(pointer, found->second.bytes);
  state().memory.erase(found);
  return CUDA_SUCCESS;
}

CUresult cuMemHostRegister_v2(void* pointer, size_t bytes, unsigned flags) {
  return host_register(pointer, bytes, flags);
}
CUresult cuMemHostRegister(void* pointer, size_t bytes, unsigned flags) {
  return host_register(pointer, bytes, flags);
}

CUresult cuMemHostUnregister(void* pointer) {
  FAKE_CUDA_ENTER(context);
  (void)context;
  std::lock_guard<std::mutex> hold(state().lock);
  for (auto i = state().memory.begin(); i != state().memory.end(); ++i) {
    if (i->second.host != reinterpret_cast<uint64_t>(pointer)) continue;
    state().memory.erase(i);
    return CUDA_SUCCESS;
  }
  return CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
}

CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr* device, void* pointer, unsigned flags) {
  FAKE_CUDA_ENTER(context);
  (void)context;
  if (!device || flags != 0) return CUDA_ERROR_INVALID_VALUE;
  std::lock_guard<std::mutex> hold(state().lock);
  const auto host = reinterpret_cast<uint64_t>(pointer);
  const Allocation* found = of_host(host);
  if (!found) return CUDA_ERROR_INVALID_VALUE;
  const uint64_t begin = found->host ? found->host : found->address;
  *device = found->address + (host - begin);
  return CUDA_SUCCESS;
}

CUresult cuPointerGetAttribute(void* value, CUpointer_attribute attribute, CUdeviceptr pointer) {
  if (const CUresult why = usable()) return why;
  if (!value) return CUDA_ERROR_INVALID_VALUE;
  std::lock_guard<std::mutex> hold(state().lock);
  const Allocation* found = find_memory(pointer, 1);
  if (!found) found = of_host(pointer);
  if (!found) {
    if (attribute != CU_POINTER_ATTRIBUTE_MAPPED) return CUDA_ERROR_INVALID_VALUE;
    *static_cast<bool*>(value) = false;
    return CUDA_SUCCESS;
  }
  switch (attribute) {
    case CU_POINTER_ATTRIBUTE_CONTEXT:
      if (!found->context) return CUDA_ERROR_INVALID_VALUE;  // mappings belong to none
      *static_cast<CUcontext*>(value) = reinterpret_cast<CUcontext>(found->context);
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
      *static_cast<unsigned*>(value) =
          on_device(*found) ? unsigned{CU_MEMORYTYPE_DEVICE} : unsigned{CU_MEMORYTYPE_HOST};
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
      *static_cast<CUdeviceptr*>(value) = pointer;
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_HOST_POINTER:
      if (found->kind == Kind::device || found->kind == Kind::mapped)
        return CUDA_ERROR_INVALID_VALUE;
      *static_cast<uint64_t*>(value) = found->host && pointer >= found->address
                                           ? found->host + (pointer - found->address)
                                           : pointer;
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
      *static_cast<unsigned*>(value) = found->sync_memops;
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_BUFFER_ID:
      *static_cast<uint64_t*>(value) = found->address;
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
      *static_cast<bool*>(value) = found->kind == Kind::managed;
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
      *static_cast<int*>(value) = found->device;
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
      *static_cast<uint64_t*>(value) = found->address;
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
      *static_cast<size_t*>(value) = found->bytes;
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_MAPPED:
      *static_cast<bool*>(value) = true;
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE:
      *static_cast<bool*>(value) = on_device(*found) && found->peer;
      return CUDA_SUCCESS;
  }
  return CUDA_ERROR_INVALID_VALUE;
}

CUresult cuPointerSetAttribute(const void* value, CUpointer_attribute attribute,
                               CUdeviceptr pointer) {
  if (const CUresult why = usable()) return why;
  if (!value || attribute != CU_POINTER_ATTRIBUTE_SYNC_MEMOPS) return CUDA_ERROR_INVALID_VALUE;
  std::lock_guard<std::mutex> hold(state().lock);
  Allocation* found = find_memory_at(pointer);
  if (!found || !on_device(*found)) return CUDA_ERROR_INVALID_VALUE;
  found->sync_memops = *static_cast<const unsigned*>(value) != 0;
  return CUDA_SUCCESS;
}
