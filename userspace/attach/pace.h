// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Pace: work that is done piece by piece, each followed by so long a rest that all of it takes at most a share of
// the time. Pure arithmetic: the caller says how long each piece took.
#pragma once

#include <cstdint>

namespace sigma {

class Pace {
 public:
  // `share` of one core, above 0 and at most 1.
  explicit Pace(double share) : rest_of_work_((1 - share) / share) {}

  bool may_go_on(uint64_t now_ns) const { return now_ns >= rests_until_ns_; }
  // A piece that began at `begin_ns` has just ended.
  void on_piece(uint64_t begin_ns, uint64_t end_ns) {
    const uint64_t took_ns = end_ns - begin_ns;
    worked_ns_ += took_ns;
    ++pieces_;
    rests_until_ns_ = end_ns + static_cast<uint64_t>(static_cast<double>(took_ns) * rest_of_work_);
  }
  uint64_t pieces() const { return pieces_; }
  uint64_t worked_ns() const { return worked_ns_; }

 private:
  double rest_of_work_;
  uint64_t rests_until_ns_ = 0, worked_ns_ = 0, pieces_ = 0;
};

}  // namespace sigma
