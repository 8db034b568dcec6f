// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// The coverage statement's counters, from counters.def. A plain struct: the owner adds, outputs read.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace sigma {

enum class Severity : uint8_t { info, gap, loss, error };

struct Counters {
#define SIGMA_COUNTER(name, severity, help) uint64_t name = 0;
#include "base/counters.def"
#undef SIGMA_COUNTER
};

struct CounterInfo {
  std::string_view name;
  Severity severity;
  std::string_view help;
  uint64_t Counters::*value;
};

inline constexpr auto kCounters = std::to_array<CounterInfo>({
#define SIGMA_COUNTER(name, severity, help) {#name, Severity::severity, help, &Counters::name},
#include "base/counters.def"
#undef SIGMA_COUNTER
});

}  // namespace sigma
