// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
#include "session/nic_clock.h"

#include <algorithm>
#include <limits>

namespace sigma {
namespace {

__extension__ using Wide = __int128;

// Beyond these nothing is said; within them no sum below leaves 64 bits. 2^46 ticks are 19 hours at
// 1 GHz, 5 days at 156 MHz.
constexpr int64_t kMaxTicks = int64_t{1} << 46;
constexpr uint64_t kMaxRate = uint64_t{1} << 46;  // 16 us a tick
constexpr uint64_t kMaxHostNs = uint64_t{1} << 61;
constexpr int64_t kMaxErrorNs = 1'000'000'000;

constexpr int64_t kMillion = 1'000'000;

}  // namespace

void NicClock::add(const Reading& reading_now) {
  if (reading_now.host_ns > kMaxHostNs || reading_now.error_ns > kMaxErrorNs) return;
  if (count_ > 0) {
    const Reading& last = reading(count_ - 1);
    if (reading_now.host_ns <= last.host_ns) return;  // told late: it adds nothing
    if (reading_now.ticks < last.ticks) {
      ++restarts_;
      count_ = 0;
    } else if (reading_now.ticks == last.ticks) {
      return;
    }
  }
  if (count_ == kReadings) {
    begin_ = (begin_ + 1) % kReadings;
    --count_;
  }
  readings_[(begin_ + count_++) % kReadings] = reading_now;
  while (reading_now.ticks - reading(0).ticks > static_cast<uint64_t>(kMaxTicks)) {
    begin_ = (begin_ + 1) % kReadings;
    --count_;
  }
  fit();
}

// Older readings are given up until the rest agrees.
void NicClock::fit() {
  high_ = 0;
  for (size_t first = 0; first + 1 < count_; ++first) {
    if (!fit_pairs(first)) continue;
    begin_ = (begin_ + first) % kReadings;
    count_ -= first;
    break;
  }
  const Reading last = reading(count_ - 1);
  if (count_ < 2 || high_ == 0) {
    begin_ = (begin_ + count_ - 1) % kReadings;
    count_ = 1;
    // ns a tick = 10^6 / kHz
    low_ = high_ = 0;
    constexpr uint32_t kLeastKhz = 100;  // 10 us a tick
    if (last.nominal_khz >= kLeastKhz) {
      const uint64_t rate = (uint64_t{kMillion} << kShift) / last.nominal_khz;
      low_ = rate - rate / kMillion * kNominalPpm;
      high_ = rate + rate / kMillion * kNominalPpm;
    }
  }
  newest_ = bounds_by(last, last.ticks);
  for (size_t i = 0; i + 1 < count_; ++i) {
    const Bounds by = bounds_by(reading(i), last.ticks);
    newest_.low_ns = std::max(newest_.low_ns, by.low_ns);
    newest_.high_ns = std::min(newest_.high_ns, by.high_ns);
  }
  // The wander was underestimated a little: the newest reading knows best.
  if (newest_.low_ns > newest_.high_ns) newest_ = bounds_by(last, last.ticks);
}

// Every pair of readings bounds the mean rate between them; the rate now is that, give or take the
// wander. False: no rate satisfies all.
bool NicClock::fit_pairs(size_t first) {
  uint64_t low = 0, high = kMaxRate;
  for (size_t j = first + 1; j < count_; ++j) {
    const Reading& b = reading(j);
    for (size_t i = first; i < j; ++i) {
      const Reading& a = reading(i);
      const uint64_t ticks = b.ticks - a.ticks;  // > 0: add() saw to it
      const auto span = static_cast<Wide>(b.host_ns - a.host_ns);
      const auto error = static_cast<Wide>(a.error_ns) + b.error_ns;
      const Wide most = ((span + error) << kShift) / ticks + 1;
      const Wide least = span > error ? ((span - error) << kShift) / ticks : 0;
      high = static_cast<uint64_t>(std::min<Wide>(high, most + most * kWanderPpm / kMillion));
      low = static_cast<uint64_t>(
          std::max<Wide>(low, std::min<Wide>(least - least * kWanderPpm / kMillion, kMaxRate)));
    }
  }
  if (low > high || high == 0 || high >= kMaxRate) return false;
  low_ = low;
  high_ = high;
  return true;
}

// Where one reading, with the bounds of the rate, allows a stamp to be.
NicClock::Bounds NicClock::bounds_by(const Reading& by, uint64_t ticks) const {
  const auto host = static_cast<int64_t>(by.host_ns);
  const auto error = static_cast<int64_t>(by.error_ns);
  const auto distance = static_cast<int64_t>(ticks - by.ticks);  // modulo 2^64: signed
  const auto far = static_cast<Wide>(distance) * static_cast<Wide>(high_);
  const auto near = static_cast<Wide>(distance) * static_cast<Wide>(low_);
  const auto least = static_cast<int64_t>(std::min(far, near) >> kShift);
  const auto most = static_cast<int64_t>(std::max(far, near) >> kShift) + 1;
  return {host - error + least, host + error + most};
}

std::optional<HostTime> NicClock::host_time(uint64_t ticks) const {
  if (count_ == 0 || high_ == 0) return std::nullopt;
  const Reading& last = reading(count_ - 1);
  const auto distance = static_cast<int64_t>(ticks - last.ticks);
  if (distance > kMaxTicks || distance < -kMaxTicks) return std::nullopt;

  Bounds bounds;
  if (distance >= 0) {
    const auto ahead = static_cast<Wide>(distance);
    bounds.low_ns =
        newest_.low_ns + static_cast<int64_t>(ahead * static_cast<Wide>(low_) >> kShift);
    bounds.high_ns =
        newest_.high_ns + static_cast<int64_t>(ahead * static_cast<Wide>(high_) >> kShift) + 1;
  } else {
    // The two readings around it say most.
    size_t after = count_ - 1;
    while (after > 0 && static_cast<int64_t>(reading(after - 1).ticks - ticks) >= 0) --after;
    bounds = bounds_by(reading(after), ticks);
    if (after > 0) {
      const Bounds before = bounds_by(reading(after - 1), ticks);
      const Bounds both{std::max(bounds.low_ns, before.low_ns),
                        std::min(bounds.high_ns, before.high_ns)};
      // Apart by the wander: it is between them.
      bounds = both.low_ns <= both.high_ns ? both : Bounds{both.high_ns, both.low_ns};
    }
  }
  // A stamp stands for the time until the next tick, and so did the reading.
  const auto tick_ns = static_cast<int64_t>(high_ >> kShift) + 1;
  bounds.low_ns -= tick_ns;
  bounds.high_ns += tick_ns;
  const int64_t error = (bounds.high_ns - bounds.low_ns + 1) / 2;
  if (error > kMaxErrorNs || bounds.low_ns < 0) return std::nullopt;
  return HostTime{static_cast<uint64_t>(bounds.low_ns + (bounds.high_ns - bounds.low_ns) / 2),
                  static_cast<uint64_t>(error)};
}

}  // namespace sigma
