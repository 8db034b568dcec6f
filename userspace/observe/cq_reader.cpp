// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
#include "observe/cq_reader.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>
#include <vector>

namespace sigma {
namespace {

constexpr uint32_t kGenerous = 512;
constexpr size_t kRun = 32;  // entries that are decoded at once

// Nobody has written to it yet: rings begin with invalid entries, or with none.
bool never_written(const std::array<std::byte, kCqeBytes>& entry) {
  return std::to_integer<uint8_t>(entry[63]) >> 4 == 15 || entry == std::array<std::byte, kCqeBytes>{};
}

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
  record.origin = spec_.origin;
  record.mode = is_read() ? SIGMA_RING_READ : SIGMA_RING_COUNTED;
  std::strncpy(record.reason, reason, sizeof(record.reason) - 1);
  out.add(record, SIGMA_RING, spec_.owner.pid, now_ns);
}

void CqReader::set_counted(bool counted, const char* reason, uint64_t now_ns, RecordBuffer& out) {
  const bool read = is_read();
  counted_ = counted;
  counted_since_ns_ = now_ns;
  sighted_.reset();
  if (is_read() != read) state(SIGMA_RING_STATE, reason, now_ns, out);
}

CqReader::Wanted CqReader::index_check() const { return {cursor_.consumed, 1}; }

bool CqReader::on_counted(uint32_t consumer, const RingBytes& check, const LookTimes& times, RecordBuffer& out) {
  const uint64_t before = cursor_.consumed;
  gap(consumed_to(spec_.ring, cursor_, consumer), times, out, SIGMA_GAP_COUNTED);
  fill_ = static_cast<double>(cursor_.consumed - before) / spec_.ring.entries;
  if (cursor_.consumed > cursor_.next && left_since_ns_ == 0) left_since_ns_ = times.before_ns;
  if (cursor_.consumed != before) return false;
  std::array<std::byte, kCqeBytes> entry;
  if (!check.load(spec_.ring.entry_bytes - kCqeBytes, entry)) return false;
  return !sighted_ || sighted_->position != before || sighted_->entry != entry;
}

// By stamps: the device writes newer ones, and the library's cleaning puts older ones there. In the place of the
// entry at the index it may write once, that entry; if that one is there already, not at all.
void CqReader::on_index_check(const RingBytes& first, const RingBytes& second, uint64_t now_ns, RecordBuffer& out) {
  const size_t tail = spec_.ring.entry_bytes - kCqeBytes;
  Sighting now{.position = cursor_.consumed};
  std::array<std::byte, kCqeBytes> again;
  if (!first.load(tail, now.entry) || !second.load(tail, again) || now.entry != again) return;
  const Cqe cqe = decode_cqe(std::span<const std::byte, kCqeBytes>(now.entry));
  if (never_written(now.entry)) {
    now.stamp = 0;
  } else {
    if (cqe.has_timestamp && cqe.timestamp != 0) now.stamp = cqe.timestamp;
    now.there = cqe.kind != CqeKind::invalid && cqe.owner == (now.position / spec_.ring.entries & 1);
  }
  const bool known = sighted_ && sighted_->position == now.position && sighted_->stamp && now.stamp;
  if (known && *now.stamp > *sighted_->stamp && (sighted_->there || !now.there)) return refute_index(now_ns, out);
  if (known && *now.stamp < *sighted_->stamp) now.stamp = sighted_->stamp, now.there = sighted_->there;
  sighted_ = now;
}

// Whether a lap has passed since the last entry was read, the next look sees by that entry; or it has for certain,
// where the owner was to have consumed all that was read.
void CqReader::refute_index(uint64_t now_ns, RecordBuffer& out) {
  index_refuted_ = true;
  cursor_.counts = false;
  whole_ring_ = cursor_.consumed >= cursor_.next;
  left_since_ns_ = left_since_ns_ == 0 ? counted_since_ns_ : std::min(left_since_ns_, counted_since_ns_);
  state(SIGMA_RING_STATE, "its index is not its owner's", now_ns, out);
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

// By their stamps, which the device gives in order: whether it has written over the last entry read. The library's
// cleaning moves older ones there. nullopt: they do not say.
std::optional<bool> CqReader::overtaken(uint64_t from, const RingBytes& copy) const {
  if (spec_.ring.layout != CqLayout::plain || !cursor_.has_anchor || cursor_.anchor_at < from) return std::nullopt;
  std::array<std::byte, kCqeBytes> entry;
  const size_t end = static_cast<size_t>(cursor_.anchor_at - from + 1) * spec_.ring.entry_bytes;
  if (!copy.load(end - kCqeBytes, entry)) return std::nullopt;
  const Cqe was = decode_cqe(std::span<const std::byte, kCqeBytes>(cursor_.anchor)), is = decode_cqe(entry);
  if (is.kind == CqeKind::invalid || !was.has_timestamp || !is.has_timestamp || was.timestamp == 0 || is.timestamp == 0)
    return std::nullopt;
  return is.timestamp > was.timestamp;
}

// It has, while nobody had consumed that one by an index that was read later.
bool CqReader::refutes_index(uint64_t from, const RingBytes& first, const RingBytes& second, uint64_t consumed) const {
  return cursor_.anchor_at >= consumed && overtaken(from, first).value_or(false) &&
         overtaken(from, second).value_or(false);
}

// 0 where it is not the owner's.
uint32_t CqReader::index_to_take(uint64_t from, const RingBytes& first, const RingBytes& second, uint32_t consumer) {
  if (!index_refuted_ && (cursor_.counts || consumer != 0))
    index_refuted_ = refutes_index(from, first, second, consumed(consumer));
  if (!index_refuted_) return consumer;
  cursor_.counts = false;
  return 0;
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

// By so few entries that their indices still tell how far it is from one to the next: at most a ring for each
// entry between. nullopt: the copy does not have all, or others' as well. `end`: the first that is not there.
std::optional<ReachedIndices> CqReader::sampled(const Wanted& wanted, const RingBytes& copy, const SendRing& user,
                                                uint64_t& end) const {
  const CompletionRing& ring = spec_.ring;
  std::array<std::byte, kCqeBytes> entry;
  const auto is_there = [&](uint64_t position) {
    const size_t at = static_cast<size_t>(position - wanted.first + 1) * ring.entry_bytes - kCqeBytes;
    return copy.load(at, entry) && !never_written(entry) &&
           (std::to_integer<uint8_t>(entry[63]) & 1) == (position / ring.entries & 1);
  };
  // They are written in order.
  uint64_t there = cursor_.next;
  end = wanted.first + copy.size() / ring.entry_bytes;
  if (end <= there || is_there(end - 1)) return std::nullopt;
  while (there < end) {
    const uint64_t middle = there + (end - there) / 2;
    if (is_there(middle))
      there = middle + 1;
    else
      end = middle;
  }
  const uint32_t step = 0xffff / (user.blocks + kMaxWqeBlocks);
  ReachedIndices reached(step);
  for (uint64_t at = cursor_.next; at < end; at = at == end - 1 ? end : std::min(at + step, end - 1)) {
    if (!is_there(at)) return std::nullopt;
    const Cqe cqe = decode_cqe(entry);
    if (!is_requester(cqe) || cqe.qp_num != user.qp_num) return std::nullopt;
    reached.add(cqe.qp_num, cqe.wqe_counter);
  }
  return reached;
}

std::optional<ReachedIndices> CqReader::reached(const Wanted& wanted, const RingBytes& copy, uint32_t consumer,
                                                const SendRing* only_user) const {
  const CompletionRing& ring = spec_.ring;
  if (index_refuted_) consumer = 0;
  ReachedIndices reached;
  const size_t tail = ring.entry_bytes - kCqeBytes;
  std::array<std::byte, kCqeBytes> entry;
  if (ring.collapsed) {
    // That it has changed does not say how often.
    if (!copy.load(tail, entry)) return std::nullopt;
    if (cursor_.has_anchor ? !anchor_stands(cursor_, entry) : !never_written(entry)) return std::nullopt;
    return reached;
  }
  // Two laps on, entries look like those that were to come. The owner's index tells, and better the last
  // entry read, where it is in the copy: an owner may let the device overrun an index that it does not keep.
  const bool counted = cursor_.counts || consumer != 0;
  const bool anchored = cursor_.has_anchor && cursor_.anchor_at >= wanted.first;
  if (whole_ring_ || missed_late_ || ring.layout == CqLayout::compressed_enhanced ||
      (counted && consumed(consumer) >= cursor_.next + ring.entries) ||
      (anchored && is_lapped(ring, cursor_, wanted.first, copy)))
    return std::nullopt;
  // Else only that nobody has written yet what is next.
  const auto ends_at = [&](uint64_t position) {
    if (counted || anchored) return true;
    const size_t at = static_cast<size_t>(position - wanted.first) * ring.entry_bytes + tail;
    return position < ring.entries && copy.load(at, entry) && never_written(entry);
  };
  if (ring.layout == CqLayout::compressed_basic) {
    // What a session is, one copy does not say: but that there is none.
    const size_t at = static_cast<size_t>(cursor_.next - wanted.first) * ring.entry_bytes + tail;
    if (cursor_.left > 0 || !cursor_.synchronised || !copy.load(at, entry)) return std::nullopt;
    const auto op_own = std::to_integer<uint8_t>(entry[63]);
    if (op_own >> 4 != 15 && (op_own & 1) == (cursor_.next / ring.entries & 1)) return std::nullopt;
    return ends_at(cursor_.next) ? std::optional(reached) : std::nullopt;
  }
  if (only_user != nullptr) {
    uint64_t newest_end = 0;
    if (auto few = sampled(wanted, copy, *only_user, newest_end)) return ends_at(newest_end) ? few : std::nullopt;
  }
  CompletionCursor cursor = cursor_;
  const uint64_t end = wanted.first + copy.size() / ring.entry_bytes;
  const auto add = [&](const Cqe& cqe) {
    if (is_requester(cqe)) reached.add(cqe.qp_num, cqe.wqe_counter);
  };
  uint64_t lost = 0;
  Cqe cqe;
  std::array<Cqe, kRun> run;
  while (cursor.next < end) {
    switch (next_completion(ring, cursor, wanted.first, copy, copy, cqe, lost)) {
      case CqNext::completion:
        add(cqe);
        while (const size_t count = next_run(ring, cursor, wanted.first, copy, copy, run))
          std::for_each_n(run.begin(), count, add);
        break;
      case CqNext::end:
        return ends_at(cursor.next) ? std::optional(reached) : std::nullopt;
      default:
        return std::nullopt;
    }
  }
  return std::nullopt;
}

std::optional<CqReader::Newest> CqReader::newest(uint64_t consumed, const Wanted& wanted, const RingBytes& copy) const {
  const CompletionRing& ring = spec_.ring;
  if (ring.collapsed || ring.layout != CqLayout::plain || consumed < ring.entries) return std::nullopt;
  constexpr uint64_t kFar = 256;
  const size_t tail = ring.entry_bytes - kCqeBytes;
  std::array<std::byte, kCqeBytes> entry;
  for (uint64_t i = 1; i <= std::min<uint64_t>(kFar, ring.entries); ++i) {
    const uint64_t position = consumed - i, slot = (position - wanted.first) & (ring.entries - 1);
    if (!copy.load(static_cast<size_t>(slot) * ring.entry_bytes + tail, entry)) continue;
    const Cqe cqe = decode_cqe(entry);
    if (cqe.kind == CqeKind::invalid || cqe.owner != (position / ring.entries & 1)) continue;
    if (is_requester(cqe)) return Newest{position, cqe.qp_num, cqe.wqe_counter};
  }
  return std::nullopt;
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
  take_all(wanted.first, first, second, times, out);
  overrun_ = overrun_ || (cursor_.counts && cursor_.next > cursor_.consumed + spec_.ring.entries);
  const uint64_t found = cursor_.next - before;
  fill_ = static_cast<double>(found) / spec_.ring.entries;
  const uint32_t least = spec_.ring.layout == CqLayout::plain ? 4 : kMaxSession;
  expected_ = std::max<uint32_t>(least, static_cast<uint32_t>(found + found / 4 + 2));
  if (found + (before - wanted.first) >= wanted.count) expected_ *= 2;
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
