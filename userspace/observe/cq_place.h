// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Where the ring of a completion queue is that was made before anybody looked, in a structure of
// libmlx5's whose layout is not known.
//
// What is known of it: struct ibv_cq says how many entries there are. A pointer to a word of the
// structure itself leads to the buffer in use (`active_buf`: a resize changes it). Number, consumer
// index and the pointer to the doorbell record stand one behind the other: u32, u32, pointer
// (rdma-core, providers/mlx5/mlx5.h, struct mlx5_cq).
//
// Certification: the entries' owner bits tell where the device is, as a whole ring's must; the
// completions are of queue pairs that use it; the doorbell record says what the structure says, and
// that is no more than the ring behind. Owners that poll past libmlx5 (UCX) leave both at zero: then
// only the entries speak.
#pragma once

#include <compare>
#include <optional>
#include <set>
#include <vector>

#include "observe/object_window.h"

namespace sigma {

struct CqPlace {
  uint64_t ring_addr = 0;
  uint64_t doorbell_addr = 0;  // 0: not certain; the owner keeps no index there
  uint32_t entry_bytes = 0;
  uint32_t number = 0;
  auto operator<=>(const CqPlace&) const = default;
};

struct CqFields {
  uint16_t active = 0;    // the pointer to the buffer in use
  uint16_t doorbell = 0;  // the pointer to the doorbell record
  auto operator<=>(const CqFields&) const = default;
};

struct CqCandidate {
  CqFields layout;
  CqPlace place;
  bool by_index = false;  // the consumer index speaks for it as well
};

// Where the device and the owner are in a ring: from a copy of all of it.
struct CqProgress {
  uint64_t produced = 0;   // modulo twice the ring's entries
  uint32_t completions = 0, of_known = 0;  // all, and those of `queue_pairs`
  std::set<uint32_t> senders, receivers;  // of these, whose sends or receives completed here
};
// Empty where the owner bits are no ring's. `entries`: a power of two.
std::optional<CqProgress> progress_of(std::span<const std::byte> ring, uint32_t entries,
                                      uint32_t entry_bytes, const std::set<uint32_t>& queue_pairs);

std::vector<CqCandidate> certify_cq(const OwnerMemory& memory, const ObjectWindow& object,
                                    uint32_t entries, const std::set<uint32_t>& queue_pairs,
                                    uint64_t& budget);
std::optional<CqPlace> only_place(const std::vector<CqCandidate>& candidates);

// By layouts with as many votes, where they say the same and memory does not speak against it.
std::optional<CqPlace> place_by(const OwnerMemory& memory, const ObjectWindow& object,
                                uint32_t entries, const std::set<uint32_t>& queue_pairs,
                                const std::vector<CqFields>& layouts);

// From where on a ring found in use is read: the entry that the device writes next, and what its
// owner has consumed. Empty where it cannot be told now.
struct CqStart {
  uint64_t next = 0, consumed = 0;
};
std::optional<CqStart> start_of(const OwnerMemory& memory, const CqPlace& place, uint32_t entries);

}  // namespace sigma
