// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// How far the requests of send rings have come, by the first copy of the completion ring at a look (laps.h).
#include <algorithm>
#include <array>

#include "observe/cq_reader.h"

namespace sigma {

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

}  // namespace sigma
