// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
#include "session/pick_ups.h"

namespace sigma {

bool PickUps::fits(const Waiting<Told>& told, const Waiting<Poll>& poll) {
  if (told.wr_id && *told.wr_id != poll.wr_id) return false;
  if (told.bytes && poll.bytes && *told.bytes != *poll.bytes) return false;
  // A thread's own polls return in order.
  return told.passed == 0 || told.passed_by != poll.tid;
}

std::optional<PickUps::Delay> PickUps::on_told(const Told& told, Counters& counters) {
  if (told_.size() >= (polled_ ? kMost : kMostUnpolled)) {
    told_.pop_front();
    ++counters.pick_ups_unpolled;
  }
  told_.push_back({told});
  for (size_t i = 0; i < polls_.size();) {
    if (!fits(told_.back(), polls_[i])) {
      ++i;
    } else if (is_early(told, polls_[i])) {
      // Of an earlier completion, which the ring did not tell; those to come are later still.
      polls_.erase(polls_.begin() + static_cast<ptrdiff_t>(i));
      ++counters.pick_ups_early;
    } else {
      return pair(told_.size() - 1, i, counters);
    }
  }
  return std::nullopt;
}

std::optional<PickUps::Delay> PickUps::on_poll(const Poll& poll, Counters& counters) {
  polled_ = true;
  if (polls_.size() >= kMost) {
    polls_.pop_front();
    ++counters.pick_ups_untold;
  }
  polls_.push_back({poll});
  for (size_t i = 0; i < told_.size(); ++i) {
    if (!fits(told_[i], polls_.back())) continue;
    if (!is_early(told_[i], poll)) return pair(i, polls_.size() - 1, counters);
    polls_.pop_back();
    ++counters.pick_ups_early;
    return std::nullopt;
  }
  return std::nullopt;
}

// These two are one completion: what stands before either has been passed.
std::optional<PickUps::Delay> PickUps::pair(size_t told_at, size_t poll_at, Counters& counters) {
  const Told told = told_[told_at];
  const Poll poll = polls_[poll_at];
  told_.erase(told_.begin() + static_cast<ptrdiff_t>(told_at));
  polls_.erase(polls_.begin() + static_cast<ptrdiff_t>(poll_at));
  for (size_t i = 0, at = 0; i < told_at; ++i) {
    Waiting<Told>& passed = told_[at];
    passed.passed_by = poll.tid;
    if (++passed.passed <= kPasses) {
      ++at;
      continue;
    }
    told_.erase(told_.begin() + static_cast<ptrdiff_t>(at));
    ++counters.pick_ups_unpolled;
  }
  for (size_t i = 0, at = 0; i < poll_at; ++i) {
    Waiting<Poll>& passed = polls_[at];
    if (passed.tid != poll.tid && ++passed.passed <= kPasses) {
      ++at;
      continue;
    }
    polls_.erase(polls_.begin() + static_cast<ptrdiff_t>(at));
    ++counters.pick_ups_untold;
  }
  ++counters.pick_ups;
  if (!told.wr_id) ++counters.pick_ups_by_order;
  // Within the error the poll may seem to have come first.
  return Delay{poll.ns > told.ns ? poll.ns - told.ns : 0, told.error_ns};
}

void PickUps::close(Counters& counters) {
  counters.pick_ups_unpolled += told_.size();
  counters.pick_ups_untold += polls_.size();
  told_.clear();
  polls_.clear();
}

}  // namespace sigma
