// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Wrappers of the CUDA driver API: the real call first (before a free: last), its result unchanged;
// then what it means for memory. A call from within one of ours, or of the driver itself, is passed
// on.
#include <atomic>

#include "gpu_interpose/copier.h"
#include "gpu_interpose/driver.h"
#include "gpu_interpose/guard.h"
#include "gpu_interpose/hooks.h"
#include "gpu_interpose/memory.h"
#include "gpu_interpose/published_index.h"
#include "gpu_interpose/queues.h"
#include "gpu_interpose/reader.h"
#include "gpu_interpose/wrappers.h"

namespace {

using namespace sigma::gpu;

uint64_t number(const void* pointer) {
  return reinterpret_cast<uint64_t>(pointer);
}

// Calls the real function; without one, the driver is not there.
template <typename F, typename... Arguments>
CUresult call(F function, Arguments... arguments) {
  return function ? function(arguments...) : CUresult{cuda::kNotInitialized};
}

void allocated(const Guard& guard, CUresult result, uint64_t begin, uint64_t bytes,
               sigma_gpu_memory memory) {
  if (result == cuda::kSuccess && guard.outermost() && add_range({begin, bytes, memory}) &&
      memory == SIGMA_GPU_MEMORY_DEVICE)
    on_memory_reused(begin, bytes);
}

// Memory that the job frees: the last look at queues there, before. Where the free fails, they
// stay.
class Freeing {
 public:
  Freeing(const Guard& guard, uint64_t begin)
      : known_(begin != 0 && guard.outermost() && remove_range(begin, range_)) {
    if (known_) since_ns_ = before_memory_end(range_.begin, range_.bytes);
  }
  CUresult done(CUresult result) const {
    if (!known_ || result == cuda::kSuccess) return result;
    add_range(range_);
    on_memory_kept(range_.begin, range_.bytes, since_ns_);
    return result;
  }

 private:
  Range range_;
  bool known_;
  uint64_t since_ns_ = 0;
};

template <typename F>
CUresult allocate(F real, CUdeviceptr* address, size_t bytes, auto... rest) {
  const Guard guard;
  const CUresult result = call(real, address, bytes, rest...);
  if (address) allocated(guard, result, *address, bytes, SIGMA_GPU_MEMORY_DEVICE);
  return result;
}

template <typename F>
CUresult release(F real, uint64_t begin, auto... arguments) {
  const Guard guard;
  const Freeing freeing(guard, begin);
  return freeing.done(call(real, arguments...));
}

}  // namespace

CUresult cuGetProcAddress(const char* symbol, void** function, int version, uint64_t flags) {
  const Guard guard;
  const CUresult result = call(SIGMA_REAL(cuGetProcAddress), symbol, function, version, flags);
  if (result == cuda::kSuccess && symbol && function && *function && guard.outermost())
    *function = answer_proc_address(symbol, version, flags, *function);
  return result;
}

CUresult cuGetProcAddress_v2(const char* symbol, void** function, int version, uint64_t flags,
                             CUdriverProcAddressQueryResult* status) {
  const Guard guard;
  const CUresult result =
      call(SIGMA_REAL(cuGetProcAddress_v2), symbol, function, version, flags, status);
  if (result == cuda::kSuccess && symbol && function && *function && guard.outermost())
    *function = answer_proc_address(symbol, version, flags, *function);
  return result;
}

// ---- device memory ------------------------------------------------------------------------------

CUresult cuMemAlloc_v2(CUdeviceptr* address, size_t bytes) {
  return allocate(SIGMA_REAL(cuMemAlloc_v2), address, bytes);
}

CUresult cuMemAllocPitch_v2(CUdeviceptr* address, size_t* pitch, size_t width, size_t height,
                            unsigned element_bytes) {
  const Guard guard;
  const CUresult result =
      call(SIGMA_REAL(cuMemAllocPitch_v2), address, pitch, width, height, element_bytes);
  if (address && pitch)
    allocated(guard, result, *address, *pitch * height, SIGMA_GPU_MEMORY_DEVICE);
  return result;
}

CUresult cuMemAllocManaged(CUdeviceptr* address, size_t bytes, unsigned flags) {
  const Guard guard;
  const CUresult result = call(SIGMA_REAL(cuMemAllocManaged), address, bytes, flags);
  if (address) allocated(guard, result, *address, bytes, SIGMA_GPU_MEMORY_MANAGED);
  return result;
}

CUresult cuMemAllocAsync(CUdeviceptr* address, size_t bytes, CUstream stream) {
  return allocate(SIGMA_REAL(cuMemAllocAsync), address, bytes, stream);
}

CUresult cuMemAllocAsync_ptsz(CUdeviceptr* address, size_t bytes, CUstream stream) {
  return allocate(SIGMA_REAL(cuMemAllocAsync_ptsz), address, bytes, stream);
}

CUresult cuMemAllocFromPoolAsync(CUdeviceptr* address, size_t bytes, CUmemoryPool pool,
                                 CUstream stream) {
  return allocate(SIGMA_REAL(cuMemAllocFromPoolAsync), address, bytes, pool, stream);
}

CUresult cuMemAllocFromPoolAsync_ptsz(CUdeviceptr* address, size_t bytes, CUmemoryPool pool,
                                      CUstream stream) {
  return allocate(SIGMA_REAL(cuMemAllocFromPoolAsync_ptsz), address, bytes, pool, stream);
}

CUresult cuMemFree_v2(CUdeviceptr address) {
  return release(SIGMA_REAL(cuMemFree_v2), address, address);
}

CUresult cuMemFreeAsync(CUdeviceptr address, CUstream stream) {
  return release(SIGMA_REAL(cuMemFreeAsync), address, address, stream);
}

CUresult cuMemFreeAsync_ptsz(CUdeviceptr address, CUstream stream) {
  return release(SIGMA_REAL(cuMemFreeAsync_ptsz), address, address, stream);
}

CUresult cuMemMap(CUdeviceptr address, size_t bytes, size_t offset,
                  CUmemGenericAllocationHandle handle, unsigned long long flags) {
  const Guard guard;
  const CUresult result = call(SIGMA_REAL(cuMemMap), address, bytes, offset, handle, flags);
  allocated(guard, result, address, bytes, SIGMA_GPU_MEMORY_DEVICE);
  return result;
}

CUresult cuMemUnmap(CUdeviceptr address, size_t bytes) {
  const Guard guard;
  // One call may take away several mappings.
  Range range;
  for (uint64_t at = address; guard.outermost() && at < address + bytes && find_range(at, range);
       at = range.begin + range.bytes)
    if (remove_range(range.begin, range)) before_memory_end(range.begin, range.bytes);
  return call(SIGMA_REAL(cuMemUnmap), address, bytes);
}

// ---- host memory --------------------------------------------------------------------------------

CUresult cuMemAllocHost_v2(void** address, size_t bytes) {
  const Guard guard;
  const CUresult result = call(SIGMA_REAL(cuMemAllocHost_v2), address, bytes);
  if (address) allocated(guard, result, number(*address), bytes, SIGMA_GPU_MEMORY_REGISTERED);
  return result;
}

CUresult cuMemHostAlloc(void** address, size_t bytes, unsigned flags) {
  const Guard guard;
  const CUresult result = call(SIGMA_REAL(cuMemHostAlloc), address, bytes, flags);
  if (address) allocated(guard, result, number(*address), bytes, SIGMA_GPU_MEMORY_REGISTERED);
  return result;
}

CUresult cuMemFreeHost(void* address) {
  return release(SIGMA_REAL(cuMemFreeHost), number(address), address);
}

CUresult cuMemHostRegister_v2(void* address, size_t bytes, unsigned flags) {
  const Guard guard;
  const CUresult result = call(SIGMA_REAL(cuMemHostRegister_v2), address, bytes, flags);
  if (result != cuda::kSuccess || !guard.outermost()) return result;
  add_range({number(address), bytes, SIGMA_GPU_MEMORY_REGISTERED});
  on_host_registered(number(address), bytes, flags & cuda::kHostRegisterIoMemory);
  return result;
}

// The memory stays, and so do queues in it: no last look.
CUresult cuMemHostUnregister(void* address) {
  const Guard guard;
  const CUresult result = call(SIGMA_REAL(cuMemHostUnregister), address);
  Range range;
  if (result == cuda::kSuccess && guard.outermost()) remove_range(number(address), range);
  return result;
}

// ---- contexts -----------------------------------------------------------------------------------

namespace {

constexpr int kMaxDevices = 64;
std::atomic<int> retained[kMaxDevices];  // primary contexts, by the job
std::atomic<uint64_t> in_vain_until_ns{0};

// A context may end by this call: the reader has left it meanwhile, and taken its last looks.
template <typename F, typename Argument>
CUresult end_context(F real, Argument argument) {
  const ReaderPause pause;
  const CUresult result = call(real, argument);
  if (result == cuda::kSuccess) on_context_ended();
  return result;
}

// Most releases are not the last: a library that asks whether there is a context, and lets it go
// again. What others than our hooks have retained we do not know; where a pause shows that, it is
// not tried again for a while, for it costs the job a wait.
template <typename F>
CUresult release_context(F real, int device) {
  const Guard guard;
  const bool known = device >= 0 && device < kMaxDevices;
  const bool last = !known || retained[device].fetch_sub(1, std::memory_order_relaxed) <= 1;
  if (known && last) retained[device].store(0, std::memory_order_relaxed);
  if (!guard.outermost() || !last || now_ns() < in_vain_until_ns.load(std::memory_order_relaxed))
    return call(real, device);
  const CUresult result = end_context(real, device);
  if (primary_is_active(device))
    in_vain_until_ns.store(now_ns() + 1'000'000'000, std::memory_order_relaxed);
  return result;
}

template <typename F>
CUresult reset_context(F real, int device) {
  const Guard guard;
  if (device >= 0 && device < kMaxDevices) retained[device].store(0, std::memory_order_relaxed);
  return guard.outermost() ? end_context(real, device) : call(real, device);
}

template <typename F>
CUresult destroy_context(F real, CUcontext context) {
  const Guard guard;
  return guard.outermost() ? end_context(real, context) : call(real, context);
}

}  // namespace

CUresult cuDevicePrimaryCtxRetain(CUcontext* context, int device) {
  const Guard guard;
  const CUresult result = call(SIGMA_REAL(cuDevicePrimaryCtxRetain), context, device);
  if (result == cuda::kSuccess && device >= 0 && device < kMaxDevices)
    retained[device].fetch_add(1, std::memory_order_relaxed);
  return result;
}
CUresult cuDevicePrimaryCtxRelease(int device) {
  return release_context(SIGMA_REAL(cuDevicePrimaryCtxRelease), device);
}
CUresult cuDevicePrimaryCtxRelease_v2(int device) {
  return release_context(SIGMA_REAL(cuDevicePrimaryCtxRelease_v2), device);
}
CUresult cuDevicePrimaryCtxReset(int device) {
  return reset_context(SIGMA_REAL(cuDevicePrimaryCtxReset), device);
}
CUresult cuDevicePrimaryCtxReset_v2(int device) {
  return reset_context(SIGMA_REAL(cuDevicePrimaryCtxReset_v2), device);
}
CUresult cuCtxDestroy(CUcontext context) {
  return destroy_context(SIGMA_REAL(cuCtxDestroy), context);
}
CUresult cuCtxDestroy_v2(CUcontext context) {
  return destroy_context(SIGMA_REAL(cuCtxDestroy_v2), context);
}

// ---- copies to devices --------------------------------------------------------------------------

namespace {

template <typename F>
CUresult copy_in(F real, CUdeviceptr to, const void* from, size_t bytes, auto... stream) {
  const Guard guard;
  const CUresult result = call(real, to, from, bytes, stream...);
  if (result == cuda::kSuccess && guard.outermost()) on_copied_to_device(to, from, bytes);
  return result;
}

}  // namespace

CUresult cuMemcpyHtoD_v2(CUdeviceptr to, const void* from, size_t bytes) {
  return copy_in(SIGMA_REAL(cuMemcpyHtoD_v2), to, from, bytes);
}
CUresult cuMemcpyHtoD_v2_ptds(CUdeviceptr to, const void* from, size_t bytes) {
  return copy_in(SIGMA_REAL(cuMemcpyHtoD_v2_ptds), to, from, bytes);
}
CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void* from, size_t bytes, CUstream stream) {
  return copy_in(SIGMA_REAL(cuMemcpyHtoDAsync_v2), to, from, bytes, stream);
}
CUresult cuMemcpyHtoDAsync_v2_ptsz(CUdeviceptr to, const void* from, size_t bytes,
                                   CUstream stream) {
  return copy_in(SIGMA_REAL(cuMemcpyHtoDAsync_v2_ptsz), to, from, bytes, stream);
}

// ---- memory for a NIC ---------------------------------------------------------------------------

CUresult cuMemGetHandleForAddressRange(void* handle, CUdeviceptr address, size_t bytes,
                                       CUmemRangeHandleType type, unsigned long long flags) {
  const Guard guard;
  const CUresult result =
      call(SIGMA_REAL(cuMemGetHandleForAddressRange), handle, address, bytes, type, flags);
  if (result == cuda::kSuccess && handle && type == cuda::kRangeDmaBuf && guard.outermost())
    on_dmabuf(*static_cast<int*>(handle), address, bytes);
  return result;
}
