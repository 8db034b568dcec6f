// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Where the send ring of a queue pair is that was made before anybody looked: found in a structure
// of its owner's (libmlx5's queue pair, UCX's work queue) whose layout is not known.
//
// Certification. A structure holds many pointers and numbers. Of all (pointer to a ring, number of
// blocks, pointer to a doorbell record) one is accepted when the memory itself says so: every block
// of the ring that carries the queue's number has an index that belongs there, none stands behind
// the ring's end, and a WQE ends at exactly the doorbell's value. By chance that is one of 2^40.
// Where a short ring and a long one fit alike, the one whose end the structure points to as well.
//
// Layouts. A queue that has not posted has nothing to certify it. But fields stand where they stand
// in those that have, of the same build of the library: these vote.
//
// Pure functions over OwnerMemory, which may hold anything: each look is bounded.
#pragma once

#include <compare>
#include <map>
#include <optional>
#include <vector>

#include "observe/object_window.h"

namespace sigma {

struct SendPlace {
  uint64_t ring_addr = 0;
  uint64_t doorbell_addr = 0;  // of the record's first word, as for receives
  uint32_t blocks = 0;         // 0: the queue only receives
  auto operator<=>(const SendPlace&) const = default;
};

// Where a structure has them, in bytes from its start. The doorbell pointer leads to the record
// (8-byte aligned), or to its second word. `blocks`: their number (u32), or a pointer to the ring's
// end.
struct SendFields {
  uint16_t ring = 0, blocks = 0, doorbell = 0;
  bool by_end = false;
  auto operator<=>(const SendFields&) const = default;
};

struct SendCandidate {
  SendFields layout;
  SendPlace place;
  bool has_end = false;  // the structure has a pointer to the ring's end
};

inline constexpr uint64_t kMaxSendRingBytes = uint64_t{32'768} * 64;

// What the doorbell record of a send ring says; empty where it cannot be one.
std::optional<uint16_t> doorbell_value(const OwnerMemory& memory, uint64_t doorbell_addr);

// All that certify. `budget`: bytes that may be read, less what was.
std::vector<SendCandidate> certify_send(const OwnerMemory& memory, const ObjectWindow& object,
                                        uint32_t qp_num, uint64_t& budget);
// The one place that the candidates agree on, if they do.
std::optional<SendPlace> only_place(const std::vector<SendCandidate>& candidates);

// The place by a layout, where memory does not speak against it. A live ring may: ask again.
std::optional<SendPlace> place_by(const OwnerMemory& memory, const ObjectWindow& object,
                                  uint32_t qp_num, const SendFields& layout);
// By several that have as many votes: where they say the same.
std::optional<SendPlace> place_by(const OwnerMemory& memory, const ObjectWindow& object,
                                  uint32_t qp_num, const std::vector<SendFields>& layouts);

// Pointers that could lead to the doorbell record of a queue which has not posted.
std::vector<uint64_t> doorbells_of(const OwnerMemory& memory, const ObjectWindow& object);

// Votes of certified queues on the layout of their structures.
template <typename Layout>
class FieldVote {
 public:
  void add(const std::vector<Layout>& layouts) {
    ++voters_;
    for (const Layout& layout : layouts) ++votes_[layout];
  }
  // Those that most voters have named, if nine in ten have.
  std::vector<Layout> winners() const {
    uint32_t most = 0;
    for (const auto& [layout, votes] : votes_) most = std::max(most, votes);
    std::vector<Layout> winners;
    if (voters_ == 0 || most * 10 < voters_ * 9) return winners;
    for (const auto& [layout, votes] : votes_)
      if (votes == most) winners.push_back(layout);
    return winners;
  }

 private:
  std::map<Layout, uint32_t> votes_;
  uint32_t voters_ = 0;
};

}  // namespace sigma
