// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// ObservedRing: what the session keeps of a queue pair whose rings are read from memory, beside its
// work queues: where the indices are, what has been reported, and completions that wait for their
// posts.
//
// One request may be told by a probe and by the ring. The key is the index: whoever comes second is
// dropped. Probes tell 16 bits of it, which are extended here by the latest one known.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>

#include "bpf/records.h"

namespace sigma {

// Indices that were reported, as ranges; the newest kRanges of them.
class IndexRanges {
 public:
  void add(uint64_t first, uint64_t count) {
    if (!ranges_.empty() && ranges_.back().end == first) {
      ranges_.back().end += count;
      return;
    }
    ranges_.push_back({first, first + count});
    if (ranges_.size() > kRanges) ranges_.pop_front();
  }
  bool contains(uint64_t index) const {
    for (auto range = ranges_.rbegin(); range != ranges_.rend(); ++range)
      if (index >= range->first && index < range->end) return true;
    return false;
  }

 private:
  static constexpr size_t kRanges = 1024;
  struct Range {
    uint64_t first, end;
  };
  std::deque<Range> ranges_;
};

// Who reads a ring: the observer from outside, or the preloaded library inside the job, whose thread may
// speak of it after its DESTROY. What BPF copies as a ring ends is read by the observer and is its word:
// the same life, the same counts.
enum class RingReader : uint8_t { none, observer, library };

// By a record's tier: queues that a GPU posts to are the library's, but for those in host memory (1).
inline RingReader ring_reader(uint8_t tier) {
  return tier == SIGMA_TIER_NONE || tier == 1 ? RingReader::observer : RingReader::library;
}

struct ObservedRing {
  bool active = false;       // a reader has spoken of this life
  bool completions = false;  // by rings: what polls say is known already
  bool ended = false;        // nothing more is said of this life
  bool told = false;         // its reader has told of posts, or missed some
  // One reader for a life's posts, and one for the completions of each side (enum class Queue): the first
  // that tells of any. What another tells would be the same once more.
  RingReader reader = RingReader::none;
  RingReader completions_by[2] = {};
  uint32_t life = 0;         // in the reader's counting
  std::optional<uint32_t> before;  // the library's, that ended with a reset: no more is said of it
  uint64_t posted_before = 0;  // by the queue pair, in lives of the ring before this one
  uint64_t latest = 0;       // index: the highest one known
  uint64_t read_until = 0;   // index: the ring has told of all before, or that they were missed
  IndexRanges probed;        // reported, and told by a probe
  uint64_t uncertain = 0;    // likewise, of those whose index is not certain
  uint64_t unsaid = 0;       // reported, and read before anybody had said who posts to the queue
  // Whose posts are still to come from the ring, oldest first.
  std::deque<sigma_ring_completion> waiting;

  // The index with these 16 bits that is nearest to the latest one.
  uint64_t extend(uint16_t index) const {
    const auto ahead =
        static_cast<int16_t>(static_cast<uint16_t>(index - static_cast<uint16_t>(latest)));
    if (ahead < 0 && latest < static_cast<uint64_t>(-int64_t{ahead})) return index;
    return latest + static_cast<uint64_t>(int64_t{ahead});
  }
};

}  // namespace sigma
