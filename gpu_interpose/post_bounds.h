// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// PostBounds: since when, at the earliest, a request of one send queue can have been posted. Not
// what the doorbell record says: stacks that ring before they store it may have posted what it does
// not show yet. But nothing is rung for that is not written, and requests are rung for in order; so
// what a look finds unwritten, and all behind it, was posted after that look. No allocation; one
// thread.
#pragma once

#include <stdint.h>

namespace sigma::gpu {

class PostBounds {
 public:
  // `since_ns`: nothing was posted before, as the queue did not exist; 0: that is unknown.
  void begin(uint64_t since_ns) {
    used_ = 1;
    pairs_[0] = {0, since_ns};
  }
  // All from `position` on had not been posted at `ns`. Times only grow.
  void saw(uint64_t position, uint64_t ns) {
    uint32_t used = used_;
    while (used > 1 && pairs_[used - 1].position >= position) --used;
    // Without room the bound stays the older one, which holds as well.
    if (used == kMost) return;
    pairs_[used] = {position, ns};
    used_ = used + 1;
  }
  // CLOCK_MONOTONIC; 0: unknown.
  uint64_t earliest(uint64_t position) const {
    uint32_t i = used_;
    while (i > 1 && pairs_[i - 1].position > position) --i;
    return i == 0 ? 0 : pairs_[i - 1].ns;
  }
  // Nobody asks for what is before `position` any more.
  void forget_before(uint64_t position) {
    uint32_t gone = 0;
    while (gone + 1 < used_ && pairs_[gone + 1].position <= position) ++gone;
    for (uint32_t i = gone; i < used_; ++i) pairs_[i - gone] = pairs_[i];
    used_ -= gone;
  }

 private:
  static constexpr uint32_t kMost = 16;
  struct Pair {
    uint64_t position, ns;
  };
  Pair pairs_[kMost] = {};
  uint32_t used_ = 0;
};

}  // namespace sigma::gpu
