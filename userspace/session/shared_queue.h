// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SharedQueue: the outstanding receives of a shared receive queue. They complete in any order, so
// only wr_id tells them apart, and only while it is unique among them: where it is not, a
// completion takes the oldest with that wr_id out of the queue, and which post it was stays
// unknown.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "session/flat_map.h"
#include "session/pending.h"

namespace sigma {

class SharedQueue {
 public:
  size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }

  void push(Pending&& pending);
  // The oldest; the queue must not be empty.
  Pending& front() { return slots_[oldest_].pending; }
  void pop_front() { remove(oldest_); }
  // As pop_front(), for a request that is given up: its completion is then expected.
  void evict_front();
  // Removes the requests of one call from `accepted` on. Returns how many.
  size_t remove_call(uint32_t tid, uint64_t call_ns, uint32_t accepted);

  struct Match {
    enum Kind : uint8_t {
      found,      // `pending` holds the request
      ambiguous,  // one of several, or by a slot that is no longer known
      none,       // of a request that was not seen
      evicted,    // of one that was given up by evict_front, and reported then
    } kind = none;
    Pending pending{};
  };
  // Takes the request out.
  Match take(uint64_t wr_id);
  // By the ring's slot, where the provider fills them in a known order: set_slots().
  Match take_slot(uint16_t slot);
  // mlx5 keeps the free slots in a list: at first all of them in order, then each as its receive is
  // polled. So the n-th post takes the n-th slot of that sequence, whenever it comes.
  void set_slots(uint32_t slots);
  // From here on the sequence is not known: a completion was missed, or the library has put slots
  // back in another order. Which request completes then stays unknown: take_slot() takes the oldest.
  void forget_slots();
  bool contains(uint64_t wr_id) { return by_id_.find(wr_id) != nullptr; }

  // Requests that we do not know of may be outstanding: see WorkQueue.
  void set_out_of_step() {
    in_step_ = false;
    slots_forgotten_ = false;
    takes_slot_.clear();
    by_number_.clear();
  }

 private:
  static constexpr uint32_t kNone = ~uint32_t{0};
  struct Slot {
    Pending pending{};
    uint32_t older = kNone, newer = kNone;  // in order of posting
    uint32_t next_same = kNone;             // next newer one with this wr_id; free list
    uint64_t number = 0;                    // of the post, from 0
  };
  struct SameId {
    uint32_t first = kNone, last = kNone, count = 0;
    bool doubtful = false;  // one was taken out that may have been another
  };

  void remove(uint32_t slot);
  void renumber(size_t removed);

  std::vector<Slot> slots_;
  FlatMap<SameId> by_id_;
  uint32_t oldest_ = kNone, newest_ = kNone, free_ = kNone;
  size_t size_ = 0;
  uint64_t posted_ = 0;
  FlatMap<uint32_t> by_number_;     // only with set_slots()
  std::vector<uint64_t> takes_slot_;  // by ring slot: the number of the post that takes it next
  uint64_t sequence_ = 0;           // of slots, so far
  bool slots_forgotten_ = false;    // all outstanding requests are known, but not their slots
  uint64_t evicted_ = 0;
  bool in_step_ = true;
  IdEvidence evidence_;
};

}  // namespace sigma
