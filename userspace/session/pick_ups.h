// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// PickUps: how long completions lay in their queue before the job polled them. Of one side of a queue pair
// whose ring is read and whose polls are probed as well (--completions both).
//
// Both tell the same completions in the same order, each with gaps of its own, and either may be ahead. Where
// the ring's request is known, its wr_id finds the poll, so that a gap in one shifts nothing; else the order
// does, and the clock: a poll cannot have returned what had not completed yet. Threads that poll at once may
// return in another order than they took: what another thread's poll has passed is kept for a while. What one
// thread's own polls have passed is not, since wr_ids are used again.
//
// Memory is bounded. Pure: no clock, no I/O.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>

#include "base/counters.h"

namespace sigma {

class PickUps {
 public:
  // By the ring: completed within ns +- error_ns.
  struct Told {
    uint64_t ns = 0, error_ns = 0;
    std::optional<uint64_t> wr_id;
    std::optional<uint32_t> bytes;
  };
  // By a poll that returned at `ns`.
  struct Poll {
    uint64_t ns = 0;
    uint32_t tid = 0;
    uint64_t wr_id = 0;
    std::optional<uint32_t> bytes;
  };
  struct Delay {
    uint64_t ns = 0, error_ns = 0;
  };

  // The pick-up that is known with this, if one is.
  std::optional<Delay> on_told(const Told& told, Counters& counters);
  std::optional<Delay> on_poll(const Poll& poll, Counters& counters);
  // What has no other half yet will have none: the life has ended, or tracing paused.
  void close(Counters& counters);

 private:
  static constexpr size_t kMost = 1 << 16;       // of either
  static constexpr size_t kMostUnpolled = 4096;  // of a queue of which no poll has been seen
  static constexpr unsigned kPasses = 16;

  template <typename T>
  struct Waiting : T {
    unsigned passed = 0;
    uint32_t passed_by = 0;  // of what was told: the thread whose poll was the last to pass it
  };

  static bool fits(const Waiting<Told>& told, const Waiting<Poll>& poll);
  static bool is_early(const Told& told, const Poll& poll) { return poll.ns + told.error_ns < told.ns; }
  std::optional<Delay> pair(size_t told_at, size_t poll_at, Counters& counters);

  std::deque<Waiting<Told>> told_;
  std::deque<Waiting<Poll>> polls_;
  bool polled_ = false;
};

}  // namespace sigma
