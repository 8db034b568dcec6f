// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
#include "session/work_queue.h"

#include <infiniband/verbs.h>

#include <algorithm>
#include <utility>

namespace sigma {

void WorkQueue::push(Pending&& pending) {
  if (size_ == ring_.size()) {
    std::vector<Pending> larger(std::max<size_t>(16, ring_.size() * 2));
    for (size_t i = 0; i < size_; ++i) larger[i] = std::move((*this)[i]);
    ring_.swap(larger);
    begin_ = 0;
  }
  // Programs that flag some requests tell only those apart by wr_id.
  const bool flagged = pending.send_flags & IBV_SEND_SIGNALED;
  if (flagged && !saw_flagged_) evidence_.reset();
  saw_flagged_ |= flagged;
  if (signalled(pending).value_or(!saw_flagged_)) evidence_.posted(pending.wr_id);
  if (side_ == Queue::send && !sq_sig_all_ && ++excess_ > kMaxDepth) sq_sig_all_ = false;

  ring_[(begin_ + size_) & (ring_.size() - 1)] = std::move(pending);
  ++size_;
}

void WorkQueue::insert(size_t at, Pending&& pending) {
  push(std::move(pending));
  for (size_t i = size_ - 1; i > at; --i) std::swap((*this)[i], (*this)[i - 1]);
}

void WorkQueue::pop_front() {
  (*this)[0].peer.reset();
  begin_ = (begin_ + 1) & (ring_.size() - 1);
  --size_;
  ++first_number_;
}

void WorkQueue::bring_forward(size_t index) {
  for (; index > 0; --index) std::swap((*this)[index], (*this)[index - 1]);
}

void WorkQueue::evict_front() {
  if (signalled((*this)[0]).value_or(true)) ++evicted_;
  pop_front();
  set_doubtful();
}

size_t WorkQueue::remove_call(uint32_t tid, uint64_t call_ns, uint32_t accepted) {
  const auto refused = [&](const Pending& pending) {
    return pending.tid == tid && pending.call_ns == call_ns && pending.position >= accepted;
  };
  // The call's requests are among the newest; other threads' may stand in between.
  size_t to = size_;
  while (to > 0 && (*this)[to - 1].time_ns >= call_ns) --to;
  const size_t before = size_;
  for (size_t from = to; from < before; ++from)
    if (!refused((*this)[from])) {
      if (from != to) (*this)[to] = std::move((*this)[from]);
      ++to;
    }
  for (size_t i = to; i < before; ++i) (*this)[i].peer.reset();
  size_ = to;
  return before - to;
}

std::optional<bool> WorkQueue::signalled(const Pending& pending) const {
  if (side_ == Queue::recv || pending.send_flags & IBV_SEND_SIGNALED || any_order_) return true;
  if (pending.source != Source::probe) return false;  // its ring would say so
  return sq_sig_all_;
}

std::optional<size_t> WorkQueue::find(uint64_t wr_id, size_t from, size_t to) const {
  for (size_t i = from; i < to; ++i)
    if (fits((*this)[i], wr_id)) return i;
  return std::nullopt;
}

// Rings know no wr_id: there the order alone decides.
bool WorkQueue::fits(const Pending& pending, uint64_t wr_id) {
  return pending.wr_id == wr_id || pending.source != Source::probe;
}

bool WorkQueue::contains(uint64_t wr_id) const {
  return find(wr_id, 0, size_).has_value();
}

WorkQueue::Match WorkQueue::match_success(uint64_t wr_id) {
  if (excess_ > 0) --excess_;
  if (any_order_) return match_alone(wr_id);
  return settle(size_ != 0 && certain(0) ? match_in_order(wr_id) : match_by_id(wr_id));
}

WorkQueue::Match WorkQueue::settle(Match match) {
  if (match.kind == Match::found) {
    if (match.ambiguous && !match.by_flag) set_doubtful();
  } else if (evicted_ != 0) {
    --evicted_;
    match.kind = Match::evicted;
  }
  return match;
}

// The oldest signalled request, if its wr_id agrees; else, records having been lost, the oldest
// signalled one whose wr_id does.
WorkQueue::Match WorkQueue::match_in_order(uint64_t wr_id) {
  std::optional<size_t> maybe;  // unflagged, while sq_sig_all is unknown
  bool passed = false;          // a signalled one with another wr_id
  for (size_t i = 0; i < size_; ++i) {
    const auto signalled = this->signalled((*this)[i]);
    if (signalled == false) continue;
    const bool same = fits((*this)[i], wr_id);
    if (!certain(i)) {
      if (same) return {Match::found, i, true};
    } else if (!signalled) {
      if (same && !maybe) maybe = i;
    } else if (same) {
      if (!maybe && !passed && !assumed_flags_) learn_signalling(i);
      if (maybe || assuming_flags()) {
        // Either may be meant. Programs that flag some requests have not asked for sq_sig_all;
        // whether this was right, and with it what is left in the queue, shows later.
        assumed_flags_ = true;
        return {.kind = Match::found, .index = i, .ambiguous = true, .by_flag = true};
      }
      return {Match::found, i, passed};
    } else if (maybe) {
      break;  // no flagged request before this one could be meant
    } else {
      passed = true;
    }
  }
  if (!maybe) return {};
  const bool certain = *maybe == 0 && !assumed_flags_;
  if (*maybe == 0) sq_sig_all_ = true;  // an unflagged request has completed
  return {Match::found, *maybe, !certain};
}

// A request completed: those before it that were not flagged, and did not, are not signalled.
void WorkQueue::learn_signalling(size_t index) {
  if (sq_sig_all_ || side_ == Queue::recv) return;
  if (!((*this)[index].send_flags & IBV_SEND_SIGNALED))
    sq_sig_all_ = true;
  else if (index > 0)
    sq_sig_all_ = false;
}

WorkQueue::Match WorkQueue::match_by_id(uint64_t wr_id) {
  std::optional<size_t> first;
  size_t candidates = 0;
  for (size_t i = 0; i < size_; ++i) {
    const Pending& pending = (*this)[i];
    // While signalling is unknown, an unflagged request counts only if none was ever flagged.
    if (!fits(pending, wr_id) || !signalled(pending).value_or(!saw_flagged_)) continue;
    ++candidates;
    if (!first) first = i;
  }
  if (!first) return {};
  if (candidates > 1 || !evidence_.proven()) return {Match::found, *first, true};
  set_in_step();
  learn_signalling(*first);
  return {Match::found, *first, false};
}

WorkQueue::Match WorkQueue::match_alone(uint64_t wr_id) {
  const auto i = find(wr_id, 0, size_);
  if (!i) return settle({});
  bool several = (*this)[*i].flags & kAmbiguous;
  for (auto j = find(wr_id, *i + 1, size_); j; j = find(wr_id, *j + 1, size_)) {
    (*this)[*j].flags |= kAmbiguous;  // its completion may have been this one
    several = true;
  }
  if (!certain(*i) && evidence_.proven()) set_in_step();
  return {.kind = Match::found, .index = *i, .ambiguous = several || !certain(*i), .alone = true};
}

WorkQueue::Match WorkQueue::match_error(uint64_t wr_id) {
  const bool was_in_error = std::exchange(in_error_, true);
  if (any_order_) return match_alone(wr_id);
  Match match;
  if (size_ != 0 && certain(0)) {
    // Which requests can be meant: in the error state the oldest only; else any up to the oldest
    // signalled one, for that would have completed first.
    size_t end = was_in_error ? 1 : 0;
    while (end < size_ && !was_in_error && !signalled((*this)[end++]).value_or(false)) {
    }
    if (const auto i = find(wr_id, 0, end)) {
      const bool several = find(wr_id, *i + 1, end).has_value();
      match = {Match::found, *i, several || assuming_flags()};
    } else if (const auto later = find(wr_id, end, size_)) {
      match = {Match::found, *later, true};
    }
  } else if (const auto i = find(wr_id, 0, size_)) {
    const bool unique = !find(wr_id, *i + 1, size_);
    match = {Match::found, *i, !(unique && evidence_.proven())};
    if (!match.ambiguous) set_in_step();
  }
  match.in_error = was_in_error;
  return settle(match);
}

void WorkQueue::set_out_of_step() {
  certain_end_ = std::min(certain_end_, first_number_ + size_);
}

// What the wr_ids have shown so far still holds.
void WorkQueue::set_doubtful() {
  certain_end_ = 0;
}

}  // namespace sigma
