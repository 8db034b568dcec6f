// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Whose the index in a completion queue's doorbell record is, by what the device has written; and a reader that has
// nothing else while entries are not read.
#include <algorithm>
#include <array>

#include "observe/cq_reader.h"

namespace sigma {

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

}  // namespace sigma
