// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Sampler: looks at all queues of the registry, round after round, and hands out what is new.
//
// A round of one GPU, all of it asynchronous copies on one stream, which keeps their order:
//   1. completions, then doorbell records: what has completed had been posted;
//   2. of queues that moved: new slots, doorbell record and completion, the same slots again.
// A copy that does not come in time ends the round, and the next begins when it has come: samples
// are lost, and counted as gaps. Errors of the driver end the sampling of that GPU for good.
//
// Everything here runs on the reader's thread (or a test's); the registry may change meanwhile.
#pragma once

#include <atomic>

#include "gpu_interpose/completion_look.h"
#include "gpu_interpose/copier.h"
#include "gpu_interpose/sampler_options.h"
#include "gpu_interpose/send_look.h"

namespace sigma::gpu {

class Sampler {
 public:
  static constexpr int kMaxGpus = 16;

  // `memory`: zeroed, of memory_bytes(), untouched parts cost nothing.
  static size_t memory_bytes();
  // `marks`, by entry, or null: entries that are not 0 are about to go, and are not looked at but
  // by end_queues(). `calls` null: no driver.
  Sampler(const sigma_gpu_registry& registry, const CudaCalls* calls, RecordBatch& out,
          void* memory, const SamplerOptions& options, const std::atomic<uint8_t>* marks = nullptr);

  // Takes in queues that came, changed or went. `attached_ns`: since when somebody listens; older
  // queues are taken up where their completions stand.
  void refresh(uint64_t attached_ns);
  // One round; what it found is in the batch. Returns after how many ns the next one is due.
  uint64_t look();
  // Queues which are about to go: the last look, while their memory is still there. `ends(i)`
  // says which entries.
  template <typename F>
  void end_queues(F&& ends);
  // Reads all that stands in the rings (a signal, or a tracer's wish).
  void want_snapshot();
  // The job ends a context of this device: we leave it first. -1: all devices.
  void leave_device(int device);
  // Nobody listens any more.
  void forget();
  // Blocks of the queue at this entry that were told, or said to be missed; any thread may ask, for
  // progress only.
  uint64_t told_of(uint32_t index) const {
    return std::atomic_ref(const_cast<uint64_t&>(progress_[index % kProgress])).load();
  }
  bool any_device_queue() const { return device_queues_ > 0; }
  void tell_totals();

 private:
  struct Watched {
    SendLook send;
    uint64_t created_ns;
    int32_t cq;  // of completions_; -1: none
    int16_t gpu;
    bool started, here, ending;
    bool told_whole;  // by a last look
    // Of this round: the doorbell record, the newest completion; then the slots, between their two
    // copies the doorbell record again and the completion of a collapsed queue.
    bool looked, has_completion;
    const std::byte* doorbell;
    uint16_t doorbell_value, counter;
    SendLook::Wanted wanted;
    const std::byte *one[2], *two[2], *doorbell_between, *completion_between;
    // What stood behind the last block posted; 0 blocks: it was not copied.
    uint64_t ahead_from;
    uint32_t ahead_blocks;
    const std::byte* ahead[2];
    uint16_t doorbell_between_value;
  };
  struct CompletionSlot {
    CompletionLook look;
    bool started;
    // Of this round
    bool planned, news, all_seen;
    CompletionLook::Wanted wanted;
    const std::byte *one[2], *two[2], *three, *anchor[2];
  };
  struct Gpu {
    Copier copier;
    bool given_up, waiting;
    uint64_t waiting_since_ns, try_after_ns;
  };

  bool take(uint32_t index, sigma_gpu_queue& queue) const;
  void begin(uint32_t index, const sigma_gpu_queue& queue, uint64_t attached_ns);
  void release_completions(Watched& watched);
  int gpu_of(const sigma_gpu_queue& queue) const;
  bool usable(Gpu& gpu, int device);
  void give_up(int device, const char* reason);
  bool finish(Gpu& gpu, int device);
  bool look_at(int device, bool last, double& fill);
  bool first_phase(Gpu& gpu, int device, bool last);
  bool start_queues(Gpu& gpu, int device);
  bool second_phase(Gpu& gpu, int device, bool last, double& fill);
  bool read_part(Gpu& gpu, int device, uint32_t from, uint32_t to, bool last);
  bool copy_slots(Gpu& gpu, Watched& watched);
  bool plan_completions(Gpu& gpu, CompletionSlot& slot, bool last);
  void copy_ahead(Gpu& gpu, Watched& watched);
  void judge_ahead(Watched& watched) const;
  void tell_completions(CompletionSlot& slot, uint64_t now_ns);
  bool copy_ring(Gpu& gpu, uint64_t base, uint32_t entries, uint32_t entry_bytes, uint64_t first,
                 uint32_t count, const std::byte* (&pieces)[2]);
  static RingBytes bytes_of(const std::byte* const (&pieces)[2], uint32_t entries,
                            uint32_t entry_bytes, uint64_t first, uint32_t count);
  SendLook* send_of(const CompletionLook& look, uint32_t qp_num);
  bool sampled(const Watched& watched, int device) const {
    return watched.here && watched.gpu == device && watched.send.begun() &&
           watched.send.mode() != SIGMA_RING_SETUP && watched.send.tier() != 1;
  }
  bool due(const Watched& watched, bool last) const;
  bool marked(uint32_t index) const {
    return marks_ && marks_[index].load(std::memory_order_acquire) != 0;
  }
  bool read_doorbell(Gpu& gpu, const sigma_gpu_queue& queue, const std::byte*& at, uint16_t& value);

  const sigma_gpu_registry& registry_;
  const CudaCalls* calls_;
  RecordBatch& out_;
  SamplerOptions options_;
  const std::atomic<uint8_t>* marks_;
  Watched* watched_;
  CompletionSlot* completions_;
  static constexpr uint32_t kProgress = 64;
  uint64_t progress_[kProgress] = {};
  bool first_listener_ = true;
  uint32_t used_ = 0, completions_used_ = 0, device_queues_ = 0, next_cq_life_ = 0;
  Gpu gpus_[kMaxGpus] = {};
  size_t phase_bytes_ = 0;  // of the copier's buffer, that the first phase filled
  double interval_ns_ = 50'000;
  uint64_t active_ns_ = 0, round_ns_ = 0, round_begin_ns_ = 0;
};

template <typename F>
void Sampler::end_queues(F&& ends) {
  bool any[kMaxGpus] = {};
  for (uint32_t i = 0; i < used_; ++i) {
    Watched& watched = watched_[i];
    watched.ending = watched.here && ends(i);
    if (watched.ending && watched.gpu >= 0) any[watched.gpu] = true;
  }
  double fill = 0;
  for (int device = 0; device < kMaxGpus; ++device)
    if (any[device]) look_at(device, true, fill);
  const uint64_t now = now_ns();
  for (uint32_t i = 0; i < used_; ++i) {
    Watched& watched = watched_[i];
    if (!watched.ending) continue;
    watched.send.end(watched.told_whole, now, out_);
    release_completions(watched);
    watched.here = watched.ending = false;
  }
}

}  // namespace sigma::gpu
