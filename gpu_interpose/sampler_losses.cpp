// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// What cannot be read, or not any more: devices that give no stream, drivers that refuse, memory that is
// gone.
#include "gpu_interpose/reader.h"
#include "gpu_interpose/sampler.h"

namespace sigma::gpu {
namespace {

constexpr uint64_t kRetryNs = 100'000'000;

}  // namespace

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

}  // namespace sigma::gpu
