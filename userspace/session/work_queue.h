// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// WorkQueue: the outstanding requests of one send or receive queue, and the rules by which a
// completion finds its request. Knows neither records nor sinks. Queues complete in posting order,
// except those of set_any_order().
//
// Send queues: a success completion belongs to the oldest signalled request; what was posted before
// it has completed too. In the error state every request, signalled or not, completes by itself and
// in order. Receive queues: every request is signalled. wr_id is a check: where it contradicts the
// order, records were lost, and the match is sought by wr_id and marked ambiguous.
//
// Certainty. A queue whose beginning we saw is in step. It is not when it is older than the attach,
// was not traced for a while, or lost part of a list: then requests that we do not know may
// complete first; and not after an ambiguous match, which may have taken the wrong request. It
// comes (back) into step when
//   - its wr_ids prove it (IdEvidence, pending.h), or
//   - something shows that nothing was outstanding: RESET, INIT, RTR to RTS (set_in_step).
// Until then a match is by wr_id only and marked ambiguous, and a completion whose wr_id is not
// pending is one of a request that we never saw. Completions in excess of the posts show requests
// older than the attach, but not that they were the last: that is no proof of being in step. Nor
// can the loss of a record be seen in a queue whose requests all have one wr_id; the loss itself is
// counted elsewhere.
//
// Any order. EFA's requests complete one by one as their packets arrive over many paths; none is
// unsignalled (providers/efa refuses such posts). There a completion belongs to the oldest request
// of its wr_id, ambiguous where several have it, and says nothing of those before it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "session/pending.h"

namespace sigma {

class WorkQueue {
 public:
  explicit WorkQueue(Queue side, bool any_order = false) : side_(side), any_order_(any_order) {}

  size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  // 0 is the oldest.
  Pending& operator[](size_t i) { return ring_[(begin_ + i) & (ring_.size() - 1)]; }
  const Pending& operator[](size_t i) const { return ring_[(begin_ + i) & (ring_.size() - 1)]; }

  void push(Pending&& pending);
  // In the middle: behind the first `at`.
  void insert(size_t at, Pending&& pending);
  void pop_front();
  // Makes the one at `index` the oldest; the others keep their order.
  void bring_forward(size_t index);
  // The oldest one is given up; its completion, should it come, is then expected.
  void evict_front();
  // Removes the requests of one call from `accepted` on. Returns how many.
  size_t remove_call(uint32_t tid, uint64_t call_ns, uint32_t accepted);

  struct Match {
    enum Kind : uint8_t {
      found,    // at `index`; all before it are complete as well
      none,     // of a request that was not seen
      evicted,  // of one that was given up by evict_front, and reported then
    } kind = none;
    size_t index = 0;
    bool ambiguous = false;
    bool in_error = false;  // before this completion: then all before `index` had their own
    bool by_flag = false;   // ambiguous only as sq_sig_all is unknown: the flagged one was taken
    bool alone = false;     // any order: those before `index` are still outstanding
  };
  Match match_success(uint64_t wr_id);
  Match match_error(uint64_t wr_id);
  // A pending request with this wr_id exists. For telling sends from receives.
  bool contains(uint64_t wr_id) const;

  // Whether a completion of its own is expected; nullopt: not known (sq_sig_all unknown).
  std::optional<bool> signalled(const Pending& pending) const;
  void set_sq_sig_all(bool all) { sq_sig_all_ = all; }
  // Requests complete in any order, and each by itself.
  void set_any_order() { any_order_ = true; }
  bool any_order() const { return any_order_; }
  // As told, or as learnt from completions.
  std::optional<bool> sq_sig_all() const { return sq_sig_all_; }

  void set_in_step() { certain_end_ = kAll; }
  // Requests that we do not know of may be outstanding behind the pending ones.
  void set_out_of_step();
  // The pending ones are not known for certain either.
  void set_doubtful();
  bool in_step() const { return certain_end_ == kAll; }

  // The queue was brought back from an error (SQE to RTS).
  void clear_error() { in_error_ = false; }
  // A completion with an error came. Returns whether it was not the first.
  bool set_error() { return std::exchange(in_error_, true); }

 private:
  static constexpr uint64_t kAll = ~uint64_t{0};
  // No provider gives a send queue more entries (mlx5: 32,768; bnxt_re: 65,535).
  static constexpr uint64_t kMaxDepth = 65536;

  static bool fits(const Pending& pending, uint64_t wr_id);
  bool certain(size_t i) const { return first_number_ + i < certain_end_; }
  bool assuming_flags() const { return assumed_flags_ && !sq_sig_all_; }
  Match settle(Match match);
  Match match_in_order(uint64_t wr_id);
  Match match_by_id(uint64_t wr_id);
  Match match_alone(uint64_t wr_id);
  void learn_signalling(size_t index);
  std::optional<size_t> find(uint64_t wr_id, size_t from, size_t to) const;

  Queue side_;
  bool any_order_;
  bool in_error_ = false;
  bool saw_flagged_ = false;    // a request with IBV_SEND_SIGNALED
  bool assumed_flags_ = false;  // a match was made by_flag
  std::optional<bool> sq_sig_all_;
  // Posts less completions, while sq_sig_all is unknown: were it set, so many would be outstanding.
  uint64_t excess_ = 0;
  std::vector<Pending> ring_;  // a power of two
  size_t begin_ = 0, size_ = 0;
  uint64_t first_number_ = 0;    // requests are numbered in posting order; of the oldest
  uint64_t certain_end_ = kAll;  // requests with smaller numbers are in step
  uint64_t evicted_ = 0;         // given up, and not known to have completed
  IdEvidence evidence_;
};

}  // namespace sigma
