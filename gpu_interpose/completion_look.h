// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// CompletionLook: one life of one completion queue in device memory, from copies to records.
//
// GPU stacks keep no consumer index where others can see it: laps are noticed by the last entry
// read (decode/completion_ring.h, `anchor`). A collapsed queue is one entry, of which each look
// sees the newest: what it stood for in between is no gap, for it says that all before have
// completed. No I/O, no allocation; one thread.
#pragma once

#include <stdint.h>

#include "decode/completion_ring.h"
#include "decode/ring_records.h"
#include "gpu_interpose/record_batch.h"
#include "gpu_interpose/registry.h"
#include "gpu_interpose/send_look.h"

namespace sigma::gpu {

class CompletionLook {
 public:
  // As `queue` describes it. False: not a queue that can be read.
  bool begin(const sigma_gpu_queue& queue, uint32_t life, uint8_t tier, RecordBatch& out);
  bool begun() const { return begun_; }
  void forget() { begun_ = false; }
  bool is_of(const sigma_gpu_queue& queue) const {
    return begun_ && addr_ == queue.cq_addr && context_ == queue.context && cqn_ == queue.cqn;
  }
  uint64_t address() const { return addr_; }
  bool collapsed() const { return ring_.collapsed; }
  uint32_t entry_bytes() const { return ring_.entry_bytes; }
  uint32_t entries() const { return ring_.entries; }
  uint64_t seen() const { return seen_; }
  uint64_t missed() const { return missed_; }

  // Found in use: `whole` is the whole ring (collapsed: its entry). What is there was completed
  // before, and is not told; but an error is. Out: the newest requester's completion of each queue
  // pair, by `newest(qp_num, counter)`.
  template <typename F>
  void start(const RingBytes& whole, F&& newest);
  // The same, of a queue that was taken up already.
  template <typename F>
  void newest_of(const RingBytes& whole, F&& newest) const;

  // The newest requester's completion of each queue pair in one copy, told or not, by
  // `newest(qp_num, counter)`. True when there is one that has not been told. `all`: there was none
  // that this copy does not show, nor, of queue pairs without one here, any that was not told.
  struct Wanted {
    uint64_t first = 0;
    uint32_t count = 0;
  };
  template <typename F>
  bool peek(const Wanted& wanted, const RingBytes& copy, const RingBytes& anchor, bool& all,
            F&& newest);
  // One more entry to be copied, behind `copy`, that tells whether the writer has gone round: the
  // last one read, which then does not stand any more; of a queue of which nothing was read, the
  // last of all. Count 0: none.
  Wanted anchor() const {
    if (ring_.collapsed) return {};
    return {fresh() ? ring_.entries - 1 : cursor_.anchor_at,
            fresh() || cursor_.has_anchor ? 1u : 0u};
  }
  // `all`: of all that may be there, not only as much as is likely.
  Wanted wanted(bool all) const;
  // Two copies of these entries, one after the other in time; `third`, of collapsed queues, one
  // more: under load two of them agree more often. `send_of(qp_num)`: its SendLook or null.
  // `sends`: of(qp_num) is its SendLook or null; completions_lost() hears of a gap, before what
  // comes behind it is told.
  template <typename Sends>
  void on_copies(const Wanted& wanted, const RingBytes& one, const RingBytes& two,
                 const RingBytes& three, const LookTimes& times, const Sends& sends,
                 RecordBatch& out);
  void end(RecordBatch& out);

  uint64_t looked_ns = 0;
  // The owner of this queue's looks: queue pairs that complete here.
  uint32_t users = 0;

 private:
  RingName name() const;
  void state(uint8_t event, RecordBatch& out) const;
  void gap(uint64_t first, uint64_t count, const LookTimes& times, RecordBatch& out);
  // Tells it, unless a queue pair had it already.
  void report(const Cqe& cqe, uint64_t position, SendLook* send, const LookTimes& times,
              RecordBatch& out);
  bool load(const RingBytes& bytes, uint64_t entry, std::byte (&out)[kCqeBytes]) const;
  bool fresh() const { return cursor_.next == 0 && !cursor_.has_anchor; }
  // All that the copies of the entries up to position `end` have. True: there is more.
  template <typename Sends>
  bool take_all(uint64_t from, uint64_t end, const RingBytes& one, const RingBytes& two,
                const LookTimes& times, const Sends& sends, RecordBatch& out);
  void anchor_newest(const RingBytes& whole);

  CompletionRing ring_;
  CompletionCursor cursor_;
  uint64_t context_ = 0, addr_ = 0;
  uint32_t cqn_ = 0, life_ = 0, expected_ = 16;
  uint64_t first_ = 0, seen_ = 0, missed_ = 0, left_since_ns_ = 0;
  bool begun_ = false, whole_ring_ = false;
  uint8_t tier_ = 0;
};

// From the oldest on, so that the newest of a queue pair is the last one told.
template <typename F>
void CompletionLook::newest_of(const RingBytes& whole, F&& newest) const {
  const uint32_t entries = ring_.collapsed ? 1 : ring_.entries;
  std::byte entry[kCqeBytes];
  for (uint32_t i = 0; i < entries; ++i) {
    if (!load(whole, (cursor_.next + i) % entries, entry)) continue;
    const Cqe cqe = decode_cqe(entry);
    if (is_requester(cqe)) newest(cqe.qp_num, cqe.wqe_counter);
  }
}

template <typename F>
void CompletionLook::start(const RingBytes& whole, F&& newest) {
  std::byte entry[kCqeBytes];
  // In a ring that nobody has written to, positions begin at 0.
  if (!ring_.collapsed && load(whole, 0, entry) && decode_cqe(entry).kind != CqeKind::invalid) {
    skip_to_newest(ring_, cursor_, whole);
    anchor_newest(whole);
  }
  newest_of(whole, newest);
  // What had completed well is told by nobody; an error is what one looks for.
  Cqe cqe;
  if (ring_.collapsed && load(whole, 0, entry) && decode_cqe(entry).kind == CqeKind::requester)
    next_collapsed(cursor_, entry, entry, cqe);
  first_ = cursor_.next;
}

template <typename F>
bool CompletionLook::peek(const Wanted& wanted, const RingBytes& copy, const RingBytes& anchor,
                          bool& all, F&& newest) {
  std::byte entry[kCqeBytes];
  bool news = false;
  all = false;
  if (ring_.collapsed) {
    if (!load(copy, 0, entry)) return false;
    const Cqe cqe = decode_cqe(entry);
    all = users == 1 && (is_requester(cqe) || cqe.kind == CqeKind::invalid);
    if (is_requester(cqe)) newest(cqe.qp_num, cqe.wqe_counter);
    return cqe.kind != CqeKind::invalid && (!cursor_.has_anchor || !anchor_stands(cursor_, entry));
  }
  std::byte mark[kCqeBytes];
  const bool marked = load(anchor, 0, mark);
  if (fresh() && load(copy, 0, entry) && decode_cqe(entry).kind != CqeKind::invalid &&
      !(marked && decode_cqe(mark).kind == CqeKind::invalid))
    whole_ring_ = true;
  // Where this copy is of the whole ring, on_copies() takes all of it: told of here as well.
  if (whole_ring_ && wanted.count == ring_.entries) {
    // The oldest entry is where the newest one will be followed.
    CompletionCursor at = cursor_;
    skip_to_newest(ring_, at, copy);
    for (uint32_t i = 0; i < ring_.entries; ++i) {
      if (!load(copy, (at.next + i) % ring_.entries, entry)) continue;
      const Cqe cqe = decode_cqe(entry);
      if (is_requester(cqe)) newest(cqe.qp_num, cqe.wqe_counter);
    }
    return true;
  }
  if (whole_ring_ || is_lapped(ring_, cursor_, wanted.first, copy)) return true;
  for (uint64_t at = cursor_.next; at < wanted.first + wanted.count; ++at) {
    if (!load(copy, at - wanted.first, entry)) break;
    const Cqe cqe = decode_cqe(entry);
    if (cqe.kind == CqeKind::invalid || cqe.owner != (at / ring_.entries & 1)) {
      all = cqe.kind == CqeKind::invalid ||
            (cursor_.has_anchor && cursor_.anchor_at + 1 == cursor_.next && marked &&
             anchor_stands(cursor_, mark));
      break;
    }
    news = true;
    if (is_requester(cqe)) newest(cqe.qp_num, cqe.wqe_counter);
  }
  return news;
}

template <typename Sends>
void CompletionLook::on_copies(const Wanted& wanted, const RingBytes& one, const RingBytes& two,
                               const RingBytes& three, const LookTimes& look, const Sends& sends,
                               RecordBatch& out) {
  LookTimes times = look;
  if (left_since_ns_ != 0 && left_since_ns_ < times.before_ns) times.before_ns = left_since_ns_;
  left_since_ns_ = 0;
  Cqe cqe;
  if (ring_.collapsed) {
    std::byte a[kCqeBytes], b[kCqeBytes], c[kCqeBytes];
    if (!load(one, 0, a) || !load(two, 0, b) || !load(three, 0, c)) return;
    if (next_collapsed(cursor_, b, c, cqe) || next_collapsed(cursor_, a, b, cqe))
      report(cqe, cursor_.next - 1, sends.of(cqe.qp_num), times, out);
    else if (memcmp(b, c, sizeof b) != 0)
      left_since_ns_ = times.before_ns;
    return;
  }
  const uint64_t before = cursor_.next;
  bool more = false;
  if (whole_ring_ && wanted.count == ring_.entries) {
    whole_ring_ = false;
    const Remains remains = skip_overwritten(ring_, cursor_, one, two);
    gap(before, remains.lost, times, out);
    sends.completions_lost();
    more = take_all(remains.from, remains.from + ring_.entries, remains.first, remains.again, times,
                    sends, out);
  } else if (whole_ring_ || is_lapped(ring_, cursor_, wanted.first, two)) {
    whole_ring_ = true;
    left_since_ns_ = times.before_ns;
    return;
  } else {
    more = take_all(wanted.first, wanted.first + wanted.count, one, two, times, sends, out);
  }
  const uint64_t found = cursor_.next - before;
  expected_ = static_cast<uint32_t>((found + found / 4 + 16) * (more ? 2 : 1));
  if (expected_ > ring_.entries) expected_ = ring_.entries;
}

template <typename Sends>
bool CompletionLook::take_all(uint64_t from, uint64_t end, const RingBytes& one,
                              const RingBytes& two, const LookTimes& times, const Sends& sends,
                              RecordBatch& out) {
  Cqe cqe;
  while (cursor_.next < end || cursor_.left > 0) {
    const uint64_t at = cursor_.next;
    uint64_t lost = 0;
    switch (next_completion(ring_, cursor_, from, one, two, cqe, lost)) {
      case CqNext::completion:
        report(cqe, at, sends.of(cqe.qp_num), times, out);
        break;
      case CqNext::lost:
        gap(cursor_.next - lost, lost, times, out);
        sends.completions_lost();
        break;
      case CqNext::cut:
      case CqNext::unstable:
        left_since_ns_ = times.before_ns;
        return false;
      case CqNext::resized:
      case CqNext::end:
        return false;
    }
  }
  left_since_ns_ = times.before_ns;  // the copy ended before the news did
  return true;
}

}  // namespace sigma::gpu
