// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// From CLOCK_MONOTONIC, which all records carry, to UTC, which outputs show.
//
// One pair of readings, taken at the start, fixes the offset for a whole output, so that its times
// never jump and differences are exact; a later pair shows what the system's clock did meanwhile.
#pragma once

#include <cstdint>

namespace sigma {

struct ClockPair {
  uint64_t monotonic_ns = 0;
  uint64_t utc_ns = 0;    // since the Unix epoch
  uint64_t error_ns = 0;  // the two readings belong together within +- this
};

// The tightest of several bracketed readings: monotonic, UTC, monotonic.
ClockPair sample_clocks();

uint64_t monotonic_now_ns();

// Copyable; what it converts may lie before or after the pair.
class UtcClock {
 public:
  explicit UtcClock(const ClockPair& pair) : offset_ns_(pair.utc_ns - pair.monotonic_ns) {}
  uint64_t utc_ns(uint64_t monotonic_ns) const { return monotonic_ns + offset_ns_; }

 private:
  uint64_t offset_ns_;  // modulo 2^64: a UTC behind the monotonic clock works as well
};

}  // namespace sigma
