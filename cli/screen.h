// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// What is seen on standard error while a trace runs.
#pragma once

#include <fmt/format.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <string_view>

#include "base/clock.h"
#include "base/terminal.h"
#include "output/summary.h"

namespace sigma {

// Live totals on a terminal, lines of text anywhere; never both on one line.
class Screen {
 public:
  void say(std::string_view line) {
    clear();
    put(stderr, fmt::format("{}\n", line));
  }
  void live(const LiveTotals& now, uint64_t now_ns) {
    if (!terminal_) return;
    const double seconds = static_cast<double>(now_ns - last_ns_) * 1e-9;
    clear();
    put(stderr, live_line(now, last_, seconds, terminal_width(STDERR_FILENO)));
    shown_ = true;
    last_ = now;
    last_ns_ = now_ns;
  }
  void clear() {
    if (shown_) put(stderr, "\r\033[K");
    shown_ = false;
  }

 private:
  bool terminal_ = is_terminal(STDERR_FILENO);
  bool shown_ = false;
  LiveTotals last_{};
  uint64_t last_ns_ = monotonic_now_ns();
};

}  // namespace sigma
