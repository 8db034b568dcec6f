// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Sampler: looks at all queues of the registry, round after round, and hands out what is new.
//
// A round of one GPU, all of it asynchronous copies on one stream, which keeps their order, or
// reads of windows (tier 2), which are done at once; of one queue either the one or the other:
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
#include "gpu_interpose/producer_index.h"
#include "gpu_interpose/sampler_options.h"
#include "gpu_interpose/send_look.h"
#include "gpu_interpose/window.h"

namespace sigma::gpu {

class Sampler {
 public:
  static constexpr int kMaxGpus = 16;

  // `memory`: zeroed, of memory_bytes(), untouched parts cost nothing.
  static size_t memory_bytes();
  // `marks`, by entry, or null: entries that are not 0 are about to go or to change, and are not
  // looked at but by last looks. `calls` null: no driver. `find_gdr` null: no gdrcopy. `chosen`, or
  // null, is told by which tier the queue of this entry and time of creation is read, and why by no
  // better.
  using IndexJudged = void (*)(uint32_t index, uint64_t created_ns, sigma_gpu_index_state state);
  using Chosen = void (*)(uint32_t index, uint64_t created_ns, uint8_t tier,
                          sigma_gpu_reason reason);
  Sampler(const sigma_gpu_registry& registry, const CudaCalls* calls, RecordBatch& out,
          void* memory, const SamplerOptions& options, const std::atomic<uint8_t>* marks = nullptr,
          FindGdr find_gdr = nullptr, Chosen chosen = nullptr);

  // `judged`, or null, is told what the index of a queue turned out to be.
  void tell_indices_to(IndexJudged judged) { index_judged_ = judged; }
  // Takes in queues that came, changed or went. `attached_ns`: since when somebody listens; older
  // queues are taken up where their completions stand.
  void refresh(uint64_t attached_ns);
  // One round; what it found is in the batch. Returns after how many ns the next one is due.
  uint64_t look();
  // Queues which are about to go: the last look, while their memory is still there. `ends(i)`
  // says which entries.
  template <typename F>
  void end_queues(F&& ends);
  // The same look at queues that stay for now.
  template <typename F>
  void last_look(F&& which);
  // Queues whose registry entry is a new life, for they were reset: the end of the old one, by a
  // last look, and the begin of the new, which counts from 0 in memory that still shows the old.
  template <typename F>
  void reset_queues(F&& which);
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
    Window *ring_window, *doorbell_window, *index_window;  // null: copies
    ProducerIndex index;
    ProducerIndex::State index_told;
    bool told_whole;  // by a last look
    bool reborn;      // a collapsed completion may be of the life before
    // Of this round: the doorbell record, the newest completion; then the slots, between their two
    // copies the doorbell record again and the completion of a collapsed queue.
    bool looked, has_completion;
    const std::byte* doorbell;
    const std::byte* index_at[2];  // before and after the record; null: not
    uint16_t doorbell_value, counter;
    uint16_t record_value;            // what stands there, of whatever life
    const std::byte* last_blocks[2];  // of the ring, copied after the doorbell; null: not
    uint64_t completed;  // with the completions in the copy; SendLook::kUnknown: some were missed
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
    Window* window;
    bool started;
    // Of this round
    bool planned, news, all_seen;
    CompletionLook::Wanted wanted;
    const std::byte *one[2], *two[2], *three, *anchor[2];
  };
  struct Gpu {
    Copier copier;
    bool given_up, waiting, faulted;
    uint64_t waiting_since_ns, try_after_ns;
  };

  bool take(uint32_t index, sigma_gpu_queue& queue) const;
  void begin_reading(uint32_t index, const sigma_gpu_queue& queue);
  bool open_windows(Watched& watched, const sigma_gpu_queue& queue, CompletionSlot* slot,
                    sigma_gpu_reason& why);
  void close_windows(Watched& watched);
  void drop_faulted(int device);
  bool wants_copies(int device) const;
  void begin(uint32_t index, const sigma_gpu_queue& queue, uint64_t attached_ns);
  void release_completions(Watched& watched);
  int gpu_of(const sigma_gpu_queue& queue) const;
  bool usable(Gpu& gpu, int device, bool last);
  template <typename F>
  bool look_last(F&& which);
  void begin_again(uint32_t index);
  bool drop_gone(int device);
  void give_up(int device, const char* reason);
  void give_up_queue(uint32_t index, const char* reason);
  void lose(uint32_t index, const char* reason);
  void drop(Watched& watched);
  bool finish(Gpu& gpu, int device);
  bool look_at(int device, bool last, double& fill);
  bool first_phase(Gpu& gpu, int device, bool last);
  bool start_queues(Gpu& gpu, int device);
  bool second_phase(Gpu& gpu, int device, bool last, double& fill);
  bool read_part(Gpu& gpu, int device, uint32_t from, uint32_t to, bool last);
  bool copy_slots(Gpu& gpu, Watched& watched);
  // The queue pairs that complete in one queue.
  struct Sends {
    Sampler& sampler;
    CompletionSlot& slot;
    SendLook* of(uint32_t qp_num) const { return sampler.send_of(slot.look, qp_num); }
    void completions_lost() const {
      for (uint32_t i = 0; i < sampler.used_; ++i) {
        Watched& watched = sampler.watched_[i];
        if (watched.here && watched.cq == &slot - sampler.completions_)
          watched.send.on_lost_completions();
      }
    }
  };
  bool was_away(const Watched& watched, uint64_t now_ns) const;
  void follow_index(Watched& watched, const sigma_gpu_queue& queue);
  bool read_index(Gpu& gpu, Watched& watched, int which);
  void judge_index(uint32_t index, const SendLook::Laps& laps, uint64_t now_ns);
  uint64_t record_by_index(Watched& watched, uint64_t now_ns);
  SendLook::Laps laps_of(const Watched& watched, uint64_t now_ns) const;
  bool plan_completions(Gpu& gpu, CompletionSlot& slot, bool all);
  void copy_ahead(Gpu& gpu, Watched& watched);
  void judge_ahead(Watched& watched) const;
  void tell_completions(CompletionSlot& slot, uint64_t now_ns);
  const std::byte* copy(Gpu& gpu, const Window* window, uint64_t from, size_t bytes);
  bool copy_ring(Gpu& gpu, const Window* window, uint64_t base, uint32_t entries,
                 uint32_t entry_bytes, uint64_t first, uint32_t count,
                 const std::byte* (&pieces)[2]);
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
  bool read_doorbell(Gpu& gpu, const Watched& watched, const std::byte*& at, uint16_t& value);

  const sigma_gpu_registry& registry_;
  const CudaCalls* calls_;
  RecordBatch& out_;
  SamplerOptions options_;
  const std::atomic<uint8_t>* marks_;
  Chosen chosen_;
  IndexJudged index_judged_ = nullptr;
  Watched* watched_;
  CompletionSlot* completions_;
  Windows windows_;
  static constexpr uint32_t kProgress = 64;
  uint64_t progress_[kProgress] = {};
  bool first_listener_ = true;
  uint32_t used_ = 0, completions_used_ = 0, device_queues_ = 0, next_cq_life_ = 0;
  Gpu gpus_[kMaxGpus] = {};
  uint64_t limit_ns_ = 0;   // of this look's copies
  size_t phase_bytes_ = 0;  // of the copier's buffer, that the first phase filled
  double interval_ns_ = 50'000;
  uint64_t active_ns_ = 0, round_ns_ = 0, round_begin_ns_ = 0;
};

template <typename F>
bool Sampler::look_last(F&& which) {
  bool any = false, of_device[kMaxGpus] = {};
  for (uint32_t i = 0; i < used_; ++i) {
    Watched& watched = watched_[i];
    watched.ending = watched.here && which(i);
    any |= watched.ending;
    if (watched.ending) watched.told_whole = false;
    if (watched.ending && watched.gpu >= 0) of_device[watched.gpu] = true;
  }
  double fill = 0;
  for (int device = 0; device < kMaxGpus; ++device)
    if (of_device[device]) look_at(device, true, fill);
  return any;
}

template <typename F>
void Sampler::last_look(F&& which) {
  if (!look_last(which)) return;
  for (uint32_t i = 0; i < used_; ++i) {
    if (watched_[i].ending && watched_[i].gpu >= 0)
      watched_[i].send.state(SIGMA_RING_STATE, "", out_);
    watched_[i].ending = false;
  }
}

template <typename F>
void Sampler::reset_queues(F&& which) {
  if (!look_last(which)) return;
  for (uint32_t i = 0; i < used_; ++i) {
    if (watched_[i].ending) begin_again(i);
    watched_[i].ending = false;
  }
}

template <typename F>
void Sampler::end_queues(F&& ends) {
  if (!look_last(ends)) return;
  const uint64_t now = now_ns();
  for (uint32_t i = 0; i < used_; ++i) {
    Watched& watched = watched_[i];
    if (!watched.ending) continue;
    watched.send.end(watched.told_whole, now, out_);
    release_completions(watched);
    close_windows(watched);
    watched.here = watched.ending = false;
  }
}

}  // namespace sigma::gpu
