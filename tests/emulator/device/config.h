// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// What the run looks like: $SIGMA_CONNECTX_DIR/devices, written by connectx_tree.py, and the
// environment. Read once; never changes. Without SIGMA_CONNECTX_DIR the library does nothing.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace connectx {

using GidBytes = std::array<uint8_t, 16>;

struct GidConfig {
  GidBytes bytes{};
  uint32_t type = 0;  // enum ib_uverbs_gid_type: 0 InfiniBand or RoCE v1, 2 RoCE v2
};

// ticks = offset + CLOCK_MONOTONIC in ns * mult / 2^64. The same line stands in clock/<device> for
// readers outside (see README.md).
struct ClockModel {
  uint64_t offset_ticks = 0;
  uint64_t mult_2_64 = 0;
  uint32_t nominal_khz = 156250;
};

struct DeviceConfig {
  std::string name;
  unsigned uverbs = 0;
  uint64_t node_guid = 0;  // host byte order
  uint16_t lid = 0;        // 0 on Ethernet
  bool ethernet = false;
  std::array<uint8_t, 6> mac{};
  std::vector<GidConfig> gids;
  ClockModel clock;
};

// Faults and limits, all off unless asked for.
struct Faults {
  double drop = 0;        // probability that an RC request is lost on the wire
  uint64_t seed = 1;      // of the generator that decides
  uint32_t delay_us = 0;  // added before each request is served by this process
  double gbit_per_s = 0;  // requests leave at this rate
  bool copy = true;       // false: move no payload above the inline limit
  bool busy = false;      // the first command to destroy each queue pair says EBUSY
  // Of the ordinal-th DevX queue pair with a send queue of this process, from 0 on: no completion
  // from a position (in WQEBBs) on, as of a peer that never answers; and a WQE that fails.
  struct Place {
    uint32_t ordinal = ~0u;
    uint64_t position = 0;
  };
  Place withhold, fail;
  uint8_t fail_syndrome = 0x15;  // retries exceeded
};

struct Config {
  std::string dir;  // empty: inert
  std::vector<DeviceConfig> devices;
  Faults faults;
  bool oracle = true;
  bool verbose = false;
  bool scatter_to_cqe = false;  // what libmlx5 asks for by default, and hardware grants
  bool compress_cqe = false;    // the capability; CQs are compressed that ask for it
  bool kernel_hook = false;     // commands pass a function of the kernel's (shim.cpp, tell_kernel)
  bool realtime = false;        // the NIC thread's scheduling class
  uint64_t pause_ns = 0;        // it sleeps so long after each look, also while there is work
};

const Config& config();

// Writes "connectx: ..." to standard error when SIGMA_CONNECTX_VERBOSE=1 (note) or always
// (complain).
void note(const char* format, ...) __attribute__((format(printf, 1, 2)));
void complain(const char* format, ...) __attribute__((format(printf, 1, 2)));

}  // namespace connectx
