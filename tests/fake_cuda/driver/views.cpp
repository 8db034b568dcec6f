// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Mappings of device memory for host threads, as gdrdrv makes them: they show nothing any more, and
// a touch faults, once the memory is freed.
#include <sys/mman.h>

#include "device_side.h"
#include "state.h"

namespace fake_cuda {
namespace {

struct View {
  uint64_t begin, bytes;  // device addresses
  bool alive;
};
std::map<void*, View> views;  // under the driver's lock

}  // namespace

void end_views(uint64_t begin, uint64_t bytes) {
  for (auto& [at, view] : views) {
    if (!view.alive || view.begin >= begin + bytes || begin >= view.begin + view.bytes) continue;
    view.alive = false;
    mmap(at, view.bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
  }
}

}  // namespace fake_cuda

using namespace fake_cuda;

extern "C" void* fake_gpu_map(CUdeviceptr pointer, size_t bytes) {
  std::lock_guard<std::mutex> hold(state().lock);
  int fd;
  uint64_t offset;
  if (!file_of(pointer, fd, offset)) return nullptr;
  void* at =
      mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, static_cast<off_t>(offset));
  if (at == MAP_FAILED) return nullptr;
  views[at] = {pointer, bytes, true};
  return at;
}

extern "C" void fake_gpu_unmap(void* at, size_t bytes) {
  std::lock_guard<std::mutex> hold(state().lock);
  views.erase(at);
  munmap(at, bytes);
}
