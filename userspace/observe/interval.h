// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// How long to wait between two looks at a process's rings. Pure arithmetic.
//
// A look every 12-25% of the shortest ring's time sees everything; more often costs the job cache
// misses and us time, less often loses what was overwritten. So the interval shrinks at once when a
// look found much, grows slowly while it finds little, and backs off when it finds nothing. The
// longest interval is what the onset of a burst may lose: rate x interval - ring (measured: with
// 100 us nothing up to 500 k ops/s on rings of 128; with 500 us 8% there).
//
// So the smallest ring says how long it may be; but only of rings in use. Passive ends have tiny ones that
// nobody posts to, and looks five times as often cost five times as much, of all rings of the process. What is
// in use is said by size, not by ring: of many small ones that are used now and then, each may be idle for
// minutes, yet while any of a size has moved within the last second, all of that size are looked at at its pace.
// The first look that finds one moving makes the interval short at once, and a ring that was just opened is about
// to be used. What remains to be lost is the onset of the first burst, after a second in which no ring as small
// has moved, beside larger ones that have: at most 500 us of it, less the ring (128 blocks hold 256 k ops/s for
// so long). It appears as a gap.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>

namespace sigma {

class Interval {
 public:
  // Of the fullest ring, how much is to be new at a look.
  static constexpr double kTarget = 0.12;
  static constexpr uint64_t kShortestNs = 5'000;
  static constexpr uint64_t kIdleNs = 5'000'000;        // after a second of idleness
  static constexpr uint64_t kIdleAfterNs = 1'000'000'000;
  static constexpr double kCountedBlocks = 8'192;  // an eighth of what a doorbell's 16 bits tell apart
  static constexpr uint64_t kInUseNs = kIdleAfterNs;

  uint64_t ns() const { return std::max<uint64_t>(static_cast<uint64_t>(ns_), floor_ns_); }
  // A ring of so many entries was opened, or moved, at `now_ns`: it is in use for kInUseNs.
  void used(uint32_t entries, uint64_t now_ns) {
    if (entries != 0) used_ns_[static_cast<size_t>(std::bit_width(entries) - 1)] = now_ns;
  }
  // To stay within the CPU that the observer may use.
  void set_floor(uint64_t ns) { floor_ns_ = ns; }
  uint64_t floor() const { return floor_ns_; }

  // After a look at `now_ns` that found the fullest ring's share `fill` to be new.
  void looked(double fill, uint64_t now_ns) {
    const uint64_t cap_ns = longest_ns(now_ns);
    if (fill > 0) {
      active_ns_ = now_ns;
      idle_looks_ = 0;
      const double factor = kTarget / fill;
      ns_ *= factor < 1 ? factor : std::min(factor, 1.25);
      ns_ = std::clamp(ns_, double(kShortestNs), double(cap_ns));
      return;
    }
    if (++idle_looks_ <= 8) return;
    const bool idle = now_ns - active_ns_ > kIdleAfterNs;
    ns_ = std::min(ns_ * 1.5, double(idle ? kIdleNs : cap_ns));
  }

  // After a look at the doorbells alone, `elapsed_ns` behind the last one: on the queue pair where most was posted it
  // was so many blocks. Nothing is read that could be overwritten; what bounds the interval is that a doorbell has 16
  // bits. Each look takes the doorbells' cache lines from the job, and more often tells nothing more.
  void counted(uint64_t blocks, uint64_t elapsed_ns, uint64_t now_ns) {
    if (blocks > 0) {
      active_ns_ = now_ns;
      idle_looks_ = 0;
    }
    const double safe_ns =
        blocks > 0 ? static_cast<double>(elapsed_ns) * kCountedBlocks / static_cast<double>(blocks) : kIdleNs;
    ns_ = std::clamp(std::min(safe_ns, ns_ * 1.5), double(kShortestNs), double(kIdleNs));
  }

 private:
  // While there is traffic, by the smallest ring in use.
  uint64_t longest_ns(uint64_t now_ns) const {
    for (size_t log_entries = 0; log_entries < used_ns_.size(); ++log_entries)
      if (used_ns_[log_entries] != 0 && now_ns - std::min(now_ns, used_ns_[log_entries]) < kInUseNs)
        return std::clamp<uint64_t>((uint64_t{1} << log_entries) * 500, 100'000, 500'000);
    return 500'000;
  }

  double ns_ = 50'000;
  std::array<uint64_t, 32> used_ns_{};  // when a ring of so many entries was last, by their logarithm
  uint64_t floor_ns_ = 0;
  uint64_t active_ns_ = 0;
  uint32_t idle_looks_ = 0;
};

}  // namespace sigma
