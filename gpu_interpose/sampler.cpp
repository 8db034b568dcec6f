// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// When queues are looked at, and what a round leaves to be said. Which, and how: sampler_queues.cpp; the
// round itself: sampler_round.cpp; what cannot be read any more: sampler_losses.cpp.
#include "gpu_interpose/sampler.h"

namespace sigma::gpu {
namespace {

constexpr uint64_t kIdleNs = 3'000'000, kShortestNs = 20'000, kLongestNs = 200'000;
constexpr uint64_t kIdleAfterNs = 1'000'000'000;
constexpr double kTargetFill = 0.12;  // of the fullest ring, that is new at a look

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
