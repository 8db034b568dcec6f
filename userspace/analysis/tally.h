// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// What is counted of a set of operations, in memory that does not depend on their number. Tallies
// add up: those of queue pairs make those of peers, devices, processes.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <optional>

#include "base/histogram.h"
#include "output/names.h"
#include "session/operation.h"

namespace sigma {

// Bytes and busy time over the trace, in at most 64 steps of equal width, which doubles as time
// goes on.
class Series {
 public:
  static constexpr size_t kSteps = 64;
  struct Step {
    uint64_t bytes = 0, busy_ns = 0, operations = 0;
  };

  void add(uint64_t time_ns, uint64_t bytes, uint64_t busy_ns) {
    if (begin_ns_ == 0) begin_ns_ = time_ns;
    const uint64_t since = time_ns > begin_ns_ ? time_ns - begin_ns_ : 0;
    while (since >> width_bits_ >= kSteps) coarsen();
    Step& step = steps_[since >> width_bits_];
    step.bytes += bytes;
    step.busy_ns += busy_ns;
    ++step.operations;
  }
  const std::array<Step, kSteps>& steps() const { return steps_; }
  uint64_t begin_ns() const { return begin_ns_; }
  uint64_t width_ns() const { return uint64_t{1} << width_bits_; }

 private:
  void coarsen() {
    for (size_t i = 0; i < kSteps; ++i) {
      Step sum;
      if (2 * i + 1 < kSteps) {
        sum = steps_[2 * i];
        sum.bytes += steps_[2 * i + 1].bytes;
        sum.busy_ns += steps_[2 * i + 1].busy_ns;
        sum.operations += steps_[2 * i + 1].operations;
      }
      steps_[i] = sum;
    }
    ++width_bits_;
  }

  uint64_t begin_ns_ = 0;
  unsigned width_bits_ = 20;  // about a millisecond
  std::array<Step, kSteps> steps_{};
};

struct Tally {
  uint64_t operations = 0;
  uint64_t bytes = 0;
  uint64_t completed = 0;  // with success
  uint64_t unfinished = 0;
  uint64_t errors = 0;  // any status but success and flush
  uint64_t flushed = 0;
  uint64_t busy_ns = 0;         // with at least one of them outstanding
  uint64_t outstanding_ns = 0;  // summed over the operations
  uint32_t depth_max = 0;       // outstanding at once in one queue
  uint64_t first_ns = UINT64_MAX, last_ns = 0;
  Histogram latency_ns;

  enum class Latency : bool { without, with };
  void add(const Tally& other, Latency latency = Latency::with) {
    operations += other.operations;
    bytes += other.bytes;
    completed += other.completed;
    unfinished += other.unfinished;
    errors += other.errors;
    flushed += other.flushed;
    busy_ns += other.busy_ns;
    outstanding_ns += other.outstanding_ns;
    depth_max = std::max(depth_max, other.depth_max);
    first_ns = std::min(first_ns, other.first_ns);
    last_ns = std::max(last_ns, other.last_ns);
    if (latency == Latency::with) latency_ns.add(other.latency_ns);
  }

  uint64_t span_ns() const { return last_ns > first_ns ? last_ns - first_ns : 0; }
  double bytes_per_s() const { return per_second(bytes, span_ns()); }
  double operations_per_s() const { return per_second(operations, span_ns()); }
  // Of the time in which something was under way: what the path gave, not what the job asked for.
  double path_bytes_per_s() const { return per_second(bytes, busy_ns); }
  // Little's law; nullopt where no latency is known.
  std::optional<double> depth_mean() const {
    if (outstanding_ns == 0 || span_ns() == 0) return std::nullopt;
    return static_cast<double>(outstanding_ns) / static_cast<double>(span_ns());
  }

  static double per_second(uint64_t amount, uint64_t ns) {
    return ns ? static_cast<double>(amount) * 1e9 / static_cast<double>(ns) : 0;
  }
};

// Size classes: 0, up to 64 B, then each four times the one before; the last one is open.
inline constexpr size_t kSizeClasses = 13;
inline size_t size_class(uint64_t bytes) {
  if (bytes == 0) return 0;
  if (bytes <= 64) return 1;
  const auto fourfold = static_cast<size_t>(std::bit_width(bytes - 1) - 5) / 2;
  return std::min(1 + fourfold, kSizeClasses - 1);
}
std::string size_class_name(size_t index);

}  // namespace sigma
