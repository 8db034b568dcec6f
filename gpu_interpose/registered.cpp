// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
#include "gpu_interpose/registered.h"

#include <sys/syscall.h>
#include <unistd.h>

namespace sigma::gpu {

Registered registered;
SpinLock registry_lock;

Place place_of(int fd, const std::optional<UmemPlace>& in) {
  if (!in) return {};
  const Umem* umem = registered.umems.find(
      [&](const Umem& each) { return each.fd == fd && each.id == in->umem_id; });
  if (!umem || in->offset >= umem->bytes) return {};
  return {umem->address + in->offset, umem->memory, umem->gpu};
}

void add_completion_queue(const Caller& caller, const PrmFacts& facts) {
  CompletionQueue* row = registered.completion_queues.add();
  if (!row) return count(SIGMA_GPU_QUEUES_FULL);
  const Place ring = place_of(caller.fd, facts.ring);
  *row = {{true, caller.fd, caller.handle, caller.object},
          facts.number.value_or(0),
          facts.cq_entries.value_or(0),
          facts.cqe_bytes.value_or(0),
          ring.address,
          place_of(caller.fd, facts.doorbell).address,
          ring.memory,
          static_cast<uint16_t>((facts.collapsed.value_or(false) ? SIGMA_GPU_COLLAPSED : 0) |
                                (facts.overrun_ignore.value_or(false) ? SIGMA_GPU_OVERRUN : 0))};
}

void describe_completions(sigma_gpu_queue& queue, int fd) {
  const CompletionQueue* cq = registered.completion_queues.find(
      [&](const CompletionQueue& each) { return each.fd == fd && each.cqn == queue.cqn; });
  if (!cq) return;
  queue.cq_addr = cq->address;
  queue.cq_doorbell_addr = cq->doorbell;
  queue.cq_entries = cq->entries;
  queue.cqe_bytes = static_cast<uint16_t>(cq->cqe_bytes);
  queue.cq_memory = cq->memory;
  queue.flags |= cq->flags;
}

// The descriptor is closed soon, and its number used again: the file behind it is remembered.
void on_dmabuf(int fd, uint64_t address, uint64_t) {
  struct stat status;
  if (syscall(SYS_fstat, fd, &status) != 0) return;
  const Locked locked(registry_lock);
  registered.dmabufs[registered.dmabufs_seen++ % std::size(registered.dmabufs)] = {
      status.st_dev, status.st_ino, address};
}

void on_umem(const Caller& caller, uint32_t umem_id, uint64_t address, uint64_t bytes, int dmabuf) {
  MemoryFacts memory;
  struct stat status;
  if (dmabuf < 0) {
    memory = memory_of(address);
  } else if (syscall(SYS_fstat, dmabuf, &status) == 0) {
    const Locked locked(registry_lock);
    // The newest first: inode numbers come round as well.
    for (size_t i = registered.dmabufs_seen, n = 0; i-- > 0 && n < std::size(registered.dmabufs);
         ++n) {
      const DmaBuf& known = registered.dmabufs[i % std::size(registered.dmabufs)];
      if (known.device != status.st_dev || known.inode != status.st_ino) continue;
      memory = {SIGMA_GPU_MEMORY_DEVICE, -1, known.address};
      address += known.address;
      break;
    }
  }
  if (memory.memory == SIGMA_GPU_MEMORY_UNKNOWN) count(SIGMA_GPU_UNKNOWN_MEMORY);
  const Locked locked(registry_lock);
  watch_forks();
  Umem* row = registered.umems.add();
  if (!row) return count(SIGMA_GPU_UMEMS_FULL);
  *row = {{true, caller.fd, caller.handle, caller.object},
          umem_id,
          address,
          bytes,
          memory.allocation,
          memory.memory,
          memory.gpu};
}

void on_uar(const Caller& caller, uint32_t page, void* reg_addr, void* base_addr) {
  const Locked locked(registry_lock);
  watch_forks();
  DoorbellPage* row = registered.pages.add();
  if (!row) return count(SIGMA_GPU_UMEMS_FULL);
  *row = {{true, caller.fd, caller.handle, caller.object},
          page,
          reinterpret_cast<uint64_t>(reg_addr),
          reinterpret_cast<uint64_t>(base_addr),
          false};
}

void on_uar_freed(const void* object) {
  const Locked locked(registry_lock);
  if (DoorbellPage* page =
          registered.pages.find([&](const DoorbellPage& each) { return each.object == object; }))
    page->live = false;
}

}  // namespace sigma::gpu
