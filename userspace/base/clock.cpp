// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
#include "base/clock.h"

#include <ctime>

namespace sigma {
namespace {

uint64_t read_ns(clockid_t clock) {
  timespec now{};
  clock_gettime(clock, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(now.tv_nsec);
}

}  // namespace

uint64_t monotonic_now_ns() {
  return read_ns(CLOCK_MONOTONIC);
}

ClockPair sample_clocks() {
  // A preemption between the readings widens the bracket; of 16 tries some are undisturbed.
  ClockPair best;
  for (int attempt = 0; attempt < 16; ++attempt) {
    const uint64_t before = read_ns(CLOCK_MONOTONIC);
    const uint64_t utc = read_ns(CLOCK_REALTIME);
    const uint64_t width = read_ns(CLOCK_MONOTONIC) - before;
    if (attempt == 0 || width / 2 < best.error_ns) best = {before + width / 2, utc, width / 2};
  }
  return best;
}

}  // namespace sigma
