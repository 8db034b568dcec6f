// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SendLook: one life of one GPU-initiated send queue, from copies of its memory to records. What
// the tracer's observer does for host memory, under other rules:
//
//   - Many GPU threads write at a time, and the doorbell is rung for the slots that are whole, in
//     order. So slots ahead of the doorbell are being written, and a later doorbell says nothing of
//     an earlier copy: the `posterior` certificate does not hold. A WQE counts when two copies of
//     it are the same and
//       margin      the doorbell, read between them, is a quarter of the ring short of its slot; or
//       unfinished  it had not completed then, and the stack waits for completions before it
//                   uses a slot again; or
//       quiet       doorbell and slots have not changed for a while.
//   - The doorbell record is a lower bound of what the NIC has been told: stacks ring before they
//     store it, or never store it. Completions beyond it move it on. So it does not say since when
//     a request can have been posted; slots that are not written yet do (post_bounds.h).
//
// posted = seen + missed, in blocks, whenever nothing is left for the next look. No I/O, no
// allocation; one thread.
#pragma once

#include <stdint.h>

#include "decode/ring_records.h"
#include "decode/send_ring.h"
#include "gpu_interpose/post_bounds.h"
#include "gpu_interpose/record_batch.h"
#include "gpu_interpose/registry.h"

namespace sigma::gpu {

class SendLook {
 public:
  // `mode`: SIGMA_RING_READ, SIGMA_RING_SNAPSHOT or SIGMA_RING_SETUP.
  // `from_birth`: it is read from its creation on; else start() says where it stands.
  void begin(const sigma_gpu_queue& queue, uint8_t tier, uint8_t mode, bool from_birth,
             const char* reason, uint64_t now_ns, RecordBatch& out);
  bool begun() const { return begun_; }
  // Nobody listens any more; the next begin() starts anew.
  void forget() { begun_ = false; }

  const sigma_gpu_queue& queue() const { return queue_; }
  // As its records name it.
  RingName name() const;
  uint8_t mode() const { return mode_; }
  uint8_t tier() const { return tier_; }
  uint64_t posted() const { return cursor_.posted; }
  // The doorbell record, with all its bits; where modulo() says no, they are known.
  uint64_t record() const { return doorbell_; }
  uint64_t completed() const { return completed_; }
  uint64_t seen() const { return seen_; }
  uint64_t missed() const { return missed_; }
  bool modulo() const { return cursor_.modulo; }
  bool pending() const { return any_completed_ ? completed_ < cursor_.posted : cursor_.posted > 0; }

  // The first look at a queue that may have been used before: its doorbell, and the counter of its
  // newest completion where there is one, read after `read_ns`. What is pending is then told, as of
  // unknown time.
  void start(uint16_t doorbell, bool has_completion, uint16_t counter, uint64_t read_ns,
             RecordBatch& out);
  // After begin() of a queue that was reset: its record still shows the end of the life before,
  // until it changes.
  void begin_behind(uint16_t doorbell) {
    stale_ = doorbell;
    has_stale_ = doorbell != 0;
  }
  // What the record says of this life.
  uint16_t of_this_life(uint16_t doorbell) {
    if (has_stale_ && doorbell == stale_) return 0;
    has_stale_ = false;
    return doorbell;
  }
  // Blocks to copy, and how many of them more may belong to the last WQE.
  struct Wanted {
    uint64_t first = 0, end = 0;
    bool any() const { return first != end; }
    uint32_t blocks() const { return static_cast<uint32_t>(end - first); }
  };
  // How far the queue has come since the last look, beyond the 16 bits of doorbell and counters.
  struct Laps {
    bool possible = false;  // 65,536 blocks or more may have been posted
    // All before has completed, and no completion is unknown: no more than the ring is posted
    // beyond. kUnknown: completions do not tell.
    uint64_t completed = kUnknown;
    uint64_t record = kUnknown;  // where the doorbell record stands, by the stack's own index
  };
  static constexpr uint64_t kUnknown = ~uint64_t{0};
  // `counter`: of the newest completion that is there, told or not; it may be ahead of the doorbell
  // record. `read_ns`: all of it was read after that.
  Wanted on_doorbell(uint16_t doorbell, bool has_completion, uint16_t counter, const Laps& laps,
                     uint64_t read_ns);
  // completed(), where all completions so far were read; else kUnknown.
  uint64_t completed_exactly() const {
    // A completion queue may still have those of a life before.
    const bool known = !completions_lost_ && !(queue_.flags & SIGMA_GPU_USED_BEFORE) &&
                       (any_completed_ || first_ == 0);
    return known ? completed_ : kUnknown;
  }
  // Blocks behind posted() to copy at a look, before completions and doorbell, so as to learn which
  // are not written yet. 0: the doorbell record tells it.
  uint32_t blocks_ahead() const;
  // Those blocks, from position `first` on, copied after `ns`; what on_doorbell() takes was read
  // after them. `completions_known`: the newest completion that was there is that counter, or,
  // where there is none, the last one told.
  void on_ahead(const RingBytes& slots, uint64_t first, uint64_t ns, uint16_t doorbell,
                bool completions_known, bool has_completion, uint16_t counter);
  // Whether the ring's last blocks, kMaxWqeBlocks of them, may show that it has never come to its
  // end; copied after the doorbell they then show that no 65,536 are posted.
  bool may_be_in_first_lap() const {
    return !cursor_.modulo && cursor_.posted + kMaxWqeBlocks <= ring_.blocks;
  }
  bool in_first_lap(const RingBytes& last_blocks) const {
    return may_be_in_first_lap() && holds_no_wqe(ring_, last_blocks);
  }
  void nothing_known_ahead() { unwritten_ = ~uint64_t{0}; }
  bool wants_completions() const { return pending() || queue_.doorbell_addr == 0 || untold_; }
  // The record is stored before the doorbell is rung, and in order: it bounds, and costs no copy.
  bool record_first() const;
  // Not more blocks than this: the older ones are given up.
  void limit(Wanted& wanted, uint32_t blocks);
  // In snapshot mode nothing is copied until this: what still stands is then read once.
  void want_snapshot() { snapshot_ = true; }
  struct Copies {
    RingBytes one, two;
    uint16_t doorbell = 0;        // read between them
    bool has_completion = false;  // read between them
    uint16_t counter = 0;
    bool last = false;  // nobody posts any more
  };
  // `after_ns`: end of this look.
  void on_slots(const Wanted& wanted, const Copies& copies, uint64_t after_ns, RecordBatch& out);
  // Completions were missed, maybe this queue's.
  void on_lost_completions() { completions_lost_ = true; }
  // A requester's completion. False: one that was told already. `in_order`: of a ring that has them
  // all, none of them twice.
  bool on_completion(uint16_t counter, bool in_order);

  // The totals; `reason` at most 23 characters.
  void state(uint8_t event, const char* reason, RecordBatch& out);
  void change(uint8_t tier, uint8_t mode, const char* reason, RecordBatch& out);
  // What was not read is missed. `whole`: there was a last look; else more may have been posted.
  void end(bool whole, uint64_t now_ns, RecordBatch& out);

  // Posted and not completed, and so long after it had last moved nothing had, as it was looked at:
  // where nobody looks nothing is known to be stuck.
  uint64_t stuck_ns() const {
    return pending() && looked_ns > moved_ns_ ? looked_ns - moved_ns_ : 0;
  }
  bool hung = false;       // said already
  const char* why = "";    // why this tier: told by every record that has nothing else to say
  uint64_t looked_ns = 0;  // begin of the last look at the doorbell
  uint64_t deferred_ns() const { return quiet_since_ns_; }  // 0: nothing waits for a second look

 private:
  void go_to_record(uint64_t record, uint16_t doorbell);
  static constexpr uint32_t kAheadBlocks = 32, kMostAhead = 256;
  bool guarded() const;
  LookTimes times_of(uint64_t position, uint64_t after_ns) const;
  bool position_of(uint16_t counter, uint64_t near, uint64_t& position) const;
  uint32_t last_wqe_blocks(const Wanted& wanted, const RingBytes& bytes) const;
  uint64_t certain_from(const Wanted& wanted, uint64_t start, uint64_t end, const Copies& copies,
                        uint64_t posted_after, uint64_t completed) const;
  void report(uint64_t position, const Wqe& wqe, const LookTimes& times, bool quiet, uint64_t after,
              RecordBatch& out);
  void gap(uint64_t first, uint64_t count, uint8_t reason, uint64_t after_ns, RecordBatch& out);

  sigma_gpu_queue queue_{};
  SendRing ring_;
  SendCursor cursor_;
  SendStep step_;
  uint64_t doorbell_ = 0;  // 64 bits of it
  uint64_t first_ = 0, seen_ = 0, missed_ = 0;
  uint64_t completed_ = 0;  // all before have completed
  uint64_t moved_ns_ = 0;
  PostBounds bounds_;
  uint64_t quiet_since_ns_ = 0, quiet_posted_ = 0, quiet_sum_ = 0;
  bool begun_ = false, any_completed_ = false, open_end_ = false, snapshot_ = false;
  bool end_known_ = true;          // posted() is where a WQE ends
  bool completions_lost_ = false;  // since the last one that was told
  bool untold_ = false;            // the slots alone do not tell whether the next one is written
  uint64_t unwritten_ = ~uint64_t{0}, news_ = 0;
  // The newest completion may be a round of 65,536 younger than the same one that was told, and
  // posted() a little ahead of it: until that grows.
  bool lap_hidden_ = false;
  uint16_t stale_ = 0;
  bool has_stale_ = false;
  uint8_t tier_ = 0, mode_ = 0;
};

}  // namespace sigma::gpu
