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
      ambiguous,  // one of several
      none,       // of a request that was not seen
      evicted,    // of one that was given up by evict_front, and reported then
    } kind = none;
    Pending pending{};
  };
  // Takes the request out.
  Match take(uint64_t wr_id);
  bool contains(uint64_t wr_id) { return by_id_.find(wr_id) != nullptr; }

  // Requests that we do not know of may be outstanding: see WorkQueue.
  void set_out_of_step() { in_step_ = false; }

 private:
  static constexpr uint32_t kNone = ~uint32_t{0};
  struct Slot {
    Pending pending{};
    uint32_t older = kNone, newer = kNone;  // in order of posting
    uint32_t next_same = kNone;             // next newer one with this wr_id; free list
  };
  struct SameId {
    uint32_t first = kNone, last = kNone, count = 0;
    bool doubtful = false;  // one was taken out that may have been another
  };

  void remove(uint32_t slot);

  std::vector<Slot> slots_;
  FlatMap<SameId> by_id_;
  uint32_t oldest_ = kNone, newest_ = kNone, free_ = kNone;
  size_t size_ = 0;
  uint64_t evicted_ = 0;
  bool in_step_ = true;
  IdEvidence evidence_;
};

}  // namespace sigma
