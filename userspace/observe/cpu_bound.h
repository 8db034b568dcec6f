// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// What the observer does to stay within the CPU that it may use: longer intervals when its looks take more; the doorbells
// alone when even the longest lose so much that the looks are not worth their price. Pure arithmetic.
#pragma once

#include <algorithm>
#include <cstdint>

namespace sigma {

class CpuBound {
 public:
  static constexpr uint64_t kLongestFloorNs = 2'000'000;
  // Doorbells alone for so long; then rings are tried again, more rarely each time that they are too much again at once:
  // a try costs the job cache lines and tells little.
  static constexpr uint64_t kPressedNs = 1'000'000'000, kLongestPressedNs = 8'000'000'000;
  static constexpr uint64_t kAtOnceNs = 1'000'000'000;

  // `most`: of one core, a fraction.
  explicit CpuBound(double most) : most_(most) {}

  // Of the `elapsed_ns` until `now_ns` the looks took `share`.
  void used(double share, uint64_t elapsed_ns, uint64_t now_ns) {
    if (pressed()) pressed_total_ns_ += elapsed_ns;
    if (share > most_) {
      // What looks take goes by how many there are: what is too much by a factor has to be so much rarer.
      const double factor = std::clamp(share / most_, 1.5, 4.0);
      const double floor_ns = static_cast<double>(std::max<uint64_t>(floor_ns_, 20'000)) * factor;
      floor_ns_ = std::min(static_cast<uint64_t>(floor_ns), kLongestFloorNs);
    } else if (share < most_ * 0.7 && !pressed()) {  // what doorbells alone take says nothing of looks at rings
      floor_ns_ = floor_ns_ * 4 / 5;
    }
    if (!pressed() && share > most_ && floor_ns_ >= kLongestFloorNs) {
      const bool at_once = released_ns_ != 0 && now_ns - released_ns_ < kAtOnceNs;
      pressed_for_ns_ = at_once ? std::min(2 * pressed_for_ns_, kLongestPressedNs) : kPressedNs;
      pressed_since_ns_ = now_ns;
    } else if (pressed() && now_ns - pressed_since_ns_ > pressed_for_ns_) {
      released_ns_ = now_ns;
      pressed_since_ns_ = 0;
    }
  }

  // No interval may be shorter.
  uint64_t floor_ns() const { return floor_ns_; }
  // Doorbells alone are read.
  bool pressed() const { return pressed_since_ns_ != 0; }
  uint64_t pressed_total_ns() const { return pressed_total_ns_; }

 private:
  double most_;
  uint64_t floor_ns_ = 0;
  uint64_t pressed_since_ns_ = 0, pressed_for_ns_ = kPressedNs, released_ns_ = 0;  // 0: not, never
  uint64_t pressed_total_ns_ = 0;
};

}  // namespace sigma
