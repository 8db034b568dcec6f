// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SendReader: one life of one send ring, from copies of its memory to records.
//
//   on_doorbell(value, ...)   what the doorbell record says now; returns the blocks to copy
//   on_copy(bytes, after...)  these blocks, and what had been posted after they had been copied
//   on_last(...)              what BPF copied as the ring ended
//
// posted = seen + missed, in blocks, whenever nothing is held back; where probes tell of posts as
// well, + explained by them. Posts are told in order; one that has no certificate yet holds back
// those behind it, until a later doorbell decides. What was missed is a gap only if no probe has told
// of it, which is known when all records of the time have come (told_until).
// No I/O. One thread.
#pragma once

#include <deque>
#include <optional>

#include "decode/ring_records.h"
#include "observe/index_ranges.h"
#include "observe/output.h"
#include "observe/posted_bounds.h"
#include "observe/ring_specs.h"

namespace sigma {

class SendReader {
 public:
  enum class Mode : uint8_t {
    read,     // every new block is copied
    probed,   // a probe tells of the posts: copied only if some are not explained by it
    counted,  // the doorbell alone
  };

  // `probes_tell`: of posts by verbs there are records of probes as well.
  SendReader(const SendSpec& spec, uint32_t life, Mode mode, bool probes_tell);

  const SendSpec& spec() const { return spec_; }
  uint32_t life() const { return life_; }
  // As its records name it.
  RingName name() const;
  Mode mode() const { return mode_; }
  uint64_t posted() const { return cursor_.posted; }
  uint64_t next() const { return cursor_.next; }
  uint64_t missed() const { return missed_; }
  uint64_t seen() const { return seen_; }

  // A ring found in use: what was posted before is not ours.
  void start_at(uint64_t position);
  void begin(RecordBuffer& out);
  // It has not ended after all (on_last): a life of its own from here on.
  void resume(uint32_t life, uint64_t now_ns, RecordBuffer& out);

  struct Wanted {
    uint64_t first = 0, end = 0;
    bool any() const { return first != end; }
  };
  // `bounds`: what else is known of how far the ring has come. Where they leave several counts with these
  // 16 bits, or none, all counts are known modulo 65,536 from here on.
  Wanted on_doorbell(uint16_t value, const LookTimes& times, const PostedBounds& bounds, RecordBuffer& out);
  // `doorbell_after`, within these bounds. Where they leave several counts with its bits, a later look decides of
  // all that was copied.
  void on_copy(const Wanted& wanted, const RingBytes& bytes, uint16_t doorbell_after, const PostedBounds& bounds,
               const LookTimes& times, RecordBuffer& out);
  // `bytes` are the blocks up to `posted`, from `first` on.
  // `bounds`: as of on_doorbell(), when BPF read the doorbell.
  void on_last(uint64_t first, const RingBytes& bytes, uint16_t doorbell, const PostedBounds& bounds,
               const LookTimes& times, RecordBuffer& out);
  // It is read no further. `seen`: nothing can have been posted since the last look that anybody will
  // ask for; else the record says that its end was not seen.
  void end(uint64_t at_ns, uint8_t gap_reason, bool seen, RecordBuffer& out);

  // A post that a probe has told of: `index` as its call found it, `blocks` in all (0: unknown).
  void explain(uint16_t index, uint32_t blocks, bool same_thread);
  // All records of probes up to this time have come.
  void told_until(uint64_t ns) { told_until_ns_ = ns; }
  void set_probes_tell(bool tell) { probes_tell_ = tell; }
  void set_mode(Mode mode, const char* reason, uint64_t now_ns, RecordBuffer& out);
  // The preloaded library says that a GPU posts to it.
  void set_gpu_initiated(uint64_t now_ns, RecordBuffer& out);

  // A requester's completion, the entry `cq_index` of its ring. False: one that was told already.
  bool completed(uint16_t counter, uint64_t cq_index);
  bool any_completed() const { return any_completed_; }
  // How many blocks a completion stands for, where that has always been the same; else 0.
  uint32_t blocks_per_completion() const { return blocks_per_completion_ == kVaries ? 0 : blocks_per_completion_; }
  // The request that the completion with this index is of, if every completion before was this
  // queue's and stands for as many blocks as those that were seen; 0: not known.
  uint64_t completed_at(uint64_t cq_index) const;
  // Blocks of its largest request so far, as far as it was told; 0: of none.
  uint32_t largest_request() const { return largest_request_; }
  double last_fill() const { return fill_; }
  // Requests wait for a certificate: they were copied, and perhaps overwritten meanwhile.
  bool holds() const { return !held_.empty(); }
  // All completions were read that there were at some time after the requests before `end` had been copied:
  // who had none by then has not had its place written again, for the owner waits for it.
  void settle_unfinished(uint64_t end, uint64_t now_ns, RecordBuffer& out);

 private:
  struct Held {
    sigma_ring_post post;
    uint64_t posted_after;
  };
  // What had been posted after a copy. `sure`: wholly, not in 16 bits; `last`: nothing will be posted any more.
  struct After {
    uint64_t posted = 0;
    bool sure = true, last = false;
  };
  void report_chain(const RingBytes& slots, uint64_t first, uint64_t start, uint64_t end, const LookTimes& times,
                    const After& after, RecordBuffer& out);
  void report(uint64_t position, const Wqe& wqe, const LookTimes& times, const After& after, RecordBuffer& out);
  void emit(sigma_ring_post& post, uint64_t now_ns, RecordBuffer& out);
  // What becomes of those that a doorbell at `posted` does not decide: they wait; are given up, for nothing
  // will tell whether somebody was writing over them; or are certain, for nobody writes any more.
  enum class Rest : uint8_t { waits, given_up, stands };
  void settle_held(uint64_t posted, Rest rest, uint64_t now_ns, RecordBuffer& out);
  LookTimes since_behind(const LookTimes& look) const;
  void gap(uint64_t first, uint64_t count, uint8_t reason, const LookTimes& times,
           RecordBuffer& out);
  struct Gap {
    IndexRange range;
    uint8_t reason;
    LookTimes times;
  };
  void emit(const Gap& gap, uint64_t now_ns, RecordBuffer& out);
  // Those that no probe has explained by now are what they are. `all`: nothing more will come.
  void settle_gaps(bool all, uint64_t now_ns, RecordBuffer& out);
  void state(uint8_t event, const char* reason, uint64_t now_ns, RecordBuffer& out);

  SendSpec spec_;
  SendRing ring_;
  SendCursor cursor_;
  uint32_t life_;
  Mode mode_;
  uint64_t first_ = 0;
  uint64_t seen_ = 0, missed_ = 0;
  uint64_t completed_ = 0;  // all before have completed, as far as completions were seen
  bool any_completed_ = false;
  static constexpr uint32_t kVaries = ~0u;
  uint32_t blocks_per_completion_ = 0;
  uint32_t largest_request_ = 0;
  uint64_t signaled_at_ = ~uint64_t{0};  // where the last request that asked for a completion stands
  uint64_t contiguous_from_ = 0;         // nothing was missed since
  uint64_t completion_index_ = 0;        // in its ring, of the completion that completed_ is by
  bool probes_tell_;
  uint64_t explained_ = 0;       // up to here, by the latest probe
  bool open_ended_ = false;      // where that probe's posts end is not known
  NewestRanges explained_ranges_;
  std::deque<Gap> gaps_;         // that a probe may still explain
  uint64_t told_until_ns_ = 0;
  uint64_t unexplained_since_ns_ = 0;
  uint64_t unexplained_until_ = 0;  // posted then
  uint64_t behind_since_ns_ = 0;  // what is posted and not read was posted after this; 0: nothing is
  bool mixed_ = false;  // posts beside the probes were seen: always read from then on
  std::deque<Held> held_;
  double fill_ = 0;
};

}  // namespace sigma
