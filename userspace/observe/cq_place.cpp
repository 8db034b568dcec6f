// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
#include "observe/cq_place.h"

#include <array>
#include <bit>
#include <map>

#include "decode/completion_ring.h"

namespace sigma {
namespace {

constexpr uint64_t kUserSpaceEnd = uint64_t{1} << 47;
constexpr uint64_t kLowest = 0x10000;
constexpr uint32_t kMaxEntries = 1u << 22;
constexpr uint32_t kMaxNumber = (1u << 24) - 1;

bool is_pointer(uint64_t word, uint64_t alignment) {
  return word >= kLowest && word < kUserSpaceEnd && word % alignment == 0;
}

// The ring's bytes, where all of them are there.
std::optional<std::vector<std::byte>> read_ring(const OwnerMemory& memory, uint64_t address,
                                                uint64_t bytes, uint64_t& budget) {
  if (bytes > budget || memory.writable_from(address) < bytes) return std::nullopt;
  budget -= bytes;
  std::vector<std::byte> ring(bytes);
  if (!memory.read(address, ring)) return std::nullopt;
  return ring;
}

// The structure's word that `active` points to.
uint64_t ring_by(const ObjectWindow& object, uint16_t active) {
  const uint64_t at = object.word(active);
  if (at % 8 != 0 || at < object.address() || at - object.address() + 8 > object.size()) return 0;
  return object.word(at - object.address());
}

std::optional<uint32_t> consumer_of(const OwnerMemory& memory, uint64_t doorbell_addr) {
  if (!is_pointer(doorbell_addr, 8) || memory.writable_from(doorbell_addr) < 8) return std::nullopt;
  const auto index = memory.be32(doorbell_addr);
  if (!index || *index > kMaxNumber) return std::nullopt;
  return index;
}

// How far the device is ahead of the owner's index, which has 24 bits of it; the ring tells it
// modulo twice its size.
uint64_t ahead_of(uint64_t produced, uint32_t consumer, uint32_t entries) {
  return (produced - consumer) & (uint64_t{entries} * 2 - 1);
}

bool states_size(const ObjectWindow& object, uint16_t doorbell, uint32_t entry_bytes) {
  for (size_t offset = doorbell + size_t{8}; offset < doorbell + size_t{48}; offset += 4)
    if (object.half(offset) == entry_bytes) return true;
  return false;
}

}  // namespace

std::optional<CqProgress> progress_of(std::span<const std::byte> ring, uint32_t entries,
                                      uint32_t entry_bytes, const std::set<uint32_t>& queue_pairs) {
  if (!std::has_single_bit(entries) || entries > kMaxEntries ||
      ring.size() < uint64_t{entries} * entry_bytes)
    return std::nullopt;
  CqProgress progress;
  uint32_t written = 0;  // entries before the first that is not of slot 0's lap
  bool in_front = true;
  uint8_t parity = 0;
  for (uint32_t slot = 0; slot < entries; ++slot) {
    std::array<std::byte, kCqeBytes> entry;
    std::memcpy(entry.data(), ring.data() + (size_t{slot} + 1) * entry_bytes - kCqeBytes, kCqeBytes);
    const Cqe cqe = decode_cqe(entry);
    const auto zero = [&] {
      return std::all_of(entry.begin(), entry.end(), [](std::byte b) { return b == std::byte{}; });
    };
    const bool there = cqe.kind != CqeKind::invalid && !zero();
    if (there && cqe.kind == CqeKind::other && cqe.format != 3) return std::nullopt;
    if (slot == 0) {
      if (!there) {
        in_front = false;
      } else {
        parity = cqe.owner;
      }
    }
    if (in_front && (!there || cqe.owner != parity)) in_front = false;
    if (in_front) ++written;
    if (there && !in_front) {
      // Of the lap before: there is one, and slot 0 has begun the next.
      if (written == 0 || cqe.owner == parity) return std::nullopt;
    } else if (!there && parity == 1) {
      return std::nullopt;  // the first lap has ended
    }
    if (!there || cqe.format == 3) continue;
    ++progress.completions;
    if (!queue_pairs.contains(cqe.qp_num)) continue;
    ++progress.of_known;
    if (cqe.kind == CqeKind::requester) progress.senders.insert(cqe.qp_num);
    if (cqe.kind == CqeKind::responder) progress.receivers.insert(cqe.qp_num);
  }
  progress.produced = uint64_t{parity} * entries + written;
  return progress;
}

std::vector<CqCandidate> certify_cq(const OwnerMemory& memory, const ObjectWindow& object,
                                    uint32_t entries, const std::set<uint32_t>& queue_pairs,
                                    uint64_t& budget) {
  std::vector<CqCandidate> found;
  for (size_t active = 0; active + 8 <= object.size(); active += 8) {
    const uint64_t ring = ring_by(object, static_cast<uint16_t>(active));
    if (!is_pointer(ring, 64)) continue;
    for (const uint32_t entry_bytes : {64u, 128u}) {
      // A writer at work can split a copy: once more.
      std::optional<CqProgress> progress;
      for (int attempt = 0; attempt < 3 && !progress; ++attempt) {
        const auto bytes = read_ring(memory, ring, uint64_t{entries} * entry_bytes, budget);
        if (!bytes) break;
        progress = progress_of(*bytes, entries, entry_bytes, queue_pairs);
      }
      if (!progress || progress->of_known == 0) continue;
      for (size_t doorbell = 16; doorbell + 8 <= object.size(); doorbell += 8) {
        const auto at = static_cast<uint16_t>(doorbell);
        const auto consumer = consumer_of(memory, object.word(doorbell));
        const uint32_t number = object.half(doorbell - 12), index = object.half(doorbell - 8);
        if (!consumer || number == 0 || number > kMaxNumber || !states_size(object, at, entry_bytes))
          continue;
        if (object.word(doorbell) >= ring &&
            object.word(doorbell) < ring + uint64_t{entries} * entry_bytes)
          continue;
        // The owner may have gone on since the structure was read, by no more than there is.
        if (((*consumer - index) & kMaxNumber) > entries) continue;
        const bool kept = *consumer != 0 || index != 0;
        if (kept && ahead_of(progress->produced, *consumer, entries) > entries) continue;
        found.push_back({{static_cast<uint16_t>(active), at},
                         {ring, object.word(doorbell), entry_bytes, number},
                         kept});
      }
    }
  }
  return found;
}

std::optional<CqPlace> only_place(const std::vector<CqCandidate>& candidates) {
  std::set<CqPlace> all, indexed;
  for (const CqCandidate& each : candidates) {
    all.insert(each.place);
    if (each.by_index) indexed.insert(each.place);
  }
  if (all.size() == 1) return *all.begin();
  if (indexed.size() == 1) return *indexed.begin();
  return std::nullopt;
}

std::optional<CqPlace> place_by(const OwnerMemory& memory, const ObjectWindow& object,
                                uint32_t entries, const std::set<uint32_t>& queue_pairs,
                                const std::vector<CqFields>& layouts) {
  std::vector<CqCandidate> candidates;
  for (const CqFields& layout : layouts) {
    CqPlace place;
    place.ring_addr = ring_by(object, layout.active);
    place.doorbell_addr = object.word(layout.doorbell);
    place.number = object.half(layout.doorbell - 12);
    if (!is_pointer(place.ring_addr, 64) || place.number == 0 || place.number > kMaxNumber ||
        !consumer_of(memory, place.doorbell_addr))
      continue;
    for (const uint32_t entry_bytes : {64u, 128u}) {
      if (!states_size(object, layout.doorbell, entry_bytes)) continue;
      uint64_t budget = uint64_t{kMaxEntries} * 128;
      for (int attempt = 0; attempt < 3; ++attempt) {
        const auto bytes =
            read_ring(memory, place.ring_addr, uint64_t{entries} * entry_bytes, budget);
        if (!bytes) break;
        const auto progress = progress_of(*bytes, entries, entry_bytes, queue_pairs);
        if (!progress) continue;
        place.entry_bytes = entry_bytes;
        candidates.push_back({layout, place, progress->of_known > 0});
        break;
      }
    }
  }
  return only_place(candidates);
}

std::optional<CqStart> start_of(const OwnerMemory& memory, const CqPlace& place, uint32_t entries) {
  for (int attempt = 0; attempt < 3; ++attempt) {
    const uint32_t consumer =
        place.doorbell_addr != 0 ? consumer_of(memory, place.doorbell_addr).value_or(0) : 0;
    uint64_t budget = ~uint64_t{0};
    const auto bytes =
        read_ring(memory, place.ring_addr, uint64_t{entries} * place.entry_bytes, budget);
    if (!bytes) return std::nullopt;
    const auto progress = progress_of(*bytes, entries, place.entry_bytes, {});
    if (!progress) continue;
    if (consumer == 0) return CqStart{progress->produced, 0};
    const uint64_t ahead = ahead_of(progress->produced, consumer, entries);
    if (ahead <= entries) return CqStart{consumer + ahead, consumer};
  }
  return std::nullopt;
}

}  // namespace sigma
