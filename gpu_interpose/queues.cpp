// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
#include "gpu_interpose/queues.h"

#include <infiniband/verbs.h>
#include <pthread.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <atomic>

#include "decode/prm.h"
#include "gpu_interpose/emit.h"
#include "gpu_interpose/hooks.h"
#include "gpu_interpose/lock.h"
#include "gpu_interpose/memory.h"
#include "gpu_interpose/reader.h"
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

struct Object {
  bool live;
  int fd;
  uint32_t handle;
  const void* object;

  bool is(const Caller& caller) const {
    if (!live) return false;
    return caller.object ? object == caller.object : fd == caller.fd && handle == caller.handle;
  }
};

struct Umem : Object {
  uint32_t id;
  uint64_t address, bytes, allocation;
  sigma_gpu_memory memory;
  int gpu;
};
struct DoorbellPage : Object {
  uint32_t page;
  uint64_t reg_addr, base_addr;
  bool mapped;  // registered with the driver
};
struct CompletionQueue : Object {
  uint32_t cqn, entries, cqe_bytes;
  uint64_t address, doorbell;
  sigma_gpu_memory memory;
  uint16_t flags;
};
struct DmaBuf {
  dev_t device;
  ino_t inode;
  uint64_t address;
};

// Each queue pair has up to four pieces of memory and a completion queue.
template <typename T, size_t N>
struct Table {
  T rows[N];
  size_t used;

  T* add() {
    for (size_t i = 0; i < used; ++i)
      if (!rows[i].live) return &(rows[i] = T{});
    return used < N ? &(rows[used++] = T{}) : nullptr;
  }
  // The newest first: descriptors and numbers are used again.
  T* find(auto&& fits) {
    for (size_t i = used; i-- > 0;)
      if (rows[i].live && fits(rows[i])) return &rows[i];
    return nullptr;
  }
};

SpinLock lock;
Table<Umem, 4 * SIGMA_GPU_MAX_QUEUES> umems;
Table<DoorbellPage, SIGMA_GPU_MAX_QUEUES> pages;
Table<CompletionQueue, SIGMA_GPU_MAX_QUEUES> completion_queues;
Object queue_objects[SIGMA_GPU_MAX_QUEUES];  // beside registry.queues
DmaBuf dmabufs[1024];                        // the newest
size_t dmabufs_seen = 0;

uint64_t now_ns() {
  timespec time{};
  clock_gettime(CLOCK_MONOTONIC, &time);
  return static_cast<uint64_t>(time.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(time.tv_nsec);
}

// What a reader from outside sees is either before or after `change`.
void write(sigma_gpu_queue& queue, auto&& change) {
  std::atomic_ref<uint32_t> sequence(queue.sequence);
  const uint32_t before = sequence.load(std::memory_order_relaxed);
  sequence.store(before + 1, std::memory_order_relaxed);
  std::atomic_thread_fence(std::memory_order_release);
  change();
  sequence.store(before + 2, std::memory_order_release);
}

void after_fork() {
  forget_ranges();
  forget_queues();
  reader_after_fork();
}

// Before the first entry; under the lock.
void watch_forks() {
  static bool watching = false;
  if (!watching) pthread_atfork(nullptr, nullptr, after_fork);
  watching = true;
  registry.cuda = 1;
}

struct Place {
  uint64_t address = 0;
  sigma_gpu_memory memory = SIGMA_GPU_MEMORY_UNKNOWN;
  int gpu = -1;
};

Place place_of(int fd, const std::optional<UmemPlace>& in) {
  if (!in) return {};
  const Umem* umem =
      umems.find([&](const Umem& each) { return each.fd == fd && each.id == in->umem_id; });
  if (!umem || in->offset >= umem->bytes) return {};
  return {umem->address + in->offset, umem->memory, umem->gpu};
}

bool reachable_by_gpu(uint8_t memory) {
  return memory == SIGMA_GPU_MEMORY_REGISTERED || memory == SIGMA_GPU_MEMORY_DEVICE ||
         memory == SIGMA_GPU_MEMORY_MANAGED;
}

// Whether a GPU posts to it, and how it could be read. A GPU needs to reach the ring, and either
// the doorbell or a CPU thread that rings for it: a ring that it reaches is enough.
void classify(sigma_gpu_queue& queue) {
  const bool initiated = reachable_by_gpu(queue.ring_memory) ||
                         reachable_by_gpu(queue.doorbell_memory) ||
                         (queue.flags & SIGMA_GPU_UAR_MAPPED);
  if (!initiated) return;
  queue.flags |= SIGMA_GPU_INITIATED;
  const bool on_host = queue.ring_memory == SIGMA_GPU_MEMORY_HOST ||
                       queue.ring_memory == SIGMA_GPU_MEMORY_REGISTERED;
  queue.tier = on_host ? 1 : 0;
  queue.reason = queue.ring_memory == SIGMA_GPU_MEMORY_UNKNOWN ? SIGMA_GPU_REASON_UNKNOWN_MEMORY
                 : on_host                                     ? SIGMA_GPU_REASON_NONE
                                                               : SIGMA_GPU_REASON_DEVICE_MEMORY;
}

uint8_t qp_type_of(QpService service) {
  switch (service) {
    case QpService::rc:
      return IBV_QPT_RC;
    case QpService::uc:
      return IBV_QPT_UC;
    case QpService::ud:
      return IBV_QPT_UD;
    case QpService::dci:
      return IBV_QPT_DRIVER & 0xff;
    default:
      return 0xff;
  }
}

uint8_t mtu_of(uint32_t bytes) {
  uint8_t mtu = 0;
  for (uint32_t each = IBV_MTU_256; each <= IBV_MTU_4096; ++each)
    if (128u << each == bytes) mtu = static_cast<uint8_t>(each);
  return mtu;
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

uint32_t next_life(int fd, uint32_t qp_num) {
  uint32_t life = 0;
  for (uint32_t i = 0; i < registry.used; ++i)
    if (queue_objects[i].fd == fd && registry.queues[i].qp_num == qp_num &&
        registry.queues[i].life >= life)
      life = registry.queues[i].life + 1;
  return life;
}

void add_completion_queue(const Caller& caller, const PrmFacts& facts) {
  CompletionQueue* row = completion_queues.add();
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
  const CompletionQueue* cq = completion_queues.find(
      [&](const CompletionQueue& each) { return each.fd == fd && each.cqn == queue.cqn; });
  if (!cq) return;
  queue.cq_addr = cq->address;
  queue.cq_doorbell_addr = cq->doorbell;
  queue.cq_entries = cq->entries;
  queue.cqe_bytes = static_cast<uint16_t>(cq->cqe_bytes);
  queue.cq_memory = cq->memory;
  queue.flags |= cq->flags;
}

void describe_page(sigma_gpu_queue& queue, int fd) {
  const DoorbellPage* page = pages.find(
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
      write(other, [&] { other.flags |= SIGMA_GPU_UAR_SHARED; });
  }
}

void apply_attributes(sigma_gpu_queue& queue, const PrmFacts& facts) {
  const auto take = [](auto& field, const auto& fact) {
    if (fact) field = static_cast<std::remove_reference_t<decltype(field)>>(*fact);
  };
  take(queue.qp_state, facts.to_state);
  take(queue.peer_qp_num, facts.peer_qp_num);
  take(queue.peer_lid, facts.peer_lid);
  take(queue.udp_sport, facts.udp_source_port);
  take(queue.dscp, facts.dscp);
  take(queue.traffic_class, facts.traffic_class);
  take(queue.sl, facts.service_level);
  take(queue.hop_limit, facts.hop_limit);
  take(queue.gid_index, facts.source_gid_index);
  take(queue.port, facts.port);
  take(queue.ack_timeout, facts.ack_timeout);
  take(queue.retries, facts.retry_count);
  take(queue.rnr_retries, facts.rnr_retry);
  if (facts.mtu_bytes) queue.mtu = mtu_of(*facts.mtu_bytes);
  if (facts.peer_gid) memcpy(queue.peer_gid, facts.peer_gid->data(), sizeof queue.peer_gid);
  if (facts.to_state == IBV_QPS_RTR) queue.flags |= SIGMA_GPU_HAS_PATH;
  if (facts.to_state == IBV_QPS_RTS) queue.flags |= SIGMA_GPU_HAS_RETRIES;
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

void add_queue(const Caller& caller, const PrmFacts& facts, sigma_gpu_stack stack,
               bool& made_device_queue) {
  if (facts.sq_blocks.value_or(0) == 0) return;  // receives only
  const uint32_t index = take_entry();
  if (index == SIGMA_GPU_MAX_QUEUES) return count(SIGMA_GPU_QUEUES_FULL);
  sigma_gpu_queue queue{};
  queue.state = SIGMA_GPU_QUEUE_LIVE;
  queue.context = reinterpret_cast<uint64_t>(caller.context);
  queue.created_ns = now_ns();
  if (tracer_present()) queue.flags |= SIGMA_GPU_LISTENED;
  queue.qp_num = facts.number.value_or(0);
  queue.life = next_life(caller.fd, queue.qp_num);
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
  queue_objects[index] = {true, caller.fd, caller.handle, caller.object};
  sigma_gpu_queue& entry = registry.queues[index];
  write(entry, [&] {
    queue.sequence = entry.sequence;
    memcpy(&entry, &queue, sizeof entry);
  });
  tell_host_queue(queue);
  made_device_queue =
      (queue.flags & SIGMA_GPU_INITIATED) && queue.ring_memory == SIGMA_GPU_MEMORY_DEVICE;
}

void end_queue(uint32_t index) {
  sigma_gpu_queue& queue = registry.queues[index];
  write(queue, [&] {
    queue.state = SIGMA_GPU_QUEUE_ENDED;
    queue.ended_ns = now_ns();
  });
  queue_objects[index].live = false;
  reader_gone(index);
}

bool overlaps(uint64_t address, uint64_t bytes, uint64_t begin, uint64_t length) {
  return address && address < begin + length && begin < address + bytes;
}

bool stands_in(const sigma_gpu_queue& queue, uint64_t begin, uint64_t bytes) {
  return overlaps(queue.ring_addr, queue.ring_entries * uint64_t{64}, begin, bytes) ||
         overlaps(queue.doorbell_addr, 8, begin, bytes) ||
         overlaps(queue.cq_addr, queue.cq_entries * uint64_t{queue.cqe_bytes}, begin, bytes);
}

// The reader takes its last look before, without the lock; not for long.
void end_queues(auto&& which) {
  if (reader_listens()) {
    bool any = false;
    {
      const Locked locked(lock);
      for (uint32_t i = 0; i < registry.used; ++i) {
        const sigma_gpu_queue& queue = registry.queues[i];
        if (queue.state != SIGMA_GPU_QUEUE_LIVE || !(queue.flags & SIGMA_GPU_INITIATED) ||
            !which(i))
          continue;
        reader_mark(i);
        any = true;
      }
    }
    if (any) reader_wait();
  }
  const Locked locked(lock);
  for (uint32_t i = 0; i < registry.used; ++i)
    if (registry.queues[i].state == SIGMA_GPU_QUEUE_LIVE && which(i)) end_queue(i);
}

}  // namespace

void count(sigma_gpu_counter counter, uint64_t n) {
  std::atomic_ref(registry.counters[counter]).fetch_add(n, std::memory_order_relaxed);
}

void count_wrapped() {
  std::atomic_ref(registry.wrapped).fetch_add(1, std::memory_order_relaxed);
}

// The descriptor is closed soon, and its number used again: the file behind it is remembered.
void on_dmabuf(int fd, uint64_t address, uint64_t) {
  struct stat status;
  if (syscall(SYS_fstat, fd, &status) != 0) return;
  const Locked locked(lock);
  dmabufs[dmabufs_seen++ % std::size(dmabufs)] = {status.st_dev, status.st_ino, address};
}

void on_umem(const Caller& caller, uint32_t umem_id, uint64_t address, uint64_t bytes, int dmabuf) {
  MemoryFacts memory;
  struct stat status;
  if (dmabuf < 0) {
    memory = memory_of(address);
  } else if (syscall(SYS_fstat, dmabuf, &status) == 0) {
    const Locked locked(lock);
    // The newest first: inode numbers come round as well.
    for (size_t i = dmabufs_seen, n = 0; i-- > 0 && n < std::size(dmabufs); ++n) {
      const DmaBuf& known = dmabufs[i % std::size(dmabufs)];
      if (known.device != status.st_dev || known.inode != status.st_ino) continue;
      memory = {SIGMA_GPU_MEMORY_DEVICE, -1, known.address};
      address += known.address;
      break;
    }
  }
  if (memory.memory == SIGMA_GPU_MEMORY_UNKNOWN) count(SIGMA_GPU_UNKNOWN_MEMORY);
  const Locked locked(lock);
  watch_forks();
  Umem* row = umems.add();
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
  const Locked locked(lock);
  watch_forks();
  DoorbellPage* row = pages.add();
  if (!row) return count(SIGMA_GPU_UMEMS_FULL);
  *row = {{true, caller.fd, caller.handle, caller.object},
          page,
          reinterpret_cast<uint64_t>(reg_addr),
          reinterpret_cast<uint64_t>(base_addr),
          false};
}

void on_uar_freed(const void* object) {
  const Locked locked(lock);
  if (DoorbellPage* page =
          pages.find([&](const DoorbellPage& each) { return each.object == object; }))
    page->live = false;
}

void on_object(const Caller& caller, std::span<const std::byte> command,
               std::span<const std::byte> answer) {
  const auto facts = decode_prm(command, answer);
  if (!facts || facts->status != 0 || facts->action != PrmAction::create) return;
  const sigma_gpu_stack stack = stack_of(caller.from);
  bool device_queue = false;
  {
    const Locked locked(lock);
    watch_forks();
    if (facts->object == PrmObject::cq) add_completion_queue(caller, *facts);
    if (facts->object == PrmObject::qp) add_queue(caller, *facts, stack, device_queue);
  }
  if (facts->object == PrmObject::qp) reader_queues_changed(device_queue);
}

void on_modified(const Caller& caller, std::span<const std::byte> command,
                 std::span<const std::byte> answer) {
  const auto facts = decode_prm(command, answer);
  if (!facts || facts->status != 0 || facts->action != PrmAction::modify ||
      facts->object != PrmObject::qp)
    return;
  const Locked locked(lock);
  for (uint32_t i = 0; i < registry.used; ++i)
    if (queue_objects[i].is(caller))
      write(registry.queues[i], [&] { apply_attributes(registry.queues[i], *facts); });
}

void before_object_end(const Caller& caller) {
  end_queues([&](uint32_t i) { return queue_objects[i].is(caller); });
  const Locked locked(lock);
  if (CompletionQueue* cq =
          completion_queues.find([&](const CompletionQueue& each) { return each.is(caller); }))
    cq->live = false;
}

void before_umem_end(const Caller& caller) {
  uint64_t begin = 0, bytes = 0;
  {
    const Locked locked(lock);
    Umem* umem = umems.find([&](const Umem& each) { return each.is(caller); });
    if (!umem) return;
    begin = umem->address;
    bytes = umem->bytes;
    umem->live = false;
  }
  before_memory_end(begin, bytes);
}

void before_memory_end(uint64_t begin, uint64_t bytes) {
  end_queues([&](uint32_t i) { return stands_in(registry.queues[i], begin, bytes); });
}

// A queue may have been made before its memory, or its doorbell page, was registered.
void on_host_registered(uint64_t begin, uint64_t bytes, bool io_memory) {
  const Locked locked(lock);
  if (io_memory)
    for (size_t i = 0; i < pages.used; ++i) {
      DoorbellPage& page = pages.rows[i];
      // The register, or the page that it is in.
      if (page.live && (overlaps(page.reg_addr, 1, begin, bytes) ||
                        overlaps(page.base_addr, 4096, begin, bytes)))
        page.mapped = true;
    }
  else
    for (size_t i = 0; i < umems.used; ++i)
      if (umems.rows[i].live && overlaps(umems.rows[i].address, umems.rows[i].bytes, begin, bytes))
        umems.rows[i].memory = SIGMA_GPU_MEMORY_REGISTERED;
  for (uint32_t i = 0; i < registry.used; ++i) {
    sigma_gpu_queue& queue = registry.queues[i];
    if (queue.state != SIGMA_GPU_QUEUE_LIVE) continue;
    const bool its_page =
        io_memory && (overlaps(queue.uar_addr, 1, begin, bytes) ||
                      overlaps(queue.uar_addr & ~uint64_t{4095}, 4096, begin, bytes));
    const bool its_ring = !io_memory && stands_in(queue, begin, bytes);
    if (!its_page && !its_ring) continue;
    write(queue, [&] {
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
  lock.unlock();
  umems.used = pages.used = completion_queues.used = 0;
  dmabufs_seen = 0;
  std::atomic_ref(registry.used).store(0, std::memory_order_release);
}

}  // namespace sigma::gpu
