// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// The stacks' own indices in the sampler's looks: producer_index.h says what they are good for.
#include <string.h>

#include "gpu_interpose/sampler.h"

namespace sigma::gpu {
namespace {

constexpr size_t kIndexBytes = 8;

sigma_gpu_index_state told_as(ProducerIndex::State state) {
  switch (state) {
    case ProducerIndex::State::none:
      return SIGMA_GPU_INDEX_NONE;
    case ProducerIndex::State::found:
      return SIGMA_GPU_INDEX_FOUND;
    case ProducerIndex::State::certified:
      return SIGMA_GPU_INDEX_CERTIFIED;
    case ProducerIndex::State::dropped:
      break;
  }
  return SIGMA_GPU_INDEX_DROPPED;
}

uint64_t load64(const std::byte* at) {
  uint64_t value;
  memcpy(&value, at, sizeof value);
  return value;
}

}  // namespace

// Only together with a record in the same device's memory: what is read one after the other there
// was so at those times.
void Sampler::follow_index(Watched& watched, const sigma_gpu_queue& queue) {
  if (watched.index.address() == queue.index_addr) return;
  windows_.release(watched.index_window);
  watched.index.begin(queue.index_addr, queue.ring_entries, queue.index_behind, watched.started);
  watched.index_told = watched.index.state();
  if (queue.index_addr == 0) return;
  int device = -1;
  sigma_gpu_reason why;
  const bool usable = queue.index_memory == SIGMA_GPU_MEMORY_DEVICE &&
                      queue.doorbell_memory == SIGMA_GPU_MEMORY_DEVICE && calls_ &&
                      calls_->pointer_attribute(&device, cuda::kPointerDeviceOrdinal,
                                                queue.index_addr) == cuda::kSuccess &&
                      device == watched.gpu;
  if (usable && watched.ring_window)
    watched.index_window = windows_.open(watched.gpu, queue.index_addr, 8, why);
  if (!usable || (watched.ring_window && !watched.index_window)) watched.index.drop();
}

// The index, before (0) or after (1) the doorbell record. False: a copy was refused.
bool Sampler::read_index(Gpu& gpu, Watched& watched, int which) {
  const uint64_t address = watched.index.address();
  if (watched.index_window) {
    // Its memory may be freed while the queue's stays: that is no fault of the queue's windows.
    watched.index_at[which] = gpu.copier.take(
        [&](std::byte* to) { return read_window(*watched.index_window, address, to, kIndexBytes); },
        kIndexBytes);
    if (!watched.index_at[which]) watched.index.drop();
    return true;
  }
  watched.index_at[which] = gpu.copier.copy(address, kIndexBytes);
  return watched.index_at[which] != nullptr;
}

uint64_t Sampler::record_by_index(Watched& watched, uint64_t now) {
  if (!watched.index_at[1]) return SendLook::kUnknown;
  return watched.index.resolve({load64(watched.index_at[0]), load64(watched.index_at[1])},
                               watched.doorbell_value, options_.most_posts_per_s, now);
}

// After the look's doorbell is taken in: a look that needs no index judges it.
void Sampler::judge_index(uint32_t index, const SendLook::Laps& laps, uint64_t now) {
  Watched& watched = watched_[index];
  if (laps.possible)
    watched.index.lost_sight();
  else if (watched.index_at[1] && laps.record == SendLook::kUnknown)
    watched.index.check({load64(watched.index_at[0]), load64(watched.index_at[1])},
                        watched.send.record(), !watched.send.modulo(), now);
  const ProducerIndex::State state = watched.index.state();
  if (state == watched.index_told) return;
  watched.index_told = state;
  if (index_judged_) index_judged_(index, watched.created_ns, told_as(state));
}

}  // namespace sigma::gpu
