// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// What the registry says of the queues' producer indices.
#include "gpu_interpose/memory.h"
#include "gpu_interpose/queue_facts.h"
#include "gpu_interpose/queues.h"
#include "gpu_interpose/reader.h"
#include "gpu_interpose/registered.h"
#include "gpu_interpose/registry_entry.h"

namespace sigma::gpu {
namespace {

constexpr auto& registry = sigmatrace_gpu_registry;

}  // namespace

void drop_indices(uint64_t begin, uint64_t bytes, bool wait) {
  bool any = false;
  {
    const Locked locked(registry_lock);
    for (uint32_t i = 0; i < registry.used; ++i) {
      sigma_gpu_queue& queue = registry.queues[i];
      if (queue.state != SIGMA_GPU_QUEUE_LIVE || !overlaps(queue.index_addr, 8, begin, bytes))
        continue;
      write_entry(queue, [&] {
        queue.index_addr = 0;
        queue.index_bytes = 0;
        queue.index_state = SIGMA_GPU_INDEX_DROPPED;
      });
      any = true;
    }
  }
  if (!any) return;
  reader_queues_changed(false);
  if (wait && reader_listens()) reader_wait();
}

void on_index(const PublishedIndex& found) {
  const auto fits = [](uint64_t named, uint64_t known) { return named == 0 || named == known; };
  const auto names = [&](const sigma_gpu_queue& queue) {
    return queue.state == SIGMA_GPU_QUEUE_LIVE && (queue.flags & SIGMA_GPU_INITIATED) &&
           queue.qp_num == found.qp_num && queue.index_addr != found.index &&
           queue.doorbell_addr != 0 && fits(found.ring, queue.ring_addr) &&
           fits(found.completions, queue.cq_addr) &&
           (found.record == queue.doorbell_addr || found.record == queue.doorbell_addr + 4);
  };
  const MemoryFacts memory = memory_of(found.index);
  bool any = false;
  {
    const Locked locked(registry_lock);
    for (uint32_t i = 0; i < registry.used && !any; ++i) {
      sigma_gpu_queue& queue = registry.queues[i];
      if (!names(queue)) continue;
      write_entry(queue, [&] {
        queue.index_addr = found.index;
        queue.index_bytes = 8;
        queue.index_behind = found.behind;
        queue.index_memory = static_cast<uint8_t>(memory.memory);
        queue.index_state = SIGMA_GPU_INDEX_FOUND;
      });
      any = true;
    }
  }
  if (any) reader_queues_changed(false);
}

void tell_index(uint32_t index, uint64_t created_ns, sigma_gpu_index_state state) {
  if (state == SIGMA_GPU_INDEX_DROPPED) count(SIGMA_GPU_INDICES_DROPPED);
  const Locked locked(registry_lock);
  sigma_gpu_queue& queue = registry.queues[index];
  if (queue.created_ns != created_ns || queue.state != SIGMA_GPU_QUEUE_LIVE) return;
  write_entry(queue, [&] { queue.index_state = static_cast<uint8_t>(state); });
}

}  // namespace sigma::gpu
