// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
#include "gpu_interpose/published_index.h"

#include <endian.h>
#include <errno.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <atomic>

#include "gpu_interpose/queues.h"

namespace sigma::gpu {
namespace {

uint32_t load32(const std::byte* at) {
  uint32_t value;
  memcpy(&value, at, sizeof value);
  return value;
}
uint64_t load64(const std::byte* at) {
  uint64_t value;
  memcpy(&value, at, sizeof value);
  return value;
}

// ---- layouts ------------------------------------------------------------------------------------

// Structures that name ring and doorbell record by their addresses: byte offsets.
struct Layout {
  uint16_t bytes;
  uint16_t number, ring, record, index;
  uint32_t version;  // of the first word; 0: it has none
};
constexpr Layout kLayouts[] = {
    // nvshmemi_ibgda_device_qp_t of NVSHMEM 3.5 (device_host_transport/nvshmem_common_ibgda.h),
    // with
    // mvars.tx_wq.prod_idx: stored before the record
    {184, 8, 48, 56, 112, 1u << 16 | 184},
    // doca_gpu_dev_verbs_qp of DOCA GPUNetIO and NCCL (doca_gpunetio_verbs_dev.h), with sq_wqe_pi:
    // stored before the record
    {296, 24, 64, 72, 16, 0},
};
// UCX's stands in the registered memory itself, around completion and doorbell record
// (uct_rc_gdaki_dev_ep_t, src/uct/ib/mlx5/gdaki/gdaki_dev.h): its place is what it names. Its
// sq_ready_index is stored behind the record.
constexpr uint32_t kUcxBytes = 128, kUcxRecord = 72, kUcxIndex = 88, kUcxNumber = 100,
                   kUcxNumberBe = 112;
constexpr uint32_t kUcxMostPost = 1024;  // blocks of one post; with more the index is dropped
constexpr uint32_t kMostBytes = 296;

// ---- what is wanted -----------------------------------------------------------------------------

// Each queue that comes has so much of the job's copies searched for it; a copy costs a page.
constexpr int64_t kBudget = 16 << 20, kLeast = 4096;
constexpr size_t kMostCopied = 1 << 20;  // structures of 3,500 queues
std::atomic<int64_t> budget{0};

// Addresses of rings, as a filter: nobody takes the registry's lock for a word that is none.
constexpr size_t kFilterBits = 1 << 16;
std::atomic<uint64_t> filter[kFilterBits / 64];

size_t filter_bit(uint64_t ring_addr) {
  return (ring_addr * 0x9e3779b97f4a7c15) >> 48;
}
bool may_be_ring(uint64_t address) {
  const size_t bit = filter_bit(address);
  return filter[bit / 64].load(std::memory_order_relaxed) >> bit % 64 & 1;
}

// ---- search -------------------------------------------------------------------------------------

// Of the job's memory, or of the device's if it says so itself: a fault must be an error.
bool read_own(const std::byte* from, std::byte* to, size_t bytes) {
  iovec here{to, bytes}, there{const_cast<std::byte*>(from), bytes};
  return syscall(SYS_process_vm_readv, getpid(), &here, 1ul, &there, 1ul, 0ul) ==
         static_cast<long>(bytes);
}

// `at`: `left` bytes of a copy whose address on the device is `address`.
void search_at(const std::byte* at, size_t left, uint64_t address) {
  for (const Layout& layout : kLayouts) {
    if (left < layout.bytes || !may_be_ring(load64(at + layout.ring)) ||
        (layout.version && load32(at) != layout.version))
      continue;
    on_index({load32(at + layout.number), load64(at + layout.ring), load64(at + layout.record), 0,
              address + layout.index, 0});
  }
  if (left < kUcxBytes) return;
  const uint32_t number = load32(at + kUcxNumber);
  if (number != 0 && be32toh(load32(at + kUcxNumberBe)) >> 8 == number)
    on_index({number, 0, address + kUcxRecord, address, address + kUcxIndex, kUcxMostPost});
}

}  // namespace

void want_index(uint64_t ring_addr) {
  const size_t bit = filter_bit(ring_addr);
  filter[bit / 64].fetch_or(uint64_t{1} << bit % 64, std::memory_order_relaxed);
  budget.store(kBudget, std::memory_order_relaxed);
}

void on_copied_to_device(uint64_t to, const void* from, size_t bytes) {
  if (budget.load(std::memory_order_relaxed) <= 0) return;
  if (bytes < kUcxBytes || bytes > kMostCopied || to % 8 != 0) return;
  const int64_t cost = static_cast<int64_t>(bytes) > kLeast ? static_cast<int64_t>(bytes) : kLeast;
  budget.fetch_sub(cost, std::memory_order_relaxed);
  const int kept = errno;
  // Piece by piece, each with what a structure that begins in it may have behind it.
  constexpr size_t kPiece = 2048;
  alignas(8) std::byte piece[kPiece + kMostBytes];
  for (size_t done = 0; done < bytes; done += kPiece) {
    const size_t rest = bytes - done, here = rest < sizeof piece ? rest : sizeof piece;
    if (!read_own(static_cast<const std::byte*>(from) + done, piece, here)) break;
    for (size_t at = 0; at < kPiece && at < here; at += 8)
      search_at(piece + at, here - at, to + done + at);
  }
  errno = kept;
}

}  // namespace sigma::gpu
