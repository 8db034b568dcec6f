// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
#include "observe/send_reader.h"

#include <algorithm>
#include <cstring>
#include <vector>

namespace sigma {
SendReader::SendReader(const SendSpec& spec, uint32_t life, Mode mode, bool probes_tell)
    : spec_(spec),
      ring_{spec.owner.number, spec.blocks},
      life_(life),
      mode_(mode),
      probes_tell_(probes_tell) {}

void SendReader::start_at(uint64_t position) {
  first_ = cursor_.posted = cursor_.next = explained_ = completed_ = position;
}

RingName SendReader::name() const {
  return {.context = spec_.owner.context,
          .number = spec_.owner.number,
          .life = life_,
          .initiator = spec_.initiator,
          .tier = spec_.tier,
          .by_file = spec_.owner.by_file};
}

void SendReader::begin(RecordBuffer& out) {
  state(SIGMA_RING_BEGIN, "", spec_.since_ns, out);
}

void SendReader::resume(uint32_t life, uint64_t now_ns, RecordBuffer& out) {
  life_ = life;
  first_ = cursor_.posted;
  seen_ = missed_ = 0;
  state(SIGMA_RING_BEGIN, "", now_ns, out);
}

void SendReader::state(uint8_t event, const char* reason, uint64_t now_ns, RecordBuffer& out) {
  sigma_ring record = ring_record(name(), SIGMA_RING_SEND, event);
  record.ring_addr = spec_.ring_addr;
  record.doorbell_addr = spec_.doorbell_addr;
  record.first = first_;
  record.posted = cursor_.posted - first_;
  record.seen = seen_;
  record.missed = missed_;
  record.entries = spec_.blocks;
  record.cqn = spec_.send_cqn;
  if (cursor_.modulo) record.flags |= SIGMA_RING_MODULO;
  record.origin = spec_.origin;
  record.mode = mode_ == Mode::read ? SIGMA_RING_READ : SIGMA_RING_COUNTED;
  std::strncpy(record.reason, reason, sizeof(record.reason) - 1);
  out.add(record, SIGMA_RING, spec_.owner.pid, now_ns);
}

void SendReader::set_gpu_initiated(uint64_t now_ns, RecordBuffer& out) {
  if (spec_.initiator == SIGMA_INITIATOR_GPU) return;
  spec_.initiator = SIGMA_INITIATOR_GPU;
  spec_.tier = 1;
  state(SIGMA_RING_STATE, "", now_ns, out);
}

void SendReader::set_mode(Mode mode, const char* reason, uint64_t now_ns, RecordBuffer& out) {
  if (mode == mode_) return;
  mode_ = mode;
  state(SIGMA_RING_STATE, reason, now_ns, out);
}

void SendReader::gap(uint64_t first, uint64_t count, uint8_t reason, const LookTimes& times,
                     RecordBuffer& out) {
  if (count == 0) return;
  const IndexRange range{first, first + count};
  contiguous_from_ = range.end;
  if (!probes_tell_) return emit(Gap{range, reason, times}, times.after_ns, out);
  explained_ranges_.for_each_outside(
      range, [&](IndexRange piece) { gaps_.push_back({piece, reason, times}); });
}

void SendReader::settle_gaps(bool all, uint64_t now_ns, RecordBuffer& out) {
  while (!gaps_.empty() && (all || !probes_tell_ || gaps_.front().times.after_ns < told_until_ns_)) {
    explained_ranges_.for_each_outside(gaps_.front().range, [&](IndexRange piece) {
      emit(Gap{piece, gaps_.front().reason, gaps_.front().times}, now_ns, out);
    });
    gaps_.pop_front();
  }
}

void SendReader::emit(const Gap& gap, uint64_t now_ns, RecordBuffer& out) {
  const uint64_t count = gap.range.end - gap.range.first;
  sigma_ring_gap record = gap_record(name(), SIGMA_RING_SEND, gap.range.first, count, gap.reason, gap.times);
  if (cursor_.modulo) record.flags |= SIGMA_RING_MODULO;
  missed_ += count;
  out.add(record, SIGMA_RING_GAP, spec_.owner.pid, now_ns);
}

SendReader::Wanted SendReader::on_doorbell(uint16_t value, const LookTimes& times, const PostedBounds& bounds,
                                           RecordBuffer& out) {
  const uint64_t before = cursor_.posted;
  // A doorbell that has not moved may have gone round as well.
  const auto posted = bounds.only(value);
  const bool laps_possible = !posted;
  cursor_.modulo |= laps_possible;
  advance_to(ring_, cursor_, posted ? *posted : extend16(before, value));
  fill_ = static_cast<double>(cursor_.posted - before) / ring_.blocks;
  settle_gaps(false, times.after_ns, out);
  if (!held_.empty() && (cursor_.posted != before || laps_possible))
    settle_held(cursor_.posted + (laps_possible ? 1u << 16 : 0), Rest::waits, times.after_ns, out);
  if (mode_ == Mode::counted) {
    settle_held(cursor_.posted, Rest::given_up, times.after_ns, out);
    gap(cursor_.next, cursor_.posted - cursor_.next, SIGMA_GAP_COUNTED, times, out);
    cursor_.next = cursor_.posted;
    return {};
  }
  if (mode_ == Mode::probed && !mixed_) {
    if (explained_ >= cursor_.posted) {
      cursor_.next = cursor_.posted;
      unexplained_since_ns_ = behind_since_ns_ = 0;
      return {};
    }
    cursor_.next = std::max(cursor_.next, std::min(explained_, cursor_.posted));
    // A probe's record comes with the next drain of the ring buffer: until then its post looks like
    // one that no probe has told of.
    if (unexplained_since_ns_ == 0 || explained_ >= unexplained_until_) {
      unexplained_since_ns_ = times.after_ns;
      unexplained_until_ = cursor_.posted;
      behind_since_ns_ = times.before_ns;
    }
    // Before it is overwritten it must be read, explained or not.
    const bool urgent = cursor_.posted - cursor_.next > ring_.blocks / 2;
    if (!urgent && unexplained_since_ns_ >= told_until_ns_) return {};
    mixed_ = !urgent;
    unexplained_since_ns_ = 0;
  }
  if (cursor_.next == cursor_.posted) {
    behind_since_ns_ = 0;
    return {};
  }
  if (behind_since_ns_ == 0) behind_since_ns_ = times.before_ns;
  const uint64_t oldest = cursor_.posted > ring_.blocks ? cursor_.posted - ring_.blocks : 0;
  return {std::max(oldest, cursor_.next), cursor_.posted};
}

// Of what the looks before left unread: since they began.
LookTimes SendReader::since_behind(const LookTimes& look) const {
  if (behind_since_ns_ == 0) return look;
  return {std::min(behind_since_ns_, look.before_ns), look.after_ns};
}

void SendReader::on_copy(const Wanted& wanted, const RingBytes& bytes, uint16_t doorbell_after,
                         const PostedBounds& bounds, const LookTimes& look, RecordBuffer& out) {
  const auto known = bounds.only(doorbell_after);
  const After after{known ? *known : extend16(wanted.end, doorbell_after), known.has_value()};
  const LookTimes times = since_behind(look);
  behind_since_ns_ = 0;
  const uint64_t start = chain_start(ring_, bytes, wanted.first, wanted.end);
  if (wanted.first > cursor_.next || start > wanted.first)
    settle_held(after.posted + (after.sure ? 0 : 1u << 16), Rest::given_up, times.after_ns, out);
  gap(cursor_.next, wanted.first - cursor_.next, SIGMA_GAP_LAPPED, times, out);
  gap(wanted.first, start - wanted.first, SIGMA_GAP_UNCERTAIN, times, out);
  report_chain(bytes, wanted.first, start, wanted.end, times, after, out);
  cursor_.next = wanted.end;
}

void SendReader::on_last(uint64_t first, const RingBytes& bytes, uint16_t doorbell, const PostedBounds& bounds,
                         const LookTimes& look, RecordBuffer& out) {
  const auto known = bounds.only(doorbell);
  cursor_.modulo |= !known;
  const uint64_t posted = known ? *known : extend16(cursor_.posted, doorbell);
  const LookTimes times = since_behind(look);
  const uint64_t at_ns = times.after_ns;
  if (known)
    settle_held(posted, Rest::stands, at_ns, out);
  else
    settle_held(posted + (1u << 16), Rest::given_up, at_ns, out);
  cursor_.posted = posted;
  first = posted - bytes.size() / kWqeBlockBytes;
  if (mode_ == Mode::counted) first = posted;
  const uint64_t from = std::max(first, cursor_.next);
  gap(cursor_.next, std::min(from, posted) - cursor_.next,
      mode_ == Mode::counted ? SIGMA_GAP_COUNTED : SIGMA_GAP_LAPPED, times, out);
  if (from < posted) {
    // The chain is sought from where we stand, not from where the copy begins.
    const size_t skip = (from - first) * kWqeBlockBytes;
    std::vector<std::byte> rest(bytes.size() - skip);
    bytes.copy(skip, rest.data(), rest.size());
    const RingBytes slots{std::span<const std::byte>(rest)};
    const uint64_t start = chain_start(ring_, slots, from, posted);
    gap(from, start - from, SIGMA_GAP_UNCERTAIN, times, out);
    report_chain(slots, from, start, posted, times, {.posted = posted, .last = true}, out);
  }
  cursor_.next = posted;
  settle_gaps(true, at_ns, out);
  state(SIGMA_RING_END, "", at_ns, out);
}

void SendReader::end(uint64_t at_ns, uint8_t gap_reason, bool seen, RecordBuffer& out) {
  settle_held(cursor_.posted, Rest::given_up, at_ns, out);
  if (mode_ == Mode::probed && explained_ > cursor_.next)
    cursor_.next = std::min(explained_, cursor_.posted);
  gap(cursor_.next, cursor_.posted - cursor_.next, gap_reason, {at_ns, at_ns}, out);
  cursor_.next = cursor_.posted;
  settle_gaps(true, at_ns, out);
  const bool receives_only = spec_.blocks == 0;
  state(SIGMA_RING_END, seen || receives_only ? "" : SIGMA_RING_END_UNSEEN, at_ns, out);
}

void SendReader::report_chain(const RingBytes& slots, uint64_t first, uint64_t start, uint64_t end,
                              const LookTimes& times, const After& after, RecordBuffer& out) {
  const uint64_t until =
      for_each_wqe(slots, first, start, end, spec_.service, [&](uint64_t at, const Wqe& wqe) {
        report(at, wqe, times, after, out);
      });
  gap(until, end - until, SIGMA_GAP_UNREADABLE, times, out);
}

void SendReader::report(uint64_t position, const Wqe& wqe, const LookTimes& times, const After& after,
                        RecordBuffer& out) {
  sigma_ring_post post = post_record(name(), wqe, position, times);
  post.qp_type = spec_.qp_type;
  largest_request_ = std::max<uint32_t>(largest_request_, wqe.blocks);
  if (cursor_.modulo) post.flags |= SIGMA_RING_MODULO;
  if (wqe.signaled) {
    if (signaled_at_ < position && signaled_at_ >= contiguous_from_) {
      const auto blocks = static_cast<uint32_t>(position - signaled_at_);
      if (blocks_per_completion_ == 0)
        blocks_per_completion_ = blocks;
      else if (blocks_per_completion_ != blocks)
        blocks_per_completion_ = kVaries;
    }
    signaled_at_ = position;
  }
  const bool margin = after.sure && margin_certain(ring_, position, after.posted);
  if (held_.empty() && (margin || after.last)) {
    post.flags |= margin ? SIGMA_RING_MARGIN : SIGMA_RING_POSTERIOR;
    emit(post, times.after_ns, out);
  } else if (after.last) {
    post.flags |= SIGMA_RING_POSTERIOR;
    emit(post, times.after_ns, out);
  } else {
    held_.push_back({post, margin ? 0 : after.posted});
  }
}

void SendReader::emit(sigma_ring_post& post, uint64_t now_ns, RecordBuffer& out) {
  seen_ += post.blocks;
  out.add(post, SIGMA_RING_POST, spec_.owner.pid, now_ns);
}

void SendReader::settle_held(uint64_t posted, Rest rest, uint64_t now_ns, RecordBuffer& out) {
  while (!held_.empty()) {
    Held& held = held_.front();
    const uint64_t position = held.post.index;
    const bool margin = held.posted_after == 0;
    Posterior answer = margin ? Posterior::certain
                              : posterior(ring_, position, held.posted_after, posted);
    if (answer == Posterior::wait) {
      if (rest == Rest::waits) return;
      const bool stands = rest == Rest::stands && posted <= position + ring_.blocks;
      answer = stands ? Posterior::certain : Posterior::refused;
    }
    if (answer == Posterior::refused) {
      gap(position, held.post.blocks, SIGMA_GAP_UNCERTAIN, {now_ns, now_ns}, out);
    } else {
      held.post.flags |= margin ? SIGMA_RING_MARGIN : SIGMA_RING_POSTERIOR;
      emit(held.post, now_ns, out);
    }
    held_.pop_front();
  }
}

void SendReader::settle_unfinished(uint64_t end, uint64_t now_ns, RecordBuffer& out) {
  while (!held_.empty() && held_.front().post.index < end) {
    Held& held = held_.front();
    const bool margin = held.posted_after == 0;
    if (!margin && !unfinished_certain(held.post.index, completed_)) return;
    held.post.flags |= margin ? SIGMA_RING_MARGIN : SIGMA_RING_POSTERIOR;
    emit(held.post, now_ns, out);
    held_.pop_front();
  }
}

void SendReader::explain(uint16_t index, uint32_t blocks, bool same_thread) {
  largest_request_ = std::max(largest_request_, std::min<uint32_t>(blocks, kMaxWqeBlocks));  // of a list, or one
  const auto ahead =
      static_cast<int16_t>(static_cast<uint16_t>(index - static_cast<uint16_t>(explained_)));
  if (ahead > 0) {
    const IndexRange between{explained_, explained_ + static_cast<uint64_t>(ahead)};
    // Posts in between that no probe told of.
    if (!open_ended_) mixed_ = true;
    else explained_ranges_.add(between);
    explained_ = between.end;
  } else if (ahead < 0 && same_thread) {
    // What was refused did not move the queue on.
    const auto back = static_cast<uint64_t>(-int64_t{ahead});
    explained_ -= std::min(back, explained_);
  }
  explained_ranges_.add({explained_, explained_ + blocks});
  explained_ += blocks;
  open_ended_ = blocks == 0;
  if (mode_ == Mode::read && !mixed_) mode_ = Mode::probed;
}

bool SendReader::completed(uint16_t counter, uint64_t cq_index) {
  // No more than the ring is outstanding, which is half of what an index tells apart.
  const auto ahead =
      static_cast<int16_t>(static_cast<uint16_t>(counter - static_cast<uint16_t>(cursor_.posted)));
  if (ahead < 0 && cursor_.posted < static_cast<uint64_t>(-int64_t{ahead})) return false;
  const uint64_t position = cursor_.posted + static_cast<uint64_t>(int64_t{ahead});
  if (position < completed_) return false;
  completed_ = position + 1;
  completion_index_ = cq_index;
  any_completed_ = true;
  return true;
}

uint64_t SendReader::completed_at(uint64_t cq_index) const {
  if (!any_completed_ || blocks_per_completion() == 0 || cq_index < completion_index_) return 0;
  return completed_ - 1 + (cq_index - completion_index_) * blocks_per_completion_;
}

}  // namespace sigma
