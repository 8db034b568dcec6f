// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// The coverage statement: what was not seen, in plain words. Every output shows it.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/counters.h"
#include "session/operation.h"

namespace sigma {

struct CoverageLine {
  Severity severity = Severity::gap;
  std::string text;
};

// One line for each counter of severity gap, loss or error that is not zero, worst first.
std::vector<CoverageLine> coverage_lines(const Counters& counters);

// The lines, then `remarks` (what the tracer knows beyond the counters: a library that is not
// covered and why, say). "nothing known to be missing" when there are neither.
std::vector<std::string> coverage_statement(const Counters& counters,
                                            std::span<const std::string> remarks);

// Remarks: which queue pairs were read from memory, how much of what they posted was seen, and by which
// certificate (decode/send_ring.h); then, worst first, those of which something was missed.
std::vector<std::string> ring_statements(std::span<const std::shared_ptr<const QueuePair>> queue_pairs);
inline constexpr size_t kMaxRingStatements = 8;  // of single queue pairs; the rest is counted

inline constexpr std::string_view kNothingMissing = "nothing known to be missing";

// What no trace of one machine's processes can hold, whatever the counters say.
inline constexpr std::string_view kOutOfSight =
    "out of sight by nature: the passive side of one-sided operations, and queue pairs of the "
    "kernel itself";

std::string_view to_string(Severity severity);

}  // namespace sigma
