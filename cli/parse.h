// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Values with units, as people type them. nullopt: not such a value, or out of range.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

namespace sigma {

// "10", "10s", "1.5s", "500ms", "2m", "1h": a bare number is seconds. Nanoseconds, never 0.
std::optional<uint64_t> parse_duration(std::string_view text);

// "65536", "64K", "8M", "1G" (also KiB, MiB, GiB): powers of 1024.
std::optional<uint64_t> parse_size(std::string_view text);

// "12.5" or "12.5%": more than 0, at most 100.
std::optional<double> parse_percent(std::string_view text);

// "12", "12,13": process ids. Repeated ones are kept once.
std::optional<std::vector<pid_t>> parse_pids(std::string_view text);

}  // namespace sigma
