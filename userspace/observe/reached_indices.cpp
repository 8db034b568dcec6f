// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
#include "observe/reached_indices.h"

#include <algorithm>

#include "decode/wqe.h"

namespace sigma {

void ReachedIndices::add(uint32_t qp_num, uint16_t index) {
  uint16_t& place = places_[qp_num % places_.size()];
  if (place == 0 || reached_[place - 1u].qp_num != qp_num) {
    const auto it = std::ranges::find(reached_, qp_num, &Reached::qp_num);
    place = static_cast<uint16_t>(it - reached_.begin() + 1);
    if (it == reached_.end()) return reached_.push_back({qp_num, index, index, 0, 0});
  }
  Reached& queue = reached_[place - 1u];
  const auto step = static_cast<uint16_t>(index - queue.last);
  queue.longest = std::max(queue.longest, step);
  queue.between += step;
  queue.last = index;
}

std::optional<uint64_t> ReachedIndices::of(uint32_t qp_num, uint64_t posted,
                                           uint32_t ring_blocks) const {
  const auto it = std::ranges::find(reached_, qp_num, &Reached::qp_num);
  if (it == reached_.end()) return posted;
  if (it->longest > uint64_t{one_in_} * (ring_blocks + kMaxWqeBlocks)) return std::nullopt;
  // No more than the ring was outstanding, which is half of what an index tells apart.
  const auto ahead =
      static_cast<int16_t>(static_cast<uint16_t>(it->first - static_cast<uint16_t>(posted)));
  if (ahead < 0 && posted < static_cast<uint64_t>(-int64_t{ahead})) return std::nullopt;
  return posted + static_cast<uint64_t>(int64_t{ahead}) + it->between;
}

}  // namespace sigma
