// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Governor: keeps the probes' time in a traced process within the budget.
//
// A probe hit costs the job 0.3-1 us; a thread that posts a million times a second would give up most of
// a core. The governor counts hits (in BPF, per process), multiplies by the cost measured on this machine,
// and, beyond the budget, alternates windows of full tracing with pauses in which the data-path probes
// are removed. What is seen in a window is whole; what was paused is counted and said.
//
// Pure arithmetic: the caller supplies hits and time, and acts on the answer.
#pragma once

#include <cstdint>

namespace sigma {

struct GovernorOptions {
  double budget = 0.10;               // share of one core per process; <= 0: off
  double ns_per_hit = 1000;           // measured at start (attach/calibrate.h)
  uint64_t window_ns = 250'000'000;   // least tracing time between two pauses
  uint64_t max_pause_ns = 10'000'000'000;
};

enum class GovernorAction : uint8_t { none, pause, resume };

// One per traced process.
class Governor {
 public:
  explicit Governor(const GovernorOptions& options) : options_(options) {}

  // `hits` is the process's total so far; call it every ~50 ms.
  GovernorAction sample(uint64_t hits, uint64_t now_ns);

  bool paused() const { return paused_until_ns_ != 0; }
  uint64_t pauses() const { return pauses_; }
  // Total time paused until `now_ns`.
  uint64_t paused_ns(uint64_t now_ns) const;
  // Share of a core that tracing cost in the last window (0.25 = 25%).
  double last_cost() const { return last_cost_; }

 private:
  GovernorOptions options_;
  uint64_t window_start_ns_ = 0;
  uint64_t window_start_hits_ = 0;
  uint64_t paused_since_ns_ = 0;
  uint64_t paused_until_ns_ = 0;
  uint64_t paused_total_ns_ = 0;
  uint64_t pauses_ = 0;
  double last_cost_ = 0;
};

}  // namespace sigma
