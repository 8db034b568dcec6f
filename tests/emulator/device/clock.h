// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// The NIC's free-running clock: its own offset and a rate that differs from nominal, per device.
#pragma once

#include <ctime>

#include "config.h"

namespace connectx {

inline uint64_t clock_ns(clockid_t id) {
  timespec now;
  clock_gettime(id, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1'000'000'000 + now.tv_nsec;
}

inline uint64_t monotonic_ns() {
  return clock_ns(CLOCK_MONOTONIC);
}

__extension__ typedef unsigned __int128 Wide;

inline uint64_t nic_ticks(const ClockModel& clock, uint64_t now_ns) {
  return clock.offset_ticks +
         static_cast<uint64_t>((static_cast<Wide>(now_ns) * clock.mult_2_64) >> 64);
}

}  // namespace connectx
