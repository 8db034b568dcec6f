// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Which requests had completed, by the new entries of a completion ring: of its queue pairs, in one
// pass.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

namespace sigma {

// The indices that the entries name: each has 16 bits of one, and from an entry to the next of its
// queue pair there is at most a ring. Memory is bounded by the queue pairs named.
class ReachedIndices {
 public:
  // Of every entry, or of one in so many.
  explicit ReachedIndices(uint32_t one_in = 1) : one_in_(one_in) {}
  void add(uint32_t qp_num, uint16_t index);
  // Of the newest entry; `posted`: as known before, which it is where no entry is this queue
  // pair's. nullopt: they are not those of one queue, in order (the library moves entries when it
  // cleans a ring): from one to the next it is more than a ring of so many blocks.
  std::optional<uint64_t> of(uint32_t qp_num, uint64_t posted, uint32_t ring_blocks) const;

 private:
  struct Reached {
    uint32_t qp_num;
    uint16_t first, last;
    uint16_t longest;  // step from one to the next
    uint64_t between;  // blocks from the first to the last
  };
  uint32_t one_in_;
  std::vector<Reached> reached_;
  std::array<uint16_t, 256> places_{};  // plus 1, in it, by the number's low bits
};

}  // namespace sigma
