// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
#include "gpu_interpose/window.h"

#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <type_traits>

namespace sigma::gpu {
namespace {

// gdrdrv rounds to the GPU's pages of 64 KiB by itself; with dma-buf, gdrcopy maps whole pages of
// the host's.
constexpr uint64_t kPage = 4096;

}  // namespace

bool find_gdr_calls(GdrCalls& calls, void* (*find)(void* library, const char* symbol),
                    void* library) {
  const auto take = [&](auto& member, const char* symbol) {
    member = reinterpret_cast<std::remove_reference_t<decltype(member)>>(find(library, symbol));
    return member != nullptr;
  };
  return take(calls.open, "gdr_open") && take(calls.pin, "gdr_pin_buffer") &&
         take(calls.unpin, "gdr_unpin_buffer") && take(calls.info, "gdr_get_info_v2") &&
         take(calls.map, "gdr_map") && take(calls.unmap, "gdr_unmap");
}

// process_vm_readv cannot: it wants pages with a struct page, which I/O memory has not. Written to
// ourselves, the kernel reads the source as any system call reads its caller's memory, and a page
// that is gone is an error.
bool read_window(const Window& window, uint64_t address, void* to, size_t bytes) {
  if (address < window.begin || address >= window.end || bytes > window.end - address) return false;
  const auto from = address + static_cast<uint64_t>(window.offset);
  iovec source{reinterpret_cast<void*>(from), bytes}, target{to, bytes};
  return syscall(SYS_process_vm_writev, getpid(), &source, 1ul, &target, 1ul, 0ul) ==
         static_cast<long>(bytes);
}

// As gdrcopy tells such a device (its gdr_cuda_device_is_coherent). Whether this memory can be
// read, a read tells: where the driver keeps it to itself (CDMM) it cannot.
bool Windows::is_coherent(int device) {
  int uses = 0;
  return calls_ &&
         calls_->device_attribute(&uses, cuda::kDeviceUsesHostPageTables, device) ==
             cuda::kSuccess &&
         uses;
}

Window* Windows::open(int device, uint64_t address, uint64_t bytes, sigma_gpu_reason& why) {
  Window* free = nullptr;
  for (uint32_t i = 0; i < used_; ++i) {
    Window& each = table_[i];
    if (each.users == 0)
      free = free ? free : &each;
    else if (each.begin <= address && address + bytes <= each.end)
      return ++each.users, &each;
  }
  if (!free && used_ < kMost) free = &table_[used_++];
  if (!free) return why = SIGMA_GPU_REASON_WINDOWS_FULL, nullptr;
  uint8_t byte;
  *free = {};
  if (is_coherent(device)) {
    *free = {.begin = address, .end = address + bytes, .offset = 0, .users = 1};
    if (read_window(*free, address, &byte, 1)) return free;
    *free = {};
  }
  if (!map(*free, address, bytes, why)) return nullptr;
  free->users = 1;
  if (read_window(*free, address, &byte, 1)) return free;
  why = SIGMA_GPU_REASON_NOT_READABLE;
  unmap(*free);
  return nullptr;
}

bool Windows::map(Window& window, uint64_t address, uint64_t bytes, sigma_gpu_reason& why) {
  if (!tried_) {
    tried_ = true;
    if (find_ && find_(gdr_calls_)) {
      gdr_ = gdr_calls_.open();
      no_gdr_ = SIGMA_GPU_REASON_GDRCOPY_FAILED;  // no gdrdrv, say
    }
  }
  if (!gdr_) return why = no_gdr_, false;
  const uint64_t first = address / kPage * kPage;
  const uint64_t end = (address + bytes + kPage - 1) / kPage * kPage;
  if (gdr_calls_.pin(gdr_, first, end - first, 0, 0, &window.handle) != 0)
    return why = SIGMA_GPU_REASON_NOT_PINNED, false;
  GdrInfo info{};
  // Pages of the GPU: the mapping may begin before, and is no longer than what is pinned.
  if (gdr_calls_.info(gdr_, window.handle, &info) == 0 && info.va <= first &&
      end - info.va <= info.mapped_size) {
    window.mapped_bytes = end - info.va;
    if (gdr_calls_.map(gdr_, window.handle, &window.mapping, window.mapped_bytes) == 0) {
      window.begin = info.va;
      window.end = end;
      window.offset = static_cast<int64_t>(reinterpret_cast<uint64_t>(window.mapping) - info.va);
      return true;
    }
  }
  gdr_calls_.unpin(gdr_, window.handle);
  window = {};
  return why = SIGMA_GPU_REASON_NOT_MAPPED, false;
}

void Windows::unmap(Window& window) {
  if (window.mapping) {
    gdr_calls_.unmap(gdr_, window.handle, window.mapping, window.mapped_bytes);
    gdr_calls_.unpin(gdr_, window.handle);
  }
  window = {};
}

void Windows::release(Window*& window) {
  if (window && --window->users == 0) unmap(*window);
  window = nullptr;
}

}  // namespace sigma::gpu
