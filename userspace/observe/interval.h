// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// How long to wait between two looks at a process's rings. Pure arithmetic.
//
// A look every 12-25% of the shortest ring's time sees everything; more often costs the job cache
// misses and us time, less often loses what was overwritten. So the interval shrinks at once when a
// look found much, grows slowly while it finds little, and backs off when it finds nothing. The
// longest interval is what the onset of a burst may lose: rate x interval - ring (measured: with
// 100 us nothing up to 500 k ops/s on rings of 128; with 500 us 8% there).
#pragma once

#include <algorithm>
#include <cstdint>

namespace sigma {

class Interval {
 public:
  // Of the fullest ring, how much is to be new at a look.
  static constexpr double kTarget = 0.12;
  static constexpr uint64_t kShortestNs = 5'000;
  static constexpr uint64_t kIdleNs = 5'000'000;        // after a second of idleness
  static constexpr uint64_t kIdleAfterNs = 1'000'000'000;

  uint64_t ns() const { return std::max<uint64_t>(static_cast<uint64_t>(ns_), floor_ns_); }
  // The longest interval while there is traffic, by the entries of the smallest ring in use.
  void set_smallest_ring(uint32_t entries) {
    cap_ns_ = std::clamp<uint64_t>(uint64_t{entries} * 500, 100'000, 500'000);
  }
  // To stay within the CPU that the observer may use.
  void set_floor(uint64_t ns) { floor_ns_ = ns; }
  uint64_t floor() const { return floor_ns_; }

  // After a look at `now_ns` that found the fullest ring's share `fill` to be new.
  void looked(double fill, uint64_t now_ns) {
    if (fill > 0) {
      active_ns_ = now_ns;
      idle_looks_ = 0;
      const double factor = kTarget / fill;
      ns_ *= factor < 1 ? factor : std::min(factor, 1.25);
      ns_ = std::clamp(ns_, double(kShortestNs), double(cap_ns_));
      return;
    }
    if (++idle_looks_ <= 8) return;
    const bool idle = now_ns - active_ns_ > kIdleAfterNs;
    ns_ = std::min(ns_ * 1.5, double(idle ? kIdleNs : cap_ns_));
  }

 private:
  double ns_ = 50'000;
  uint64_t cap_ns_ = 100'000;
  uint64_t floor_ns_ = 0;
  uint64_t active_ns_ = 0;
  uint32_t idle_looks_ = 0;
};

}  // namespace sigma
