// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Entry by entry, from copies to records. Whose the doorbell record's index is: cq_index.cpp; what a first copy tells
// of send rings: cq_reached.cpp.
#include "observe/cq_reader.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>
#include <vector>

namespace sigma {
namespace {

constexpr uint32_t kGenerous = 512;

}  // namespace

CqReader::CqReader(const CqSpec& spec, uint32_t life, FindSend find_send)
    : spec_(spec), life_(life), find_send_(std::move(find_send)) {}

RingName CqReader::name() const {
  return {.context = spec_.owner.context,
          .number = spec_.owner.number,
          .life = life_,
          .by_file = spec_.owner.by_file};
}

void CqReader::begin(RecordBuffer& out) {
  first_ = cursor_.next;
  state(SIGMA_RING_BEGIN, "", spec_.since_ns, out);
}

void CqReader::resume(uint32_t life, uint64_t now_ns, RecordBuffer& out) {
  life_ = life;
  first_ = cursor_.next;
  seen_ = missed_ = 0;
  state(SIGMA_RING_BEGIN, "", now_ns, out);
}

void CqReader::state(uint8_t event, const char* reason, uint64_t now_ns, RecordBuffer& out) {
  sigma_ring record = ring_record(name(), SIGMA_RING_CQ, event);
  record.ring_addr = spec_.ring_addr;
  record.doorbell_addr = spec_.doorbell_addr;
  record.first = first_;
  record.posted = cursor_.next - first_;
  record.seen = seen_;
  record.missed = missed_;
  record.cqn = spec_.owner.number;
  record.entries = spec_.ring.entries;
  if (spec_.ring.collapsed) record.flags |= SIGMA_RING_COLLAPSED;
  if (!counts()) record.flags |= SIGMA_RING_OVERRUN;
  if (modulo_) record.flags |= SIGMA_RING_MODULO;
  if (spec_.polls_probed) record.flags |= SIGMA_RING_POLLED;
  record.origin = spec_.origin;
  record.mode = is_read() ? SIGMA_RING_READ : SIGMA_RING_COUNTED;
  std::strncpy(record.reason, reason, sizeof(record.reason) - 1);
  out.add(record, SIGMA_RING, spec_.owner.pid, now_ns);
}

void CqReader::gap(uint64_t count, const LookTimes& times, RecordBuffer& out, uint8_t reason, uint64_t end) {
  if (count == 0) return;
  const uint64_t first = std::min(end, cursor_.next) - count;
  sigma_ring_gap record = gap_record(name(), SIGMA_RING_CQ, first, count, reason, times);
  missed_ += count;
  out.add(record, SIGMA_RING_GAP, spec_.owner.pid, times.after_ns);
}

// A lap has passed that nobody counted.
bool CqReader::lapped(const Wanted& wanted, const RingBytes& copy) const {
  if (cursor_.counts) return false;
  const std::optional<bool> newer = overtaken(wanted.first, copy);
  return newer ? *newer : is_lapped(spec_.ring, cursor_, wanted.first, copy);
}

CqReader::Wanted CqReader::wanted(bool generous, uint32_t consumer) const {
  if (index_refuted_) consumer = 0;
  const uint32_t entries = spec_.ring.entries;
  if (spec_.ring.collapsed) return {0, 1};
  if (whole_ring_) return {cursor_.next & ~uint64_t{entries - 1}, entries};
  if (whole_first_ && cursor_.next == 0) return {0, entries};
  const uint64_t first =
      cursor_.counts ? copy_from(spec_.ring, cursor_) : copy_from_anchor(spec_.ring, cursor_);
  uint64_t expected = generous ? std::max(expected_, kGenerous) : expected_;
  const uint64_t passed = consumer != 0 ? consumed(consumer) : cursor_.consumed;
  if ((cursor_.counts || consumer != 0) && passed > cursor_.next) expected += passed - cursor_.next;
  return {first, static_cast<uint32_t>(std::min<uint64_t>(cursor_.next - first + expected, entries))};
}

bool CqReader::never_written(const std::array<std::byte, kCqeBytes>& entry) {
  return std::to_integer<uint8_t>(entry[63]) >> 4 == 15 || entry == std::array<std::byte, kCqeBytes>{};
}

bool CqReader::is_short(const Wanted& wanted, const RingBytes& copy) const {
  if (spec_.ring.layout != CqLayout::plain || spec_.ring.collapsed || wanted.count == 0) return false;
  std::array<std::byte, kCqeBytes> entry;
  const uint64_t last = wanted.first + wanted.count - 1;
  return copy.load(size_t{wanted.count} * spec_.ring.entry_bytes - kCqeBytes, entry) && !never_written(entry) &&
         (std::to_integer<uint8_t>(entry[63]) & 1) == (last / spec_.ring.entries & 1);
}

bool CqReader::has_news(const Wanted& wanted, const RingBytes& copy) const {
  if (whole_ring_ || spec_.ring.layout != CqLayout::plain || cursor_.left > 0) return true;
  std::array<std::byte, kCqeBytes> entry;
  const size_t tail = spec_.ring.entry_bytes - kCqeBytes;
  if (spec_.ring.collapsed) {
    if (!copy.load(tail, entry)) return false;
    return std::to_integer<uint8_t>(entry[63]) >> 4 != 15 &&
           !(cursor_.has_anchor && anchor_stands(cursor_, entry));
  }
  if (lapped(wanted, copy)) return true;
  if (cursor_.counts && refutes_index(wanted.first, copy, copy, cursor_.consumed)) return true;
  uint8_t op_own = 0;
  const size_t at = (cursor_.next - wanted.first + 1) * spec_.ring.entry_bytes - 1;
  if (!copy.load(at, op_own)) return true;
  const bool there = op_own >> 4 != 15 && (op_own & 1) == (cursor_.next / spec_.ring.entries & 1);
  return there || (cursor_.counts && cursor_.consumed > cursor_.next);
}

bool CqReader::knows_stranger(uint32_t qp_num) const {
  return strangers_known_ > strangers_.size() ||
         std::find(strangers_.begin(), strangers_.begin() + strangers_known_, qp_num) !=
             strangers_.begin() + strangers_known_;
}

void CqReader::on_nothing(uint32_t consumer) {
  caught_up_ = true;
  missed_late_ = false;
  fill_ = 0;
  if (index_refuted_) return;
  // Taken in with the next copies: the owner may have been quicker than we.
  if (!cursor_.counts && consumer == 0) return;
  cursor_.counts = true;
  cursor_.consumed = extend24(cursor_.consumed, consumer);
}

void CqReader::on_copies(const Wanted& wanted, const RingBytes& first, const RingBytes& second,
                         uint32_t consumer, const LookTimes& times, RecordBuffer& out) {
  const uint64_t before = cursor_.next;
  caught_up_ = missed_late_ = false;
  if (spec_.ring.collapsed) {
    std::array<std::byte, kCqeBytes> one, two;
    const size_t tail = spec_.ring.entry_bytes - kCqeBytes;
    Cqe cqe;
    if (first.load(tail, one) && second.load(tail, two) && next_collapsed(cursor_, one, two, cqe))
      report(cqe, cursor_.next - 1, times, out);
    fill_ = cursor_.next != before ? 0.5 : 0;
    return;
  }
  consumer = index_to_take(wanted.first, first, second, consumer);
  // An owner that keeps an index counts its laps; what is elsewhere in its ring the library has moved.
  const bool uncounted = !cursor_.counts && consumer == 0;
  if (std::exchange(whole_ring_, false) && uncounted) {
    fill_ = 1;
    const Remains remains = skip_overwritten(spec_.ring, cursor_, first, second);
    modulo_ = true;
    gap(remains.lost, since_left(times), out);
    missed_late_ = true;
    take_all(remains.from, remains.first, remains.again, times, out);
    return;
  }
  if (uncounted && lapped(wanted, second)) {
    whole_ring_ = true;
    left_since_ns_ = since_left(times).before_ns;
    fill_ = 1;
    return;
  }
  if (!uncounted) gap(consumed_to(spec_.ring, cursor_, consumer), times, out);
  if (cursor_.next == 0 && !whole_first_ && cursor_.consumed > spec_.ring.entries / 4 &&
      cursor_.consumed < spec_.ring.entries && wanted.count < spec_.ring.entries) {
    whole_first_ = true;
    left_since_ns_ = times.before_ns;
    fill_ = 1;
    return;
  }
  cut_ = false;
  take_all(wanted.first, first, second, times, out);
  overrun_ = overrun_ || (cursor_.counts && cursor_.next > cursor_.consumed + spec_.ring.entries);
  const uint64_t found = cursor_.next - before;
  fill_ = static_cast<double>(found) / spec_.ring.entries;
  const uint32_t least = spec_.ring.layout == CqLayout::plain ? 4 : kMaxSession;
  expected_ = std::max<uint32_t>(least, static_cast<uint32_t>(found + found / 4 + 2));
  if (cut_ || found + (before - wanted.first) >= wanted.count) expected_ *= 2;
  expected_ = std::min(expected_, spec_.ring.entries);
}

// Of what the looks before did not get to: since they began.
LookTimes CqReader::since_left(const LookTimes& look) const {
  if (left_since_ns_ == 0) return look;
  return {std::min(look.before_ns, left_since_ns_), look.after_ns};
}

void CqReader::take_all(uint64_t from, const RingBytes& first, const RingBytes& second,
                        const LookTimes& look, RecordBuffer& out) {
  const LookTimes times = since_left(look);
  left_since_ns_ = times.before_ns;
  // What a lap has overtaken is not in the copies any more.
  const uint64_t end = from + first.size() / spec_.ring.entry_bytes;
  Cqe cqe;
  std::array<Cqe, kRun> run;
  uint64_t lost = 0, lost_in_row = 0;
  while (cursor_.next < end || cursor_.left > 0) {
    const uint64_t at = cursor_.next;
    const CqNext next = next_completion(spec_.ring, cursor_, from, first, second, cqe, lost);
    if (next == CqNext::lost) {
      missed_late_ = true;
      lost_in_row += lost;
      continue;
    }
    gap(std::exchange(lost_in_row, 0), times, out, SIGMA_GAP_LAPPED, at);
    switch (next) {
      case CqNext::completion:
        report(cqe, at, times, out);
        while (const size_t count = next_run(spec_.ring, cursor_, from, first, second, run))
          for (size_t i = 0; i < count; ++i) report(run[i], cursor_.next - count + i, times, out);
        break;
      case CqNext::cut:
        cut_ = true;
        return;
      case CqNext::lost:
      case CqNext::unstable:
        return;
      case CqNext::end:
        caught_up_ = true;
        [[fallthrough]];
      case CqNext::resized:
        left_since_ns_ = 0;
        return;
    }
  }
  gap(lost_in_row, times, out);
}

// A ring that nobody writes to any more, whole, whose laps nobody counts: where it has gone further than
// `bytes` in their order show, its last lap is read.
bool CqReader::catch_up(uint64_t first, const RingBytes& bytes, const LookTimes& times,
                        RecordBuffer& out) {
  const CompletionRing& ring = spec_.ring;
  const uint64_t entries = ring.entries, stride = ring.entry_bytes;
  if (ring.layout != CqLayout::plain || entries < 2 || bytes.size() != entries * stride) return false;
  // The same entries in the order of the ring, and from any position on.
  const auto ordered = [&](uint64_t from) {
    std::vector<std::byte> ring_bytes(bytes.size());
    for (uint64_t i = 0; i < entries; ++i)
      bytes.copy(((from + i - first) & (entries - 1)) * stride, ring_bytes.data() + i * stride, stride);
    return ring_bytes;
  };
  const std::vector<std::byte> whole = ordered(0);
  for (size_t end = stride; end <= whole.size(); end += stride)
    if (std::to_integer<uint8_t>(whole[end - 1]) >> 4 == 15) return false;  // never written: no lap has passed
  CompletionCursor cursor = cursor_;
  uint64_t ahead = skip_to_newest(ring, cursor, RingBytes{std::span<const std::byte>(whole)});
  const bool passed = lapped({first, ring.entries}, bytes);
  modulo_ = modulo_ || passed;
  if (!passed) ahead %= 2 * entries;
  const uint64_t newest = cursor_.next + ahead;
  if (!passed && newest <= first + entries) return false;
  // The oldest one only shows that the next one stands.
  const uint64_t oldest = newest - entries;
  const uint64_t missed = oldest + 1 - std::min(oldest + 1, cursor_.next);
  cursor_.next += missed;
  cursor_.has_anchor = false;
  gap(missed, times, out);
  const std::vector<std::byte> last = ordered(oldest);
  const RingBytes copy{std::span<const std::byte>(last)};
  take_all(oldest, copy, copy, times, out);
  return true;
}

void CqReader::on_last(uint64_t first, const RingBytes& bytes, uint32_t consumer,
                       const LookTimes& times, RecordBuffer& out) {
  if (spec_.ring.collapsed) {
    if (bytes.size() >= spec_.ring.entry_bytes) on_copies({0, 1}, bytes, bytes, 0, times, out);
    return;
  }
  consumer = index_to_take(first, bytes, bytes, consumer);
  if (!cursor_.counts && consumer == 0 && catch_up(first, bytes, times, out)) return;
  const uint64_t end = first + bytes.size() / spec_.ring.entry_bytes;
  if (cursor_.counts || consumer != 0) gap(consumed_to(spec_.ring, cursor_, consumer), times, out);
  if (cursor_.next >= first && cursor_.next < end) take_all(first, bytes, bytes, times, out);
}

void CqReader::on_resized(const CqSpec& spec) {
  const uint32_t slot = spec_.slot;
  spec_ = spec;
  spec_.slot = slot;
  ++cursor_.next;
  sighted_.reset();
  cursor_.fresh_until = cursor_.next + spec.ring.entries;
  cursor_.has_anchor = false;
}

void CqReader::end(uint64_t at_ns, RecordBuffer& out) {
  // What the owner has consumed and we have not read was there.
  if (cursor_.counts && cursor_.consumed > cursor_.next && !spec_.ring.collapsed) {
    const uint64_t count = cursor_.consumed - cursor_.next;
    cursor_.next = cursor_.consumed;
    gap(count, {std::min(at_ns, left_since_ns_ != 0 ? left_since_ns_ : at_ns), at_ns}, out);
  }
  state(SIGMA_RING_END, "", at_ns, out);
}

// The library's cleaning of the ring may have moved an entry that was read before: over one that was
// not, which is lost.
bool CqReader::is_told(const Cqe& cqe, uint64_t position, SendReader* send) {
  if (is_requester(cqe) && send != nullptr) {
    if (!send->completed(cqe.wqe_counter, position)) return true;
    if (cursor_.counts) return false;  // once the queue pair is gone, so are its completions
  }
  if (spec_.ring.layout != CqLayout::plain || spec_.ring.collapsed) return false;
  const auto life = send != nullptr ? std::optional(send->life()) : std::nullopt;
  return told_before_.again(cqe, life, spec_.ring.entries);
}

void CqReader::report(const Cqe& cqe, uint64_t position, const LookTimes& times,
                      RecordBuffer& out) {
  const bool requester = is_requester(cqe);
  if (!requester && !is_responder(cqe)) return;
  if (!requester) serves_receives_ = true;
  SendReader* send = find_send_(cqe.qp_num);
  if (requester && send == nullptr && !knows_stranger(cqe.qp_num))
    strangers_[strangers_known_++ % strangers_.size()] = cqe.qp_num;
  if (is_told(cqe, position, send)) {
    // A send that had been posted before its ring was found is nobody's loss.
    if (!requester || send == nullptr || send->any_completed()) gap(1, times, out, SIGMA_GAP_LAPPED, position + 1);
    return;
  }
  ++seen_;
  const RingName of = send != nullptr ? send->name() : RingName{};
  sigma_ring_completion record = completion_record(name(), send != nullptr ? &of : nullptr, cqe, position, times);
  if (cqe.has_timestamp && spec_.real_time) record.flags |= SIGMA_RING_REAL_TIME;
  out.add(record, SIGMA_RING_COMPLETION, spec_.owner.pid, times.after_ns);
}

}  // namespace sigma
