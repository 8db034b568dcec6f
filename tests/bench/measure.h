// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Measuring on a machine that may be busy: interleaved pairs, the median of their ratios, and the
// interval that holds it with 95% confidence. Rows go to standard output as one JSON object a line,
// for scripts/bench.
#pragma once

#include <sys/resource.h>
#include <time.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <vector>

namespace bench {

inline uint64_t now_ns() {
  timespec time = {};
  clock_gettime(CLOCK_MONOTONIC, &time);
  return static_cast<uint64_t>(time.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(time.tv_nsec);
}

// Of all threads, in user and kernel mode: what a busy machine does not change much.
inline uint64_t process_cpu_ns() {
  rusage usage = {};
  getrusage(RUSAGE_SELF, &usage);
  const auto ns = [](const timeval& time) {
    return static_cast<uint64_t>(time.tv_sec) * 1'000'000'000 +
           static_cast<uint64_t>(time.tv_usec) * 1000;
  };
  return ns(usage.ru_utime) + ns(usage.ru_stime);
}

struct Estimate {
  double median = 0, low = 0, high = 0;  // low..high: 95% confidence
  size_t n = 0;
  // Half the interval's width, in parts of the median.
  double uncertainty() const { return median > 0 ? (high - low) / 2 / median : 1; }
};

// By order statistics: no assumption on the distribution.
inline Estimate estimate(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const size_t n = values.size();
  if (n == 0) return {};
  const double reach = 0.98 * std::sqrt(static_cast<double>(n));
  const auto middle = static_cast<double>(n) / 2;
  const auto low = static_cast<size_t>(std::max(0.0, std::floor(middle - reach)));
  const auto high = std::min(n - 1, static_cast<size_t>(std::ceil(middle + reach)));
  return {values[n / 2], values[low], values[high], n};
}

// Of the calling thread: what other processes take in between does not count.
inline uint64_t cpu_ns() {
  timespec time = {};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<uint64_t>(time.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(time.tv_nsec);
}

// CPU nanoseconds a call, of `calls` calls.
inline double time_calls(const std::function<void(int)>& run, int calls) {
  const uint64_t start = cpu_ns();
  run(calls);
  return static_cast<double>(cpu_ns() - start) / calls;
}

struct PairResult {
  Estimate first_ns, second_ns, ratio;  // ratio: second / first
};

// Runs the two by turns until the ratio's interval is within +-0.5%, at least 41 pairs, at most
// `seconds`. Which one goes first alternates, so that drift falls on both.
inline PairResult compare(const std::function<void(int)>& first,
                          const std::function<void(int)>& second, int calls, double seconds = 10) {
  std::vector<double> firsts, seconds_ns, ratios;
  const uint64_t end = now_ns() + static_cast<uint64_t>(seconds * 1e9);
  time_calls(first, calls);
  time_calls(second, calls);
  for (size_t n = 0;; n++) {
    double a, b;
    if (n % 2 == 0) {
      a = time_calls(first, calls);
      b = time_calls(second, calls);
    } else {
      b = time_calls(second, calls);
      a = time_calls(first, calls);
    }
    firsts.push_back(a);
    seconds_ns.push_back(b);
    ratios.push_back(b / a);
    if (n % 20 == 0 && n >= 40 && (estimate(ratios).uncertainty() < 0.005 || now_ns() > end)) break;
  }
  return {estimate(firsts), estimate(seconds_ns), estimate(ratios)};
}

// target < 0: informational. `reason` is printed when a row cannot be judged.
inline void row(const char* name, double value, const char* unit, double target, bool ok,
                const char* reason = "") {
  printf("{\"name\": \"%s\", \"value\": %.4g, \"unit\": \"%s\", \"target\": ", name, value, unit);
  if (target < 0)
    printf("null");
  else
    printf("%.4g", target);
  printf(", \"ok\": %s", ok ? "true" : "false");
  if (*reason) printf(", \"reason\": \"%s\"", reason);
  printf("}\n");
  fflush(stdout);
}

// A ratio against its target. An interval that spans the target decides nothing.
inline void ratio_row(const char* name, const Estimate& ratio, double target = -1) {
  if (target < 0) return row(name, ratio.median, "x", target, true);
  if (ratio.uncertainty() > 0.05)
    return row(name, ratio.median, "x", target, false, "the machine is too unsteady to resolve it");
  row(name, ratio.median, "x", target, ratio.median <= target);
}

}  // namespace bench
