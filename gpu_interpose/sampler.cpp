// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Which queues are looked at, how, and how often; sampler_round.cpp has the looks.
#include "gpu_interpose/sampler.h"

#include <string.h>

#include "gpu_interpose/reader.h"

namespace sigma::gpu {
namespace {

constexpr uint64_t kIdleNs = 3'000'000, kShortestNs = 20'000, kLongestNs = 200'000;
constexpr uint64_t kIdleAfterNs = 1'000'000'000;
constexpr double kTargetFill = 0.12;  // of the fullest ring, that is new at a look
constexpr uint64_t kRetryNs = 100'000'000;

constexpr const char* kReasons[] = {
#define SIGMA_GPU_TEXT(name, text) text,
    SIGMA_GPU_REASONS(SIGMA_GPU_TEXT)
#undef SIGMA_GPU_TEXT
};

uint64_t of_device(const sigma_gpu_queue& queue) {
  return queue.ring_memory == SIGMA_GPU_MEMORY_DEVICE;
}

}  // namespace

size_t Sampler::memory_bytes() {
  return SIGMA_GPU_MAX_QUEUES * (sizeof(Watched) + sizeof(CompletionSlot)) +
         Windows::kMost * sizeof(Window);
}

Sampler::Sampler(const sigma_gpu_registry& registry, const CudaCalls* calls, RecordBatch& out,
                 void* memory, const SamplerOptions& options, const std::atomic<uint8_t>* marks,
                 FindGdr find_gdr, Chosen chosen)
    : registry_(registry),
      calls_(calls),
      out_(out),
      options_(options),
      marks_(marks),
      chosen_(chosen),
      watched_(static_cast<Watched*>(memory)),
      completions_(reinterpret_cast<CompletionSlot*>(watched_ + SIGMA_GPU_MAX_QUEUES)),
      windows_(reinterpret_cast<Window*>(completions_ + SIGMA_GPU_MAX_QUEUES), calls, find_gdr) {}

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
  const bool on_host = queue.ring_memory == SIGMA_GPU_MEMORY_HOST ||
                       queue.ring_memory == SIGMA_GPU_MEMORY_REGISTERED;
  if (on_host) return watched.send.begin(queue, 1, SIGMA_RING_READ, false, "", now, out_);
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

bool Sampler::wants_copies(int device) const {
  for (uint32_t i = 0; i < used_; ++i)
    if (sampled(watched_[i], device) && !watched_[i].ring_window) return true;
  return false;
}

bool Sampler::usable(Gpu& gpu, int device, bool last) {
  if (!calls_ || !gpu.copier.has_buffer()) return false;
  const uint64_t now = now_ns();
  if (gpu.copier.is_open() || !wants_copies(device)) return true;
  if (now < gpu.try_after_ns && !last) return false;
  switch (gpu.copier.open(*calls_, device)) {
    case Copier::Open::ready:
      return true;
    case Copier::Open::inactive:
      gpu.try_after_ns = now + kRetryNs;
      return false;
    case Copier::Open::failed:
      break;
  }
  give_up(device, "no stream");
  return false;
}

// The reader, not the job: queues of this device that are read by copies are from now on known by
// their set-up only.
void Sampler::give_up(int device, const char* reason) {
  gpus_[device].given_up = true;
  gpus_[device].waiting = false;
  gpus_[device].copier.give_up();
  for (uint32_t i = 0; i < used_; ++i)
    if (watched_[i].here && watched_[i].gpu == device && watched_[i].send.begun() &&
        !watched_[i].ring_window)
      lose(i, reason);
}

void Sampler::give_up_queue(uint32_t index, const char* reason) {
  Watched& watched = watched_[index];
  watched.looked = watched.told_whole = false;
  watched.send.change(0, SIGMA_RING_SETUP, reason, out_);
  watched.send.why = reason;
  if (chosen_) chosen_(index, watched.created_ns, 0, SIGMA_GPU_REASON_GIVEN_UP);
}

// Its memory cannot be read any more: the reader failed, or it was freed past the hooks; or with
// the queue, or its context, and the job had no time to wait for a last look. Such a one was read
// as it was read, to an end that was not seen.
void Sampler::lose(uint32_t index, const char* reason) {
  Watched& watched = watched_[index];
  watched.looked = watched.told_whole = false;
  if (marks_ &&
      marks_[index].load(std::memory_order_acquire) == static_cast<uint8_t>(ReaderMark::ends)) {
    watched.gpu = -1;  // not looked at any more; its end is asked for, and comes next
    return;
  }
  sigma_gpu_queue queue;
  const bool lives = take(index, queue) && queue.state == SIGMA_GPU_QUEUE_LIVE &&
                     queue.created_ns == watched.created_ns;
  if (lives) return give_up_queue(index, reason);
  drop(watched);
}

// It has ended, and there was no last look.
void Sampler::drop(Watched& watched) {
  watched.send.end(false, now_ns(), out_);
  release_completions(watched);
  close_windows(watched);
  watched.here = false;
}

// After a call that the driver refused: queues whose memory it does not know any more, freed past
// the hooks or faster than we looked. False: that was not why.
bool Sampler::drop_gone(int device) {
  bool any = false;
  const auto gone = [&](uint64_t address, uint8_t memory) {
    int ordinal;
    return address != 0 && memory == SIGMA_GPU_MEMORY_DEVICE &&
           calls_->pointer_attribute(&ordinal, cuda::kPointerDeviceOrdinal, address) !=
               cuda::kSuccess;
  };
  for (uint32_t i = 0; i < used_; ++i) {
    if (!sampled(watched_[i], device) || watched_[i].ring_window) continue;
    const sigma_gpu_queue& queue = watched_[i].send.queue();
    if (gone(watched_[i].index.address(), SIGMA_GPU_MEMORY_DEVICE)) {
      watched_[i].index.drop();
      any = true;
    }
    if (!gone(queue.ring_addr, queue.ring_memory) &&
        !gone(queue.doorbell_addr, queue.doorbell_memory) && !gone(queue.cq_addr, queue.cq_memory))
      continue;
    lose(i, "its memory is gone");
    any = true;
  }
  return any;
}

// Some window shows nothing any more: memory was freed past the hooks, this queue's or what shared
// a page of the GPU's with it.
void Sampler::drop_faulted(int device) {
  gpus_[device].faulted = false;
  const auto shows = [](Window* window, uint64_t address) {
    std::byte byte;
    if (!window || read_window(*window, address, &byte, 1)) return true;
    Windows::retire(*window);
    return false;
  };
  for (uint32_t i = 0; i < used_; ++i) {
    Watched& watched = watched_[i];
    if (!sampled(watched, device) || !watched.ring_window) continue;
    const sigma_gpu_queue& queue = watched.send.queue();
    CompletionSlot* slot = watched.cq >= 0 ? &completions_[watched.cq] : nullptr;
    const bool ring = shows(watched.ring_window, queue.ring_addr);
    const bool doorbell = shows(watched.doorbell_window, queue.doorbell_addr);
    const bool completions = !slot || shows(slot->window, slot->look.address());
    if (ring && doorbell && completions) continue;
    close_windows(watched);
    if (!completions) windows_.release(slot->window);
    sigma_gpu_reason why;
    if (!open_windows(watched, queue, slot, why)) lose(i, "its memory is gone");
  }
}

uint64_t Sampler::look() {
  const uint64_t begin = now_ns();
  double fill = 0;
  bool waiting = false;
  bool any[kMaxGpus] = {};
  for (uint32_t i = 0; i < used_; ++i)
    if (watched_[i].here && watched_[i].gpu >= 0) any[watched_[i].gpu] = true;
  for (int device = 0; device < kMaxGpus; ++device) {
    if (!any[device]) continue;
    look_at(device, false, fill);
    waiting |= gpus_[device].waiting;
  }
  const uint64_t now = now_ns();
  bool deferred = false;
  for (uint32_t i = 0; i < used_; ++i) {
    SendLook& send = watched_[i].send;
    if (!watched_[i].here || watched_[i].gpu < 0 || !send.begun()) continue;
    deferred |= send.deferred_ns() != 0;
    if (i < kProgress) std::atomic_ref(progress_[i]).store(send.seen() + send.missed());
    if (send.mode() == SIGMA_RING_SETUP) continue;  // given up: as it was when last looked at
    const bool stuck = send.stuck_ns() >= options_.hang_ns;
    if (stuck && !send.hung) {
      send.hung = true;
      send.want_snapshot();
      send.state(SIGMA_RING_STATE, SIGMA_RING_HUNG, out_);
    } else if (!stuck && send.hung) {
      send.hung = false;
      send.state(SIGMA_RING_STATE, SIGMA_RING_MOVES, out_);
    }
  }
  out_.flush();
  // Shorter at once where much was new, longer bit by bit; within the CPU that we may use.
  round_ns_ = now - begin;
  if (fill > 0) {
    active_ns_ = now;
    const double factor = kTargetFill / fill;
    interval_ns_ *= factor < 1 ? factor : factor < 1.25 ? factor : 1.25;
    if (interval_ns_ > kLongestNs) interval_ns_ = kLongestNs;
  } else if (!deferred) {
    interval_ns_ *= 1.3;
    const auto most = static_cast<double>(now - active_ns_ > kIdleAfterNs ? kIdleNs : kLongestNs);
    if (interval_ns_ > most) interval_ns_ = most;
  }
  if (interval_ns_ < kShortestNs) interval_ns_ = kShortestNs;
  if (waiting) return 1'000'000;
  const uint64_t floor = round_ns_ * (100 - options_.cpu_percent) / options_.cpu_percent;
  auto next = static_cast<uint64_t>(interval_ns_);
  if (options_.snapshots_only) next = 50'000'000;
  return next > floor ? next : floor;
}

void Sampler::want_snapshot() {
  for (uint32_t i = 0; i < used_; ++i)
    if (watched_[i].here) watched_[i].send.want_snapshot();
}

void Sampler::leave_device(int device) {
  for (int each = 0; each < kMaxGpus; ++each)
    if (device < 0 || device == each) {
      if (gpus_[each].copier.is_open()) gpus_[each].copier.close();
      gpus_[each].waiting = false;
      gpus_[each].try_after_ns = 0;
    }
}

void Sampler::forget() {
  for (uint32_t i = 0; i < used_; ++i) {
    watched_[i].here = false;
    close_windows(watched_[i]);
  }
  for (uint32_t i = 0; i < completions_used_; ++i) {
    completions_[i].look.forget();
    windows_.release(completions_[i].window);
  }
  used_ = completions_used_ = device_queues_ = 0;
  first_listener_ = false;
}

void Sampler::tell_totals() {
  for (uint32_t i = 0; i < used_; ++i)
    if (watched_[i].here && watched_[i].gpu >= 0 && watched_[i].send.begun())
      watched_[i].send.state(SIGMA_RING_STATE, "", out_);
}

}  // namespace sigma::gpu
