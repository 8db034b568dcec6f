// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
#include "observe/send_place.h"

#include <algorithm>
#include <bit>
#include <set>

#include "decode/wqe.h"

namespace sigma {
namespace {

constexpr uint64_t kUserSpaceEnd = uint64_t{1} << 47;
constexpr uint64_t kLowest = 0x10000;
constexpr uint32_t kMaxBlocks = 32'768;  // half of what an index can tell apart
constexpr size_t kMaxRings = 64;  // pointers that are looked behind, of one structure
constexpr size_t kMaxDoorbells = 256;
constexpr uint64_t kChunkBytes = 4096;

bool is_pointer(uint64_t word, uint64_t alignment) {
  return word >= kLowest && word < kUserSpaceEnd && word % alignment == 0;
}

// A block that carries the queue's number as the first of a WQE.
struct Hit {
  uint32_t slot;
  uint16_t index;
  uint8_t blocks;
};

// The blocks from `ring` on, as far as `slots` and the pages that are there.
std::vector<Hit> find_hits(const OwnerMemory& memory, uint64_t ring, uint32_t qp_num,
                           uint64_t slots, uint64_t& budget) {
  std::vector<Hit> hits;
  std::byte chunk[kChunkBytes];
  for (uint64_t slot = 0; slot < slots;) {
    const uint64_t at = ring + slot * kWqeBlockBytes;
    const uint64_t bytes =
        std::min(kChunkBytes - at % kChunkBytes, (slots - slot) * kWqeBlockBytes);
    if (budget < bytes) break;
    budget -= bytes;
    if (!memory.read(at, std::span(chunk, bytes))) break;
    for (uint64_t offset = 0; offset < bytes; offset += kWqeBlockBytes, ++slot) {
      Be32 control[2];
      std::memcpy(static_cast<void*>(control), chunk + offset, sizeof(control));
      const uint32_t qpn_ds = control[1], units = qpn_ds & 0x3f;
      if (qpn_ds >> 8 != qp_num || units == 0) continue;
      hits.push_back({static_cast<uint32_t>(slot), static_cast<uint16_t>(control[0] >> 8),
                      static_cast<uint8_t>((units + 3) / 4)});
    }
  }
  return hits;
}

bool fits(const std::vector<Hit>& hits, uint32_t blocks) {
  return std::all_of(hits.begin(), hits.end(), [&](const Hit& hit) {
    return hit.slot < blocks && (hit.index & (blocks - 1)) == hit.slot;
  });
}

// Where the doorbell was before the ring was read and after: a quiet one at one value.
struct Doorbell {
  uint16_t before = 0, after = 0;
};

bool ends_at(const std::vector<Hit>& hits, const Doorbell& doorbell) {
  const auto moved = static_cast<uint16_t>(doorbell.after - doorbell.before);
  return std::any_of(hits.begin(), hits.end(), [&](const Hit& hit) {
    return static_cast<uint16_t>(hit.index + hit.blocks - doorbell.before) <= moved;
  });
}

uint64_t record_of(uint64_t pointer) { return pointer & ~uint64_t{7}; }

// By value: the offsets that have it.
using Offsets = std::map<uint64_t, std::vector<uint16_t>>;

}  // namespace

// The device has 16 bits of each index; the rest of a record stays zero.
std::optional<uint16_t> doorbell_value(const OwnerMemory& memory, uint64_t doorbell_addr) {
  if (memory.writable_from(doorbell_addr) < 8) return std::nullopt;
  const auto receives = memory.be32(doorbell_addr), sends = memory.be32(doorbell_addr + 4);
  if (!receives || !sends || *receives > 0xffff || *sends > 0xffff) return std::nullopt;
  return static_cast<uint16_t>(*sends);
}

std::vector<SendCandidate> certify_send(const OwnerMemory& memory, const ObjectWindow& object,
                                        uint32_t qp_num, uint64_t& budget) {
  Offsets rings, doorbells;
  std::map<uint32_t, std::vector<uint16_t>> counts;
  for (size_t offset = 0; offset + 4 <= object.size(); offset += 4) {
    const auto at = static_cast<uint16_t>(offset);
    const uint32_t half = object.half(offset);
    if (std::has_single_bit(half) && half <= kMaxBlocks) counts[half].push_back(at);
    if (offset % 8 != 0) continue;
    const uint64_t word = object.word(offset);
    if (is_pointer(word, kWqeBlockBytes) && rings.size() < kMaxRings) rings[word].push_back(at);
    if (is_pointer(word, 4) && doorbells.size() < kMaxDoorbells) doorbells[word].push_back(at);
  }
  std::vector<SendCandidate> found;
  // Doorbells first: what they say was written before.
  std::vector<std::pair<uint64_t, uint16_t>> values;  // pointer, value
  for (const auto& [pointer, offsets] : doorbells)
    if (const auto value = doorbell_value(memory, record_of(pointer)))
      values.emplace_back(pointer, *value);
  if (values.empty()) return found;

  for (const auto& [ring, ring_offsets] : rings) {
    const uint64_t available = memory.writable_from(ring) / kWqeBlockBytes;
    struct Size {
      bool by_end;
      const std::vector<uint16_t>* offsets;
    };
    std::multimap<uint32_t, Size> sizes;
    for (const auto& [count, offsets] : counts)
      if (count <= available) sizes.insert({count, {false, &offsets}});
    for (auto end = rings.upper_bound(ring); end != rings.end(); ++end) {
      const uint64_t blocks = (end->first - ring) / kWqeBlockBytes;
      if (blocks > kMaxBlocks || blocks > available) break;
      if (std::has_single_bit(blocks))
        sizes.insert({static_cast<uint32_t>(blocks), {true, &end->second}});
    }
    if (sizes.empty()) continue;
    const std::vector<Hit> hits =
        find_hits(memory, ring, qp_num, sizes.rbegin()->first, budget);
    if (hits.empty()) continue;
    for (const auto& [blocks, size] : sizes) {
      if (!fits(hits, blocks)) continue;
      const uint64_t end = ring + uint64_t{blocks} * kWqeBlockBytes;
      const bool has_end = object.has_word(end);
      for (const auto& [pointer, value] : values) {
        const uint64_t record = record_of(pointer);
        if (record >= ring && record < end) continue;
        const auto after = doorbell_value(memory, record);
        if (!after || !ends_at(hits, {value, *after})) continue;
        for (const uint16_t r : ring_offsets)
          for (const uint16_t b : *size.offsets)
            for (const uint16_t d : doorbells[pointer])
              found.push_back({{r, b, d, size.by_end}, {ring, record, blocks}, has_end});
      }
    }
  }
  return found;
}

std::optional<SendPlace> only_place(const std::vector<SendCandidate>& candidates) {
  std::set<SendPlace> all, ended;
  for (const SendCandidate& each : candidates) {
    all.insert(each.place);
    if (each.has_end) ended.insert(each.place);
  }
  if (all.size() == 1) return *all.begin();
  if (ended.size() == 1) return *ended.begin();
  return std::nullopt;
}

std::optional<SendPlace> place_by(const OwnerMemory& memory, const ObjectWindow& object,
                                  uint32_t qp_num, const SendFields& layout) {
  SendPlace place;
  place.ring_addr = object.word(layout.ring);
  place.doorbell_addr = record_of(object.word(layout.doorbell));
  const auto value = doorbell_value(memory, place.doorbell_addr);
  if (!value) return std::nullopt;
  uint64_t blocks = object.half(layout.blocks);
  if (layout.by_end) {
    blocks = object.word(layout.blocks) - place.ring_addr;
    if (blocks % kWqeBlockBytes != 0) return std::nullopt;
    blocks /= kWqeBlockBytes;
  }
  // A queue that only receives: its send ring ends where it begins. (Behind the doorbell stands where what it
  // receives ends, which may be the same in any queue.)
  if (blocks == 0) {
    const bool is_empty = is_pointer(place.ring_addr, kWqeBlockBytes) &&
                          object.has_word(place.ring_addr, layout.ring + size_t{8}, layout.doorbell);
    return *value == 0 && is_empty ? std::optional(SendPlace{0, place.doorbell_addr, 0}) : std::nullopt;
  }
  if (blocks > kMaxBlocks || !std::has_single_bit(blocks)) return std::nullopt;
  place.blocks = static_cast<uint32_t>(blocks);
  const uint64_t bytes = blocks * kWqeBlockBytes;
  if (!is_pointer(place.ring_addr, kWqeBlockBytes) || memory.writable_from(place.ring_addr) < bytes)
    return std::nullopt;
  // A RESET zeroes the doorbell and leaves the WQEs.
  uint64_t budget = kMaxSendRingBytes;
  const std::vector<Hit> hits = find_hits(memory, place.ring_addr, qp_num, place.blocks, budget);
  const auto after = doorbell_value(memory, place.doorbell_addr);
  if (!after || !fits(hits, place.blocks)) return std::nullopt;
  if ((*value != 0 || *after != 0) && !ends_at(hits, {*value, *after})) return std::nullopt;
  return place;
}

std::optional<SendPlace> place_by(const OwnerMemory& memory, const ObjectWindow& object,
                                  uint32_t qp_num, const std::vector<SendFields>& layouts) {
  std::vector<SendCandidate> candidates;
  for (const SendFields& layout : layouts) {
    const auto place = place_by(memory, object, qp_num, layout);
    if (!place) continue;
    const uint64_t end = place->ring_addr + uint64_t{place->blocks} * kWqeBlockBytes;
    const bool has_end = place->blocks != 0 && object.has_word(end);
    // Memory cannot speak against the place of a queue that has not posted; so the structure has to
    // name its end as well, as libmlx5's and UCX's do.
    if (!has_end && place->blocks != 0 && doorbell_value(memory, place->doorbell_addr) == 0) continue;
    candidates.push_back({layout, *place, has_end});
  }
  return only_place(candidates);
}

std::vector<uint64_t> doorbells_of(const OwnerMemory& memory, const ObjectWindow& object) {
  std::set<uint64_t> records;
  for (size_t offset = 0; offset + 8 <= object.size(); offset += 8) {
    const uint64_t word = object.word(offset);
    if (!is_pointer(word, 4) || records.size() >= kMaxDoorbells) continue;
    if (word >= object.address() && word < object.address() + object.size()) continue;
    if (doorbell_value(memory, record_of(word))) records.insert(record_of(word));
  }
  return {records.begin(), records.end()};
}

}  // namespace sigma
