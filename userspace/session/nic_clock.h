// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// NicClock: a device's free-running clock against CLOCK_MONOTONIC.
//
//   clock.add({.ticks, .host_ns, .error_ns, .nominal_khz});     // bracketed readings, now and then
//   if (auto time = clock.host_time(ticks)) ... time->ns, +- time->error_ns
//
// Each reading bounds the clock: it showed `ticks` at some time within host_ns +- error_ns. What
// the readings of the last while leave possible for the rate, and for the time of a stamp, is an
// interval: its middle is the answer, half its width the error. Nothing is averaged, so that one
// disturbed reading (a wide bracket) takes nothing from the good ones, and the error is a bound,
// not an estimate. It rests on two assumptions: the brackets are true, and the rate moves by less
// than kWanderPpm within the window of readings (crystals: some 0.1 ppm a minute; CLOCK_MONOTONIC
// under chrony, ntpd or phc2sys in their steady state: under 1 ppm a second). Readings that
// contradict each other beyond that (the host's clock is being slewed hard) cost the older ones
// their say.
//
// Ticks and times are 64 bits wide and do not wrap in a machine's life; products are taken in 128
// bits. Pure: no I/O, no clock of its own, so that a replay computes what live did.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>

namespace sigma {

struct HostTime {
  uint64_t ns = 0;  // CLOCK_MONOTONIC
  uint64_t error_ns = 0;
};

class NicClock {
 public:
  struct Reading {
    uint64_t ticks = 0;
    uint64_t host_ns = 0;
    uint32_t error_ns = 0;
    uint32_t nominal_khz = 0;  // 0: not known
  };
  static constexpr size_t kReadings = 32;
  static constexpr int64_t kWanderPpm = 2;
  // Of one reading the rate is known by its maker's word only.
  static constexpr int64_t kNominalPpm = 1000;

  void add(const Reading& reading);

  // nullopt: no reading tells the rate, or the stamp is out of reach of the readings.
  std::optional<HostTime> host_time(uint64_t ticks) const;

  // Stamps can be converted at all.
  bool ready() const { return high_ != 0; }

  // Readings that made all before them worthless: the device's clock was set back.
  uint64_t restarts() const { return restarts_; }

 private:
  // Nanoseconds a tick, times 2^32: 0.04 ppb steps at 6.4 ns a tick.
  static constexpr unsigned kShift = 32;
  struct Bounds {
    int64_t low_ns = 0, high_ns = 0;
  };

  void fit();
  bool fit_pairs(size_t first);
  Bounds bounds_by(const Reading& reading, uint64_t ticks) const;
  const Reading& reading(size_t i) const { return readings_[(begin_ + i) % kReadings]; }

  std::array<Reading, kReadings> readings_{};
  size_t begin_ = 0, count_ = 0;
  uint64_t low_ = 0, high_ = 0;  // the rate's bounds; high_ 0: not known
  Bounds newest_;                // at the newest reading's ticks, by all readings
  uint64_t restarts_ = 0;
};

}  // namespace sigma
