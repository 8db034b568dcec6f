// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Device memory for others: kernels' threads, and NICs, which ask by address (as nvidia-peermem
// answers them) or by a dma-buf's descriptor. The emulated ConnectX is told at load where to ask.
#include <sys/stat.h>

#include "../../emulator/device/peer_memory.h"
#include "device_side.h"
#include "state.h"

namespace fake_cuda {
namespace {

bool is_device(const Allocation& allocation) {
  return allocation.kind == Kind::device || allocation.kind == Kind::mapped;
}

// A NIC registers whole pages, of which an allocation may fill the last only partly.
uint64_t whole_pages(uint64_t bytes) {
  return (bytes + 4095) / 4096 * 4096;
}

int by_address(uint64_t address, uint64_t bytes, uint8_t** out) {
  std::lock_guard<std::mutex> hold(state().lock);
  const Allocation* found = find_memory_at(address);
  if (!found || !is_device(*found)) return SIGMA_PEER_NOT_MINE;
  if (!options().peer_memory || !found->peer ||
      bytes > whole_pages(found->address + found->bytes) - address)
    return SIGMA_PEER_REFUSED;
  *out = behind(address, 1);
  return SIGMA_PEER_OK;
}

int by_descriptor(int fd, uint64_t offset, uint64_t bytes, uint8_t** out) {
  struct stat status;
  if (fstat(fd, &status) != 0 || !S_ISFIFO(status.st_mode)) return SIGMA_PEER_NOT_MINE;
  std::lock_guard<std::mutex> hold(state().lock);
  const auto found = state().dma_bufs.find(status.st_ino);
  if (found == state().dma_bufs.end()) return SIGMA_PEER_NOT_MINE;
  const Allocation& range = found->second;
  if (offset > range.bytes || bytes > range.bytes - offset) return SIGMA_PEER_REFUSED;
  *out = behind(range.address, 1);
  if (!*out) return SIGMA_PEER_REFUSED;
  *out += offset;
  return SIGMA_PEER_OK;
}

constexpr SigmaPeerMemory kClient = {by_address, by_descriptor};

__attribute__((constructor)) void offer() {
  if (connectx_register_peer_memory) connectx_register_peer_memory(&kClient);
}

}  // namespace
}  // namespace fake_cuda

extern "C" void* fake_gpu_address(CUdeviceptr pointer, size_t bytes) {
  std::lock_guard<std::mutex> hold(fake_cuda::state().lock);
  return fake_cuda::behind(pointer, bytes);
}
