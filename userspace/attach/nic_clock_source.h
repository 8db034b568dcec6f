// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// NicClockSource: readings of a device's free-running clock, each between two readings of
// CLOCK_MONOTONIC. The one place that reads such clocks: a real device's by ibv_query_rt_values_ex
// on a context of our own (libibverbs is loaded only then), or, for rigs, from the files that
// SIGMATRACE_CLOCK=DIR names (DIR/<device>; ignored when the program got its privileges from the
// file, AT_SECURE).
//
// Only mlx5's clocks are read: its completion entries are the only ones whose stamps are read.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "bpf/records.h"

namespace sigma {

class NicClockSource {
 public:
  virtual ~NicClockSource() = default;
  NicClockSource(const NicClockSource&) = delete;
  NicClockSource& operator=(const NicClockSource&) = delete;

  // Of every device whose clock can be read; `remarks` takes why one cannot. Opens devices: to be
  // called before privileges are given up. The tracer alone does so, once.
  static std::vector<std::unique_ptr<NicClockSource>> open_all(std::vector<std::string>& remarks);

  const std::string& device() const { return device_; }
  // The tightest of a few bracketed readings; nullopt when the clock cannot be read any more.
  std::optional<sigma_clock_sample> sample();

 protected:
  NicClockSource(std::string device, uint32_t nominal_khz)
      : device_(std::move(device)), nominal_khz_(nominal_khz) {}
  virtual std::optional<uint64_t> read_ticks() = 0;

 private:
  std::string device_;
  uint32_t nominal_khz_;
};

}  // namespace sigma
