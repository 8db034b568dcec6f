// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
#include "session/shared_queue.h"

#include <utility>

namespace sigma {

void SharedQueue::push(Pending&& pending) {
  uint32_t slot = free_;
  if (slot == kNone) {
    slot = static_cast<uint32_t>(slots_.size());
    slots_.emplace_back();
  } else {
    free_ = slots_[slot].next_same;
  }
  evidence_.posted(pending.wr_id);

  SameId& same = by_id_[pending.wr_id];
  if (same.count == 0)
    same.first = slot;
  else
    slots_[same.last].next_same = slot;
  same.last = slot;
  ++same.count;

  slots_[slot] = {std::move(pending), newest_, kNone, kNone, posted_};
  if (!takes_slot_.empty()) by_number_[posted_] = slot;
  ++posted_;
  if (newest_ == kNone)
    oldest_ = slot;
  else
    slots_[newest_].newer = slot;
  newest_ = slot;
  ++size_;
}

void SharedQueue::remove(uint32_t slot) {
  Slot& gone = slots_[slot];
  SameId& same = *by_id_.find(gone.pending.wr_id);
  if (--same.count == 0) {
    by_id_.erase(gone.pending.wr_id);
  } else if (same.first == slot) {
    same.first = gone.next_same;
  } else {
    uint32_t before = same.first;
    while (slots_[before].next_same != slot) before = slots_[before].next_same;
    slots_[before].next_same = gone.next_same;
    if (same.last == slot) same.last = before;
  }
  by_number_.erase(gone.number);
  (gone.older == kNone ? oldest_ : slots_[gone.older].newer) = gone.newer;
  (gone.newer == kNone ? newest_ : slots_[gone.newer].older) = gone.older;
  gone = {};
  gone.next_same = std::exchange(free_, slot);
  --size_;
}

void SharedQueue::evict_front() {
  ++evicted_;
  pop_front();
  set_out_of_step();
}

size_t SharedQueue::remove_call(uint32_t tid, uint64_t call_ns, uint32_t accepted) {
  size_t removed = 0;
  for (uint32_t slot = newest_; slot != kNone && slots_[slot].pending.time_ns >= call_ns;) {
    const uint32_t older = slots_[slot].older;
    const Pending& pending = slots_[slot].pending;
    if (pending.tid == tid && pending.call_ns == call_ns && pending.position >= accepted) {
      remove(slot);
      ++removed;
    }
    slot = older;
  }
  if (removed != 0 && !takes_slot_.empty()) renumber(removed);
  return removed;
}

// Refused posts took no slot: they were the last, and others may have come behind them.
void SharedQueue::renumber(size_t removed) {
  posted_ -= removed;
  uint64_t number = posted_;
  for (uint32_t slot = newest_; slot != kNone && slots_[slot].number >= number;
       slot = slots_[slot].older) {
    by_number_.erase(slots_[slot].number);
    slots_[slot].number = --number;
    by_number_[number] = slot;
  }
}

void SharedQueue::set_slots(uint32_t slots) {
  if (posted_ != 0 || slots == 0 || slots > 1u << 16) return;
  takes_slot_.resize(slots);
  for (uint32_t i = 0; i < slots; ++i) takes_slot_[i] = i;
  sequence_ = slots;
}

void SharedQueue::forget_slots() {
  if (takes_slot_.empty()) return;
  slots_forgotten_ = true;
  takes_slot_.clear();
  by_number_.clear();
}

SharedQueue::Match SharedQueue::take_slot(uint16_t ring_slot) {
  if (slots_forgotten_ && size_ != 0) {
    pop_front();
    return {.kind = Match::ambiguous};
  }
  if (ring_slot >= takes_slot_.size()) return {};
  const uint64_t number = std::exchange(takes_slot_[ring_slot], sequence_++);
  const uint32_t* slot = by_number_.find(number);
  if (slot == nullptr) return {};
  Match match{Match::found, slots_[*slot].pending};
  remove(*slot);
  return match;
}

SharedQueue::Match SharedQueue::take(uint64_t wr_id) {
  SameId* same = by_id_.find(wr_id);
  if (same == nullptr) {
    if (evicted_ == 0) return {};
    --evicted_;
    return {.kind = Match::evicted};
  }
  if (!in_step_ && evidence_.proven()) in_step_ = true;
  const bool certain = same->count == 1 && !same->doubtful && in_step_;
  same->doubtful |= !certain;
  const uint32_t slot = same->first;
  Match match{certain ? Match::found : Match::ambiguous, std::move(slots_[slot].pending)};
  slots_[slot].pending.wr_id = wr_id;
  remove(slot);
  return match;
}

}  // namespace sigma
