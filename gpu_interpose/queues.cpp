// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// The registry: queues come in by their create commands and are described there. How they end, are reset
// and come back: queue_lives.cpp.
#include "gpu_interpose/queues.h"

#include <infiniband/verbs.h>
#include <pthread.h>
#include <string.h>

#include <atomic>

#include "decode/prm.h"
#include "gpu_interpose/copier.h"
#include "gpu_interpose/emit.h"
#include "gpu_interpose/hooks.h"
#include "gpu_interpose/queue_facts.h"
#include "gpu_interpose/reader.h"
#include "gpu_interpose/registered.h"
#include "gpu_interpose/registry_entry.h"
#include "gpu_interpose/send_look.h"
#include "gpu_interpose/stack_name.h"
#include "gpu_interpose/text.h"

namespace {
sigma_gpu_queue queue_entries[SIGMA_GPU_MAX_QUEUES];
}

extern "C" {
__attribute__((visibility("default")))
sigma_gpu_registry sigmatrace_gpu_registry = {.magic = SIGMA_GPU_REGISTRY_MAGIC,
                                              .version = SIGMA_GPU_REGISTRY_VERSION,
                                              .head_bytes = sizeof(sigma_gpu_registry),
                                              .queue_bytes = sizeof(sigma_gpu_queue),
                                              .capacity = SIGMA_GPU_MAX_QUEUES,
                                              .queues = queue_entries};
}

namespace sigma::gpu {

Object queue_objects[SIGMA_GPU_MAX_QUEUES];

namespace {

constexpr auto& registry = sigmatrace_gpu_registry;

void after_fork() {
  forget_ranges();
  forget_queues();
  reader_after_fork();
}

// A free entry, else one whose queue has ended.
uint32_t take_entry() {
  const uint32_t used = registry.used;
  if (used < SIGMA_GPU_MAX_QUEUES) {
    std::atomic_ref(registry.used).store(used + 1, std::memory_order_release);
    return used;
  }
  for (uint32_t i = 0; i < used; ++i)
    if (registry.queues[i].state == SIGMA_GPU_QUEUE_ENDED) return i;
  return SIGMA_GPU_MAX_QUEUES;
}

void describe_page(sigma_gpu_queue& queue, int fd) {
  const DoorbellPage* page = registered.pages.find(
      [&](const DoorbellPage& each) { return each.fd == fd && each.page == queue.uar_page; });
  if (page) queue.uar_addr = page->reg_addr;
  if (page && page->mapped) queue.flags |= SIGMA_GPU_UAR_MAPPED;
  for (uint32_t i = 0; i < registry.used; ++i) {
    sigma_gpu_queue& other = registry.queues[i];
    if (other.state != SIGMA_GPU_QUEUE_LIVE || queue_objects[i].fd != fd ||
        other.uar_page != queue.uar_page)
      continue;
    queue.flags |= SIGMA_GPU_UAR_SHARED;
    if (!(other.flags & SIGMA_GPU_UAR_SHARED))
      write_entry(other, [&] { other.flags |= SIGMA_GPU_UAR_SHARED; });
  }
}

// A queue in host memory is read by the tracer, from outside; that a GPU posts to it is for us to
// say. No thread of ours is needed for it.
void tell_host_queue(const sigma_gpu_queue& queue) {
  if (queue.tier != 1 || !tracer_present()) return;
  RecordBatch batch(sigmatrace_gpu_emit);
  SendLook look;
  look.begin(queue, 1, SIGMA_RING_READ, false, "", now_ns(), batch);
  batch.flush();
}

// Queues that ended past the hooks: a new one has the number, or the memory.
void end_predecessors(int fd, const sigma_gpu_queue& queue) {
  for (uint32_t i = 0; i < registry.used; ++i) {
    const sigma_gpu_queue& other = registry.queues[i];
    const bool same_number = queue_objects[i].fd == fd && other.qp_num == queue.qp_num;
    const bool same_memory = other.ring_memory == queue.ring_memory &&
                             overlaps(queue.ring_addr, queue.ring_entries * uint64_t{64},
                                      other.ring_addr, other.ring_entries * uint64_t{64});
    if (other.state == SIGMA_GPU_QUEUE_LIVE && (same_number || same_memory)) end_queue(i);
  }
}

void add_queue(const Caller& caller, const PrmFacts& facts, sigma_gpu_stack stack,
               bool& made_device_queue) {
  if (facts.sq_blocks.value_or(0) == 0) return;  // receives only
  sigma_gpu_queue queue{};
  queue.state = SIGMA_GPU_QUEUE_LIVE;
  queue.context = reinterpret_cast<uint64_t>(caller.context);
  queue.created_ns = now_ns();
  if (tracer_present()) queue.flags |= SIGMA_GPU_LISTENED;
  queue.qp_num = facts.number.value_or(0);
  queue.life = next_life();
  queue.cqn = facts.send_cqn.value_or(0);
  queue.pdn = facts.pd.value_or(0);
  const Place ring = place_of(caller.fd, facts.ring),
              doorbell = place_of(caller.fd, facts.doorbell);
  if (ring.address) queue.ring_addr = ring.address + facts.sq_offset.value_or(0);
  queue.ring_entries = *facts.sq_blocks;
  queue.ring_memory = ring.memory;
  queue.doorbell_addr = doorbell.address;
  queue.doorbell_memory = doorbell.memory;
  queue.gpu = ring.gpu;
  queue.uar_page = facts.uar_page.value_or(0);
  queue.stack = stack;
  queue.qp_type = qp_type_of(facts.service);
  queue.tier = SIGMA_GPU_TIER_NONE;
  if (caller.context && caller.context->device)
    copy_text(queue.device, sizeof queue.device, caller.context->device->name);
  apply_attributes(queue, facts);
  describe_completions(queue, caller.fd);
  describe_page(queue, caller.fd);
  classify(queue);
  if (!caller.context) {
    queue.flags |= SIGMA_GPU_PAST_HOOKS;
    if (queue.flags & SIGMA_GPU_INITIATED) count(SIGMA_GPU_BINDING_HOLES);
  }
  end_predecessors(caller.fd, queue);
  const uint32_t index = take_entry();
  if (index == SIGMA_GPU_MAX_QUEUES) return count(SIGMA_GPU_QUEUES_FULL);
  if ((queue.flags & SIGMA_GPU_INITIATED) && queue.doorbell_addr) want_index(queue.ring_addr);
  queue_objects[index] = {true, caller.fd, caller.handle, caller.object};
  sigma_gpu_queue& entry = registry.queues[index];
  write_entry(entry, [&] {
    queue.sequence = entry.sequence;
    memcpy(&entry, &queue, sizeof entry);
  });
  tell_host_queue(queue);
  made_device_queue =
      (queue.flags & SIGMA_GPU_INITIATED) && queue.ring_memory == SIGMA_GPU_MEMORY_DEVICE;
}

}  // namespace

void watch_forks() {
  static bool watching = false;
  if (!watching) pthread_atfork(nullptr, nullptr, after_fork);
  watching = true;
  registry.cuda = 1;
}

void count(sigma_gpu_counter counter, uint64_t n) {
  std::atomic_ref(registry.counters[counter]).fetch_add(n, std::memory_order_relaxed);
}

void count_wrapped() {
  std::atomic_ref(registry.wrapped).fetch_add(1, std::memory_order_relaxed);
}

void on_object(const Caller& caller, std::span<const std::byte> command,
               std::span<const std::byte> answer) {
  const auto facts = decode_prm(command, answer);
  if (!facts || facts->status != 0 || facts->action != PrmAction::create) return;
  const sigma_gpu_stack stack = stack_of(caller.from);
  bool device_queue = false;
  {
    const Locked locked(registry_lock);
    watch_forks();
    if (facts->object == PrmObject::cq) add_completion_queue(caller, *facts);
    if (facts->object == PrmObject::qp) add_queue(caller, *facts, stack, device_queue);
  }
  if (facts->object == PrmObject::qp) reader_queues_changed(device_queue);
}

void tell_tier(uint32_t index, uint64_t created_ns, uint8_t tier, sigma_gpu_reason reason) {
  const Locked locked(registry_lock);
  sigma_gpu_queue& queue = registry.queues[index];
  if (queue.created_ns != created_ns || queue.state != SIGMA_GPU_QUEUE_LIVE) return;
  write_entry(queue, [&] {
    queue.tier = tier;
    queue.reason = static_cast<uint8_t>(reason);
  });
}

// A queue may have been made before its memory, or its doorbell page, was registered.
void on_host_registered(uint64_t begin, uint64_t bytes, bool io_memory) {
  const Locked locked(registry_lock);
  if (io_memory)
    for (size_t i = 0; i < registered.pages.used; ++i) {
      DoorbellPage& page = registered.pages.rows[i];
      // The register, or the page that it is in.
      if (page.live && (overlaps(page.reg_addr, 1, begin, bytes) ||
                        overlaps(page.base_addr, 4096, begin, bytes)))
        page.mapped = true;
    }
  else
    for (size_t i = 0; i < registered.umems.used; ++i)
      if (registered.umems.rows[i].live &&
          overlaps(registered.umems.rows[i].address, registered.umems.rows[i].bytes, begin, bytes))
        registered.umems.rows[i].memory = SIGMA_GPU_MEMORY_REGISTERED;
  for (uint32_t i = 0; i < registry.used; ++i) {
    sigma_gpu_queue& queue = registry.queues[i];
    if (queue.state != SIGMA_GPU_QUEUE_LIVE) continue;
    const bool its_page =
        io_memory && (overlaps(queue.uar_addr, 1, begin, bytes) ||
                      overlaps(queue.uar_addr & ~uint64_t{4095}, 4096, begin, bytes));
    const bool its_ring = !io_memory && stands_in(queue, begin, bytes);
    if (!its_page && !its_ring) continue;
    write_entry(queue, [&] {
      if (its_page) queue.flags |= SIGMA_GPU_UAR_MAPPED;
      if (its_ring && overlaps(queue.ring_addr, 1, begin, bytes))
        queue.ring_memory = SIGMA_GPU_MEMORY_REGISTERED;
      if (its_ring && overlaps(queue.doorbell_addr, 8, begin, bytes))
        queue.doorbell_memory = SIGMA_GPU_MEMORY_REGISTERED;
      if (its_ring && overlaps(queue.cq_addr, 1, begin, bytes))
        queue.cq_memory = SIGMA_GPU_MEMORY_REGISTERED;
      classify(queue);
    });
    tell_host_queue(queue);
  }
}

void forget_queues() {
  registry_lock.unlock();
  registered.umems.used = registered.pages.used = registered.completion_queues.used = 0;
  registered.dmabufs_seen = 0;
  std::atomic_ref(registry.used).store(0, std::memory_order_release);
}

}  // namespace sigma::gpu
