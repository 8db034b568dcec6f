// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
#include "gpu_interpose/queues.h"

#include <infiniband/verbs.h>
#include <pthread.h>
#include <string.h>
#include <time.h>

#include <atomic>

#include "decode/prm.h"
#include "gpu_interpose/driver.h"
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
namespace {

constexpr auto& registry = sigmatrace_gpu_registry;
Object queue_objects[SIGMA_GPU_MAX_QUEUES];  // beside registry.queues

uint64_t now_ns() {
  timespec time{};
  clock_gettime(CLOCK_MONOTONIC, &time);
  return static_cast<uint64_t>(time.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(time.tv_nsec);
}

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

// Numbers come round, and contexts' addresses as well: of equal ones the later has the higher life,
// whoever's they were.
uint32_t next_life() {
  static uint32_t lives = 0;
  return lives++;
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

void end_queue(uint32_t index) {
  sigma_gpu_queue& queue = registry.queues[index];
  write_entry(queue, [&] {
    queue.state = SIGMA_GPU_QUEUE_ENDED;
    queue.ended_ns = now_ns();
  });
  queue_objects[index].live = false;
  reader_gone(index);
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
