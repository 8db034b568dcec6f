// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Ranges of indices, in order: which posts of a queue were told of, the newest of them.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>

namespace sigma {

struct IndexRange {
  uint64_t first = 0, end = 0;
};

class NewestRanges {
 public:
  // Ranges come in order, but for those that are told again: a refused post's place is the next one's.
  void add(IndexRange range) {
    if (range.first >= range.end) return;
    while (!ranges_.empty() && ranges_.back().first >= range.first) {
      range.end = std::max(range.end, ranges_.back().end);
      ranges_.pop_back();
    }
    if (!ranges_.empty() && ranges_.back().end >= range.first) {
      ranges_.back().end = std::max(ranges_.back().end, range.end);
      return;
    }
    ranges_.push_back(range);
    if (ranges_.size() > kMost) ranges_.pop_front();
  }
  // Calls f(piece) for each part of `range` that is in none of the ranges.
  template <typename F>
  void for_each_outside(IndexRange range, F&& f) const {
    for (const IndexRange& inside : ranges_) {
      if (inside.end <= range.first) continue;
      if (inside.first >= range.end) break;
      if (inside.first > range.first) f(IndexRange{range.first, inside.first});
      range.first = std::min(inside.end, range.end);
    }
    if (range.first < range.end) f(range);
  }

 private:
  static constexpr size_t kMost = 256;
  std::deque<IndexRange> ranges_;
};

}  // namespace sigma
