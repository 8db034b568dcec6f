// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Which queues are looked at, and by which way: taken up from the registry as they come, begun again
// where they were reset.
#include <string.h>

#include "gpu_interpose/queue_facts.h"
#include "gpu_interpose/sampler.h"

namespace sigma::gpu {
namespace {

constexpr const char* kReasons[] = {
#define SIGMA_GPU_TEXT(name, text) text,
    SIGMA_GPU_REASONS(SIGMA_GPU_TEXT)
#undef SIGMA_GPU_TEXT
};

bool of_device(const sigma_gpu_queue& queue) {
  return queue.ring_memory == SIGMA_GPU_MEMORY_DEVICE;
}

}  // namespace

// As any reader of the registry: a copy that was not written to meanwhile.
bool Sampler::take(uint32_t index, sigma_gpu_queue& queue) const {
  auto& entry = registry_.queues[index];
  std::atomic_ref<uint32_t> sequence(entry.sequence);
  for (int tries = 0; tries < 100; ++tries) {
    const uint32_t before = sequence.load(std::memory_order_acquire);
    if (before & 1) continue;
    memcpy(&queue, &entry, sizeof queue);
    std::atomic_thread_fence(std::memory_order_acquire);
    if (sequence.load(std::memory_order_relaxed) == before) return true;
  }
  return false;
}

// -1: unknown, or memory of a context that is not the device's primary one, in which alone we copy.
int Sampler::gpu_of(const sigma_gpu_queue& queue) const {
  int device = -1;
  if (!calls_ || calls_->pointer_attribute(&device, cuda::kPointerDeviceOrdinal, queue.ring_addr) !=
                     cuda::kSuccess)
    return -1;
  return device < kMaxGpus ? device : -1;
}

void Sampler::begin(uint32_t index, const sigma_gpu_queue& queue, uint64_t attached_ns) {
  Watched& watched = watched_[index];
  memset(static_cast<void*>(&watched), 0, sizeof watched);
  watched.here = true;
  watched.created_ns = queue.created_ns;
  watched.gpu = -1;
  watched.cq = -1;
  // The first queue is what starts the reader: whoever listened then has missed nothing of it.
  watched.started =
      !(queue.flags & SIGMA_GPU_USED_BEFORE) &&
      (queue.created_ns >= attached_ns || (first_listener_ && queue.flags & SIGMA_GPU_LISTENED));
  const uint64_t now = now_ns();
  if (on_host(queue.ring_memory)) return watched.send.begin(queue, 1, SIGMA_RING_READ, false, "", now, out_);
  if (!of_device(queue) || queue.ring_addr == 0)
    return watched.send.begin(queue, 0, SIGMA_RING_SETUP, false, "memory of unknown kind", now,
                              out_);
  const int device = gpu_of(queue);
  if (device < 0)
    return watched.send.begin(queue, 0, SIGMA_RING_SETUP, false, "no device of its memory", now,
                              out_);
  watched.gpu = static_cast<int16_t>(device);
  begin_reading(index, queue);
  follow_index(watched, queue);
}

// How it is read, and its completion queue, which may serve several.
void Sampler::begin_reading(uint32_t index, const sigma_gpu_queue& queue) {
  Watched& watched = watched_[index];
  gpus_[watched.gpu].try_after_ns = 0;  // there is memory, so there is a context
  const bool completions_too = queue.cq_memory == SIGMA_GPU_MEMORY_DEVICE;
  uint32_t at = completions_used_;
  bool known = false;
  for (uint32_t i = 0; i < completions_used_ && !known; ++i) {
    known = completions_[i].look.is_of(queue);
    if (known || !completions_[i].look.begun()) at = i;
  }
  CompletionSlot* slot = completions_too && at < SIGMA_GPU_MAX_QUEUES ? &completions_[at] : nullptr;
  if (slot && !known) memset(static_cast<void*>(slot), 0, sizeof *slot);

  sigma_gpu_reason why = SIGMA_GPU_REASON_NONE;
  const bool mapped = open_windows(watched, queue, slot, why);
  const bool snapshot = options_.snapshots_only;
  const uint8_t tier = mapped ? 2 : snapshot ? 5 : 3;
  const bool given_up = !mapped && gpus_[watched.gpu].given_up;
  if (chosen_) chosen_(index, queue.created_ns, given_up ? 0 : tier, why);
  const uint64_t now = now_ns();
  if (given_up)
    return watched.send.begin(queue, 0, SIGMA_RING_SETUP, false, "reader gave up", now, out_);
  watched.send.begin(queue, tier, snapshot ? SIGMA_RING_SNAPSHOT : SIGMA_RING_READ, watched.started,
                     kReasons[why], now, out_);
  watched.send.why = kReasons[why];
  if (!slot) return;
  if (!known) {
    if (!slot->look.begin(queue, next_cq_life_++, tier, out_))
      return windows_.release(slot->window);
    if (at == completions_used_) ++completions_used_;
    slot->look.looked_ns = watched.started ? queue.created_ns : now;
    slot->started = watched.started;
  }
  ++slot->look.users;
  watched.cq = static_cast<int32_t>(at);
}

// All of its memory, or none: a look keeps the order of its reads among those of one kind only.
bool Sampler::open_windows(Watched& watched, const sigma_gpu_queue& queue, CompletionSlot* slot,
                           sigma_gpu_reason& why) {
  why = options_.snapshots_only ? SIGMA_GPU_REASON_SNAPSHOTS_WANTED : SIGMA_GPU_REASON_NOT_WANTED;
  if (options_.snapshots_only || !options_.windows) return false;
  const auto open = [&](Window*& window, uint64_t address, uint64_t bytes) {
    if (!window) window = windows_.open(watched.gpu, address, bytes, why);
    return window != nullptr;
  };
  const bool doorbell_too =
      queue.doorbell_addr != 0 && queue.doorbell_memory == SIGMA_GPU_MEMORY_DEVICE;
  if (open(watched.ring_window, queue.ring_addr, queue.ring_entries * uint64_t{kWqeBlockBytes}) &&
      (!doorbell_too || open(watched.doorbell_window, queue.doorbell_addr, 8)) &&
      (!slot || open(slot->window, queue.cq_addr, queue.cq_entries * uint64_t{queue.cqe_bytes}))) {
    why = SIGMA_GPU_REASON_NONE;
    return true;
  }
  close_windows(watched);
  return false;
}

void Sampler::close_windows(Watched& watched) {
  windows_.release(watched.ring_window);
  windows_.release(watched.doorbell_window);
  windows_.release(watched.index_window);
  if (watched.index.address()) watched.index.drop();
}

void Sampler::release_completions(Watched& watched) {
  if (watched.cq < 0) return;
  CompletionSlot& slot = completions_[watched.cq];
  watched.cq = -1;
  if (slot.look.users == 0 || --slot.look.users > 0) return;
  slot.look.end(out_);
  slot.planned = false;
  windows_.release(slot.window);
}

void Sampler::begin_again(uint32_t index) {
  Watched& watched = watched_[index];
  sigma_gpu_queue queue;
  const bool known = take(index, queue);
  if (watched.gpu < 0 || !known || watched.send.mode() == SIGMA_RING_SETUP) {
    watched.send.end(watched.told_whole, now_ns(), out_);
    release_completions(watched);
    close_windows(watched);
    watched.here = false;
    return;  // as a queue that came
  }
  const uint8_t tier = watched.send.tier(), mode = watched.send.mode();
  const char* const why = watched.send.why;
  watched.send.end(watched.told_whole, now_ns(), out_);
  watched.created_ns = queue.created_ns;
  // Without the last look nobody knows what in memory is whose.
  watched.started = watched.reborn = watched.told_whole;
  watched.told_whole = false;
  watched.send.begin(queue, tier, mode, watched.started, why, now_ns(), out_);
  watched.send.why = why;
  if (watched.started) watched.send.begin_behind(watched.record_value);
  // A stack that counts on where the queue begins anew is found to contradict it.
  watched.index.begin(watched.index.address(), queue.ring_entries, queue.index_behind, true);
  if (chosen_) chosen_(index, queue.created_ns, tier, SIGMA_GPU_REASON_NONE);
}

void Sampler::refresh(uint64_t attached_ns) {
  const uint32_t used =
      std::atomic_ref(const_cast<__u32&>(registry_.used)).load(std::memory_order_acquire);
  device_queues_ = 0;
  for (uint32_t i = 0; i < used && i < SIGMA_GPU_MAX_QUEUES; ++i) {
    sigma_gpu_queue queue;
    if (!take(i, queue)) continue;
    Watched& watched = watched_[i];
    const bool live = queue.state == SIGMA_GPU_QUEUE_LIVE && (queue.flags & SIGMA_GPU_INITIATED);
    const bool same = watched.here && watched.created_ns == queue.created_ns &&
                      watched.send.queue().qp_num == queue.qp_num;
    if (i >= used_) used_ = i + 1;
    // Gone without a last look: it was not waited for. With a mark it is being waited for.
    if (watched.here && (!live || !same) && !marked(i)) drop(watched);
    if (live && watched.here && watched.gpu >= 0 && !marked(i)) follow_index(watched, queue);
    if (live && !watched.here) begin(i, queue, attached_ns);
    if (live && of_device(queue)) ++device_queues_;
  }
}

SendLook* Sampler::send_of(const CompletionLook& look, uint32_t qp_num) {
  for (uint32_t i = 0; i < used_; ++i)
    if (watched_[i].here && watched_[i].send.queue().qp_num == qp_num && watched_[i].cq >= 0 &&
        &completions_[watched_[i].cq].look == &look)
      return &watched_[i].send;
  return nullptr;
}

}  // namespace sigma::gpu
