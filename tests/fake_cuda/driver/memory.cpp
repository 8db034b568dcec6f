// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Device memory. What applications hold are addresses of an arena that no host thread may touch;
// what stands behind is one memory file, mapped a second time for the device side and for NICs.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <ctime>

#include "device_side.h"
#include "state.h"

namespace fake_cuda {
namespace {

constexpr uint64_t kArenaBytes = uint64_t{16} << 30, kAlignment = 512, kPageBytes = 4096;
constexpr uint64_t kGranularity = 2 << 20;  // of cuMemCreate
constexpr int kPosixFd = 1;

struct Arena {
  uint64_t device = 0;  // the addresses that applications hold
  uint8_t* behind = nullptr;
  int fd = -1;
  uint64_t physical_end = kArenaBytes;  // cuMemCreate takes what lies beyond the arena

  Arena() {
    fd = memfd_create("nvidia", MFD_CLOEXEC);
    if (fd < 0 || ftruncate(fd, static_cast<off_t>(8 * kArenaBytes)) != 0) return;
    const int high = fcntl(fd, F_DUPFD_CLOEXEC, 920);  // out of the way of programs that count
    if (high >= 0) {
      close(fd);
      fd = high;
    }
    // On a coherent platform host threads reach it as it is; what cuMemMap maps is not modelled
    // there.
    void* untouchable =
        options().coherent
            ? mmap(nullptr, kArenaBytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, 0)
            : mmap(nullptr, kArenaBytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1,
                   0);
    void* real =
        mmap(nullptr, kArenaBytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, 0);
    if (untouchable == MAP_FAILED || real == MAP_FAILED) return;
    madvise(real, kArenaBytes, MADV_DONTDUMP);
    device = reinterpret_cast<uint64_t>(untouchable);
    behind = static_cast<uint8_t*>(real);
  }
  bool holds(uint64_t address) const {
    return device && address >= device && address < device + kArenaBytes;
  }
  uint8_t* at(uint64_t address) const { return behind + (address - device); }
};

Arena& arena() {
  static Arena* const instance = new Arena;
  return *instance;
}

uint64_t round_up(uint64_t value, uint64_t to) {
  return (value + to - 1) / to * to;
}

// Every range of the arena that is taken: allocations, and reservations whether mapped or not.
std::vector<std::pair<uint64_t, uint64_t>> taken_ranges() {
  std::vector<std::pair<uint64_t, uint64_t>> ranges;
  for (const auto& [address, allocation] : state().memory)
    if (arena().holds(address)) ranges.emplace_back(address, address + allocation.bytes);
  for (const auto& [address, bytes] : state().reserved)
    ranges.emplace_back(address, address + bytes);
  std::sort(ranges.begin(), ranges.end());
  return ranges;
}

bool is_device_kind(Kind kind) {
  return kind == Kind::device || kind == Kind::mapped;
}

CUresult allocate(Context& context, CUdeviceptr* pointer, uint64_t bytes, Kind kind) {
  if (!pointer || bytes == 0) return CUDA_ERROR_INVALID_VALUE;
  std::lock_guard<std::mutex> hold(state().lock);
  const uint64_t address = take_addresses(bytes, kAlignment);
  if (!address) return CUDA_ERROR_OUT_OF_MEMORY;
  Allocation& made = state().memory[address];
  made = {};
  made.address = address;
  made.bytes = bytes;
  made.kind = kind;
  made.context = &context;
  made.device = context.device;
  *pointer = address;
  return CUDA_SUCCESS;
}

CUresult release(CUdeviceptr pointer) {
  std::lock_guard<std::mutex> hold(state().lock);
  const auto found = state().memory.find(pointer);
  if (found == state().memory.end() ||
      (found->second.kind != Kind::device && found->second.kind != Kind::managed))
    return CUDA_ERROR_INVALID_VALUE;
  if (found->second.kind == Kind::managed)
    munmap(reinterpret_cast<void*>(pointer), found->second.bytes);
  end_views(found->second.address, found->second.bytes);
  state().memory.erase(found);
  return CUDA_SUCCESS;
}

void drop_reference(uint64_t handle) {
  const auto found = state().physical.find(handle);
  if (found != state().physical.end() && --found->second.references == 0)
    state().physical.erase(found);
}

}  // namespace

void* take_host_memory(Context& context, uint64_t bytes, Allocation made) {
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return nullptr;
  made.address = reinterpret_cast<uint64_t>(memory);
  made.bytes = bytes;
  made.context = &context;
  made.device = context.device;
  std::lock_guard<std::mutex> hold(state().lock);
  state().memory[made.address] = made;
  return memory;
}

uint64_t take_addresses(uint64_t bytes, uint64_t alignment) {
  if (!arena().device || bytes > kArenaBytes) return 0;
  uint64_t at = round_up(arena().device, alignment);
  for (const auto& [begin, end] : taken_ranges()) {
    if (begin >= at && begin - at >= bytes) break;
    at = std::max(at, round_up(end, alignment));
  }
  return at + bytes <= arena().device + kArenaBytes ? at : 0;
}

void hold_context_lock(Context& context) {
  if (options().lock_ms == 0) return;
  {
    std::lock_guard<std::mutex> hold(state().lock);
    if (context.kernels == 0) return;
  }
  const timespec pause{options().lock_ms / 1000,
                       static_cast<long>(options().lock_ms % 1000) * 1'000'000};
  nanosleep(&pause, nullptr);
}

Allocation* find_memory_at(uint64_t address) {
  auto found = state().memory.upper_bound(address);
  if (found == state().memory.begin()) return nullptr;
  Allocation& candidate = std::prev(found)->second;
  return address - candidate.address < candidate.bytes ? &candidate : nullptr;
}

const Allocation* find_memory(uint64_t address, uint64_t bytes) {
  const Allocation* found = find_memory_at(address);
  return found && bytes <= found->bytes - (address - found->address) ? found : nullptr;
}

uint8_t* behind(uint64_t address, uint64_t bytes) {
  const Allocation* found = find_memory(address, bytes);
  if (!found) return nullptr;
  if (is_device_kind(found->kind)) return arena().at(address);
  if (found->host) return reinterpret_cast<uint8_t*>(found->host + (address - found->address));
  return reinterpret_cast<uint8_t*>(address);
}

// Page-locked memory goes with its context as well: nobody may touch it any more.
void drop_context_memory(Context& context) {
  for (auto i = state().memory.begin(); i != state().memory.end();) {
    const Allocation& allocation = i->second;
    if (allocation.context != &context ||
        (allocation.kind != Kind::device && allocation.kind != Kind::host)) {
      ++i;
      continue;
    }
    if (allocation.kind == Kind::host)
      munmap(reinterpret_cast<void*>(allocation.address), allocation.bytes);
    end_views(allocation.address, allocation.bytes);
    i = state().memory.erase(i);
  }
}

bool file_of(uint64_t address, int& fd, uint64_t& offset) {
  if (!arena().holds(address)) return false;
  const Allocation* found = find_memory_at(address);
  fd = arena().fd;
  offset = found && found->kind == Kind::mapped
               ? state().physical.at(found->physical).offset + (address - found->address)
               : address - arena().device;
  return true;
}

}  // namespace fake_cuda

using namespace fake_cuda;

extern "C" CUresult fake_gpu_free(CUdeviceptr pointer) {
  return release(pointer);
}

CUresult cuMemGetInfo_v2(size_t* free_bytes, size_t* total) {
  FAKE_CUDA_ENTER(context);
  (void)context;
  std::lock_guard<std::mutex> hold(state().lock);
  uint64_t used = 0;
  for (const auto& [begin, end] : taken_ranges()) used += end - begin;
  *total = kArenaBytes;
  *free_bytes = kArenaBytes - std::min(used, kArenaBytes);
  return CUDA_SUCCESS;
}

CUresult cuMemAlloc_v2(CUdeviceptr* pointer, size_t bytes) {
  FAKE_CUDA_ENTER(context);
  if (const CUresult refused = capture_allows()) return refused;
  std::lock_guard<std::mutex> driver(context->lock);
  hold_context_lock(*context);
  return allocate(*context, pointer, bytes, Kind::device);
}

CUresult cuMemAllocPitch_v2(CUdeviceptr* pointer, size_t* pitch, size_t width, size_t height,
                            unsigned) {
  if (!pitch) return CUDA_ERROR_INVALID_VALUE;
  *pitch = round_up(width, kAlignment);
  return cuMemAlloc_v2(pointer, *pitch * height);
}

// Managed memory migrates on a touch: host threads may use it.
CUresult cuMemAllocManaged(CUdeviceptr* pointer, size_t bytes, unsigned) {
  FAKE_CUDA_ENTER(context);
  if (!pointer || bytes == 0) return CUDA_ERROR_INVALID_VALUE;
  *pointer = reinterpret_cast<CUdeviceptr>(take_host_memory(*context, bytes, {.kind = Kind::managed, .peer = false}));
  return *pointer ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult cuMemFree_v2(CUdeviceptr pointer) {
  FAKE_CUDA_ENTER(context);
  if (pointer == 0) return CUDA_SUCCESS;
  if (const CUresult refused = capture_allows()) return refused;
  std::lock_guard<std::mutex> driver(context->lock);
  hold_context_lock(*context);
  return release(pointer);
}

static CUresult alloc_async(CUdeviceptr* pointer, size_t bytes, CUstream handle, bool per_thread) {
  FAKE_CUDA_ENTER(context);
  {
    std::lock_guard<std::mutex> hold(state().lock);
    if (!resolve(*context, handle, per_thread, why)) return why;
  }
  return allocate(*context, pointer, bytes, Kind::device);
}
CUresult cuMemAllocAsync(CUdeviceptr* pointer, size_t bytes, CUstream stream) {
  return alloc_async(pointer, bytes, stream, false);
}
CUresult cuMemAllocAsync_ptsz(CUdeviceptr* pointer, size_t bytes, CUstream stream) {
  return alloc_async(pointer, bytes, stream, true);
}
CUresult cuMemAllocFromPoolAsync(CUdeviceptr* pointer, size_t bytes, CUmemoryPool,
                                 CUstream stream) {
  return alloc_async(pointer, bytes, stream, false);
}
CUresult cuMemAllocFromPoolAsync_ptsz(CUdeviceptr* pointer, size_t bytes, CUmemoryPool,
                                      CUstream stream) {
  return alloc_async(pointer, bytes, stream, true);
}

static CUresult free_async(CUdeviceptr pointer, CUstream handle, bool per_thread) {
  FAKE_CUDA_ENTER(context);
  std::lock_guard<std::mutex> hold(state().lock);
  Stream* stream = resolve(*context, handle, per_thread, why);
  if (!stream) return why;
  if (!find_memory(pointer, 1)) return CUDA_ERROR_INVALID_VALUE;
  enqueue(*stream, [pointer] { release(pointer); });
  return CUDA_SUCCESS;
}
CUresult cuMemFreeAsync(CUdeviceptr pointer, CUstream stream) {
  return free_async(pointer, stream, false);
}
CUresult cuMemFreeAsync_ptsz(CUdeviceptr pointer, CUstream stream) {
  return free_async(pointer, stream, true);
}

CUresult cuMemGetAddressRange_v2(CUdeviceptr* base, size_t* bytes, CUdeviceptr pointer) {
  FAKE_CUDA_ENTER(context);
  (void)context;
  std::lock_guard<std::mutex> hold(state().lock);
  const Allocation* found = find_memory(pointer, 1);
  if (!found) return CUDA_ERROR_NOT_FOUND;
  if (base) *base = found->address;
  if (bytes) *bytes = found->bytes;
  return CUDA_SUCCESS;
}

// A dma-buf: the descriptor is good for a NIC, and cannot be mapped (as on discrete GPUs). It is
// known by its inode, so that duplicates count too.
CUresult cuMemGetHandleForAddressRange(void* handle, CUdeviceptr pointer, size_t bytes,
                                       CUmemRangeHandleType type, unsigned long long) {
  FAKE_CUDA_ENTER(context);
  (void)context;
  if (type != CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD || !handle || bytes == 0)
    return CUDA_ERROR_INVALID_VALUE;
  if (!options().dma_buf) return CUDA_ERROR_NOT_SUPPORTED;
  if (pointer % kPageBytes || bytes % kPageBytes) return CUDA_ERROR_INVALID_VALUE;
  std::lock_guard<std::mutex> hold(state().lock);
  const Allocation* found = find_memory_at(pointer);
  if (!found || !is_device_kind(found->kind)) return CUDA_ERROR_INVALID_VALUE;
  // Allocations end where they end, but pages are whole.
  if (bytes > round_up(found->address + found->bytes, kPageBytes) - pointer)
    return CUDA_ERROR_INVALID_VALUE;
  if (!found->peer) return CUDA_ERROR_NOT_SUPPORTED;
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return CUDA_ERROR_OUT_OF_MEMORY;
  close(ends[1]);
  struct stat status;
  fstat(ends[0], &status);
  Allocation& range = state().dma_bufs[status.st_ino];
  range = *found;
  range.address = pointer;
  range.bytes = bytes;
  *static_cast<int*>(handle) = ends[0];
  return CUDA_SUCCESS;
}

CUresult cuMemGetAllocationGranularity(size_t* bytes, const CUmemAllocationProp* prop, int) {
  if (const CUresult why = usable()) return why;
  if (!bytes || !prop) return CUDA_ERROR_INVALID_VALUE;
  *bytes = kGranularity;
  return CUDA_SUCCESS;
}

CUresult cuMemCreate(CUmemGenericAllocationHandle* handle, size_t bytes,
                     const CUmemAllocationProp* prop, unsigned long long flags) {
  FAKE_CUDA_ENTER(context);
  (void)context;
  if (!handle || !prop || flags != 0 || bytes == 0 || bytes % kGranularity || prop->type != 1 ||
      prop->location.type != 1 || prop->location.id < 0 || prop->location.id >= options().devices)
    return CUDA_ERROR_INVALID_VALUE;
  std::lock_guard<std::mutex> hold(state().lock);
  if (arena().physical_end + bytes > 8 * kArenaBytes) return CUDA_ERROR_OUT_OF_MEMORY;
  *handle = state().next_handle++;
  Physical& made = state().physical[*handle];
  made = {};
  made.offset = arena().physical_end;
  made.bytes = bytes;
  made.device = prop->location.id;
  made.peer = prop->allocFlags.gpuDirectRDMACapable;
  arena().physical_end += bytes;
  return CUDA_SUCCESS;
}

CUresult cuMemRelease(CUmemGenericAllocationHandle handle) {
  if (const CUresult why = usable()) return why;
  std::lock_guard<std::mutex> hold(state().lock);
  if (!state().physical.contains(handle)) return CUDA_ERROR_INVALID_VALUE;
  drop_reference(handle);
  return CUDA_SUCCESS;
}

CUresult cuMemAddressReserve(CUdeviceptr* pointer, size_t bytes, size_t alignment, CUdeviceptr,
                             unsigned long long flags) {
  if (const CUresult why = usable()) return why;
  if (!pointer || bytes == 0 || bytes % kGranularity || flags != 0) return CUDA_ERROR_INVALID_VALUE;
  std::lock_guard<std::mutex> hold(state().lock);
  const uint64_t address = take_addresses(bytes, std::max<uint64_t>(alignment, kGranularity));
  if (!address) return CUDA_ERROR_OUT_OF_MEMORY;
  state().reserved[address] = bytes;
  *pointer = address;
  return CUDA_SUCCESS;
}

CUresult cuMemAddressFree(CUdeviceptr pointer, size_t bytes) {
  if (const CUresult why = usable()) return why;
  std::lock_guard<std::mutex> hold(state().lock);
  const auto found = state().reserved.find(pointer);
  if (found == state().reserved.end() || found->second != bytes) return CUDA_ERROR_INVALID_VALUE;
  const auto mapped = state().memory.lower_bound(pointer);
  if (mapped != state().memory.end() && mapped->first < pointer + bytes)
    return CUDA_ERROR_INVALID_VALUE;
  state().reserved.erase(found);
  return CUDA_SUCCESS;
}

CUresult cuMemMap(CUdeviceptr pointer, size_t bytes, size_t offset,
                  CUmemGenericAllocationHandle handle, unsigned long long flags) {
  if (const CUresult why = usable()) return why;
  std::lock_guard<std::mutex> hold(state().lock);
  const auto physical = state().physical.find(handle);
  auto reserved = state().reserved.upper_bound(pointer);
  if (physical == state().physical.end() || reserved == state().reserved.begin() || offset != 0 ||
      flags != 0 || bytes == 0 || bytes > physical->second.bytes || bytes % kGranularity)
    return CUDA_ERROR_INVALID_VALUE;
  --reserved;
  if (pointer + bytes > reserved->first + reserved->second || find_memory(pointer, 1))
    return CUDA_ERROR_INVALID_VALUE;
  if (mmap(arena().at(pointer), bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, arena().fd,
           static_cast<off_t>(physical->second.offset)) == MAP_FAILED)
    return CUDA_ERROR_OUT_OF_MEMORY;
  ++physical->second.references;
  Allocation& made = state().memory[pointer];
  made = {};
  made.address = pointer;
  made.bytes = bytes;
  made.kind = Kind::mapped;
  made.device = physical->second.device;
  made.peer = physical->second.peer;
  made.physical = handle;
  return CUDA_SUCCESS;
}

CUresult cuMemUnmap(CUdeviceptr pointer, size_t bytes) {
  if (const CUresult why = usable()) return why;
  std::lock_guard<std::mutex> hold(state().lock);
  const auto found = state().memory.find(pointer);
  if (found == state().memory.end() || found->second.kind != Kind::mapped ||
      found->second.bytes != bytes)
    return CUDA_ERROR_INVALID_VALUE;
  drop_reference(found->second.physical);
  end_views(pointer, bytes);
  state().memory.erase(found);
  // The arena's own pages again, so that no address of it ever faults on the device side.
  mmap(arena().at(pointer), bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, arena().fd,
       static_cast<off_t>(pointer - arena().device));
  return CUDA_SUCCESS;
}

CUresult cuMemSetAccess(CUdeviceptr pointer, size_t bytes, const CUmemAccessDesc* access,
                        size_t count) {
  if (const CUresult why = usable()) return why;
  std::lock_guard<std::mutex> hold(state().lock);
  return access && count > 0 && find_memory(pointer, bytes) ? CUDA_SUCCESS
                                                            : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuMemExportToShareableHandle(void* out, CUmemGenericAllocationHandle handle, int type,
                                      unsigned long long) {
  if (const CUresult why = usable()) return why;
  if (!out || type != kPosixFd) return CUDA_ERROR_INVALID_VALUE;
  std::lock_guard<std::mutex> hold(state().lock);
  if (!state().physical.contains(handle)) return CUDA_ERROR_INVALID_VALUE;
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return CUDA_ERROR_OUT_OF_MEMORY;
  close(ends[1]);
  *static_cast<int*>(out) = ends[0];
  return CUDA_SUCCESS;
}
