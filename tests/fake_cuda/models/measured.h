// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// A model whose rate is measured (--measured 1): scripts/bench gpu. Its kernel posts without end,
// in turns that standard input asks for. It prints "pid N" and waits for a line before it opens
// anything; prints "ready" when its kernel is there; then each "run SECONDS" is answered by
// "OPERATIONS SECONDS". It ends with its standard input, as other runs do.
#pragma once

#include <time.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>

#include "fail.h"
#include "host.h"

namespace models {

inline uint64_t monotonic_ns() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(now.tv_nsec);
}

// Before anything else: a tracer may come in between.
inline void wait_to_set_up() {
  char line[64];
  printf("pid %d\n", getpid());
  fflush(stdout);
  if (!fgets(line, sizeof line, stdin)) _Exit(0);
}

class Turns {
 public:
  // In device code, where nothing of its own is outstanding: waits for its turn. False: there will
  // be none.
  bool wait() {
    uint32_t now = state_.load(std::memory_order_acquire);
    if (now != kOpen) {
      ++waiting_;
      for (; now == kClosed; now = state_.load(std::memory_order_acquire))
        state_.wait(kClosed, std::memory_order_acquire);
      --waiting_;
    }
    return now == kOpen;
  }

  // In the host's thread, until standard input ends. `blocks`: of the kernel, and how many of them
  // have `ended`, which is a failure. `count()`: operations up to now.
  template <typename Count>
  void serve(unsigned blocks, const std::atomic<unsigned>& ended, Count count) {
    printf("ready\n");
    fflush(stdout);
    char line[64];
    while (fgets(line, sizeof line, stdin)) {
      double seconds;
      require(sscanf(line, "run %lf", &seconds) == 1 && seconds > 0, "bad request: %s", line);
      set(kOpen);
      pause_us(kOnsetUs);
      const uint64_t from = count(), begin = monotonic_ns();
      pause_us(static_cast<unsigned>(seconds * 1e6));
      const uint64_t to = count(), end = monotonic_ns();
      set(kClosed);
      while (waiting_ + ended < blocks) pause_us(50);
      require(ended == 0, "the kernel has ended");
      printf("%llu %.9f\n", static_cast<unsigned long long>(to - from),
             static_cast<double>(end - begin) * 1e-9);
      fflush(stdout);
    }
    set(kEnded);
  }

 private:
  enum : uint32_t { kClosed, kOpen, kEnded };
  static constexpr unsigned kOnsetUs = 20'000;  // until the rate is steady: readers had slept

  void set(uint32_t state) {
    state_.store(state, std::memory_order_release);
    state_.notify_all();
  }

  std::atomic<uint32_t> state_{kClosed};
  std::atomic<unsigned> waiting_{0};
};

}  // namespace models
