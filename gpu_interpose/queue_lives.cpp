// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Queues' lives: how they end, are reset, and come back where the job's call failed. What a reader has to
// see first it is asked to look at, before the job goes on.
#include <infiniband/verbs.h>

#include <atomic>

#include "decode/prm.h"
#include "gpu_interpose/copier.h"
#include "gpu_interpose/driver.h"
#include "gpu_interpose/queue_facts.h"
#include "gpu_interpose/queues.h"
#include "gpu_interpose/reader.h"
#include "gpu_interpose/registered.h"
#include "gpu_interpose/registry_entry.h"

namespace sigma::gpu {
namespace {

constexpr auto& registry = sigmatrace_gpu_registry;

// The reader sees to those queues first, without the lock; not for long.
void ask_reader(ReaderMark mark, auto&& which) {
  if (!reader_listens()) return;
  bool any = false;
  {
    const Locked locked(registry_lock);
    for (uint32_t i = 0; i < registry.used; ++i) {
      const sigma_gpu_queue& queue = registry.queues[i];
      if (queue.state != SIGMA_GPU_QUEUE_LIVE || !(queue.flags & SIGMA_GPU_INITIATED) || !which(i))
        continue;
      reader_mark(i, mark);
      any = true;
    }
  }
  if (any) reader_wait();
}

// The reader takes its last look before.
uint64_t end_queues(auto&& which) {
  ask_reader(ReaderMark::ends, which);
  const uint64_t since_ns = now_ns();
  const Locked locked(registry_lock);
  for (uint32_t i = 0; i < registry.used; ++i)
    if (registry.queues[i].state == SIGMA_GPU_QUEUE_LIVE && which(i)) end_queue(i);
  return since_ns;
}

// The same queue, or its memory for another use: what is told of it from now on is another life.
void begin_life(sigma_gpu_queue& queue) {
  queue.life = next_life();
  queue.created_ns = now_ns();
  queue.flags &= static_cast<uint16_t>(~SIGMA_GPU_LISTENED);
  queue.flags |= SIGMA_GPU_USED_BEFORE;
}

// What ended has not ended: the job's call failed. The reader takes it up before the job goes on.
void revive_queues(uint64_t since_ns, auto&& which) {
  bool any = false;
  const bool listens = reader_listens();
  {
    const Locked locked(registry_lock);
    for (uint32_t i = 0; i < registry.used; ++i) {
      sigma_gpu_queue& queue = registry.queues[i];
      if (queue.state != SIGMA_GPU_QUEUE_ENDED || queue.ended_ns < since_ns || !which(i)) continue;
      queue_objects[i].live = true;
      write_entry(queue, [&] {
        queue.state = SIGMA_GPU_QUEUE_LIVE;
        queue.ended_ns = 0;
        begin_life(queue);
      });
      if (listens) reader_mark(i, ReaderMark::look);
      any = true;
    }
  }
  if (!any) return;
  reader_queues_changed(false);
  if (!listens) return;
  reader_wait();
  const Locked locked(registry_lock);
  for (uint32_t i = 0; i < registry.used; ++i)
    if (registry.queues[i].state == SIGMA_GPU_QUEUE_LIVE && which(i)) reader_unmark(i);
}

bool resets(std::span<const std::byte> command) {
  const auto facts = decode_prm(command, {});
  return facts && facts->action == PrmAction::modify && facts->object == PrmObject::qp &&
         facts->to_state == IBV_QPS_RESET;
}

// A queue that was reset begins to count at 0, in memory that still shows what it was.
void on_reset(const Caller& caller) {
  const auto is_it = [&](uint32_t i) { return queue_objects[i].is(caller); };
  const bool listens = reader_listens();
  {
    const Locked locked(registry_lock);
    for (uint32_t i = 0; i < registry.used; ++i) {
      sigma_gpu_queue& queue = registry.queues[i];
      if (queue.state != SIGMA_GPU_QUEUE_LIVE || !is_it(i)) continue;
      // Marked first: a new life without a mark is taken for a queue that went unseen.
      if (listens && (queue.flags & SIGMA_GPU_INITIATED)) reader_mark(i, ReaderMark::reset);
      write_entry(queue, [&] { begin_life(queue); });
    }
  }
  if (listens) reader_wait();
  const Locked locked(registry_lock);
  for (uint32_t i = 0; i < registry.used; ++i)
    if (is_it(i)) reader_unmark(i);
}

}  // namespace

// Numbers come round, and contexts' addresses as well: of equal ones the later has the higher life,
// whoever's they were.
uint32_t next_life() {
  static uint32_t lives = 0;
  return lives++;
}

void end_queue(uint32_t index) {
  sigma_gpu_queue& queue = registry.queues[index];
  write_entry(queue, [&] {
    queue.state = SIGMA_GPU_QUEUE_ENDED;
    queue.ended_ns = now_ns();
  });
  queue_objects[index].live = false;
  reader_gone(index);
}

void before_modify(const Caller& caller, std::span<const std::byte> command) {
  if (!reader_listens() || !resets(command)) return;
  const auto is_it = [&](uint32_t i) { return queue_objects[i].is(caller); };
  ask_reader(ReaderMark::look, is_it);
  const Locked locked(registry_lock);
  for (uint32_t i = 0; i < registry.used; ++i)
    if (is_it(i)) reader_unmark(i);
}

void on_modified(const Caller& caller, std::span<const std::byte> command,
                 std::span<const std::byte> answer) {
  const auto facts = decode_prm(command, answer);
  if (!facts || facts->status != 0 || facts->action != PrmAction::modify ||
      facts->object != PrmObject::qp)
    return;
  bool was_used = false;
  {
    const Locked locked(registry_lock);
    for (uint32_t i = 0; i < registry.used; ++i) {
      if (!queue_objects[i].is(caller)) continue;
      was_used |= registry.queues[i].qp_state != IBV_QPS_RESET;
      write_entry(registry.queues[i], [&] { apply_attributes(registry.queues[i], *facts); });
    }
  }
  if (was_used && facts->to_state == IBV_QPS_RESET) on_reset(caller);
}

uint64_t before_object_end(const Caller& caller) {
  bool any = false;
  const uint64_t since_ns =
      end_queues([&](uint32_t i) { return queue_objects[i].is(caller) && (any = true); });
  const Locked locked(registry_lock);
  if (CompletionQueue* cq = registered.completion_queues.find(
          [&](const CompletionQueue& each) { return each.is(caller); })) {
    cq->live = false;
    any = true;
  }
  return any ? since_ns : 0;
}

void on_object_kept(const Caller& caller, uint64_t since_ns) {
  if (since_ns == 0) return;
  {
    const Locked locked(registry_lock);
    registered.completion_queues.revive(caller);
  }
  revive_queues(since_ns, [&](uint32_t i) { return queue_objects[i].was(caller); });
}

uint64_t before_umem_end(const Caller& caller) {
  uint64_t begin = 0, bytes = 0;
  {
    const Locked locked(registry_lock);
    Umem* umem = registered.umems.find([&](const Umem& each) { return each.is(caller); });
    if (!umem) return 0;
    begin = umem->address;
    bytes = umem->bytes;
    umem->live = false;
  }
  return before_memory_end(begin, bytes);
}

void on_umem_kept(const Caller& caller, uint64_t since_ns) {
  if (since_ns == 0) return;
  uint64_t begin = 0, bytes = 0;
  {
    const Locked locked(registry_lock);
    const Umem* umem = registered.umems.revive(caller);
    if (!umem) return;
    begin = umem->address;
    bytes = umem->bytes;
  }
  on_memory_kept(begin, bytes, since_ns);
}

uint64_t before_memory_end(uint64_t begin, uint64_t bytes) {
  drop_indices(begin, bytes, true);
  return end_queues([&](uint32_t i) { return stands_in(registry.queues[i], begin, bytes); });
}

void on_memory_kept(uint64_t begin, uint64_t bytes, uint64_t since_ns) {
  revive_queues(since_ns, [&](uint32_t i) { return stands_in(registry.queues[i], begin, bytes); });
}

void on_memory_reused(uint64_t begin, uint64_t bytes) {
  drop_indices(begin, bytes, false);
  const Locked locked(registry_lock);
  for (uint32_t i = 0; i < registry.used; ++i)
    if (registry.queues[i].state == SIGMA_GPU_QUEUE_LIVE &&
        stands_in(registry.queues[i], begin, bytes))
      end_queue(i);
}

// Without a last look: the memory is gone. The driver is not asked under the lock.
void on_context_ended() {
  for (uint32_t i = 0; i < SIGMA_GPU_MAX_QUEUES; ++i) {
    uint64_t ring = 0;
    {
      const Locked locked(registry_lock);
      if (i >= registry.used) return;
      const sigma_gpu_queue& queue = registry.queues[i];
      if (queue.state == SIGMA_GPU_QUEUE_LIVE && queue.ring_memory == SIGMA_GPU_MEMORY_DEVICE)
        ring = queue.ring_addr;
    }
    if (ring == 0 || ask_driver(ring).memory != SIGMA_GPU_MEMORY_UNKNOWN) continue;
    const Locked locked(registry_lock);
    if (registry.queues[i].state == SIGMA_GPU_QUEUE_LIVE && registry.queues[i].ring_addr == ring)
      end_queue(i);
  }
}

}  // namespace sigma::gpu
