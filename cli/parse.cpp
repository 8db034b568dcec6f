// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
#include "cli/parse.h"

#include <algorithm>
#include <array>
#include <charconv>

namespace sigma {
namespace {

struct Unit {
  std::string_view name;
  uint64_t factor;
};

// A non-negative decimal number in front of a unit, times its factor.
template <size_t N>
std::optional<double> scaled(std::string_view text, const std::array<Unit, N>& units) {
  double number = 0;
  const char* const end = text.data() + text.size();
  // Digits and a point only: from_chars would take "inf", "nan" and signs.
  if (text.empty() || (text[0] != '.' && (text[0] < '0' || text[0] > '9'))) return std::nullopt;
  const auto [stop, error] = std::from_chars(text.data(), end, number, std::chars_format::fixed);
  if (error != std::errc{}) return std::nullopt;
  const std::string_view unit(stop, static_cast<size_t>(end - stop));
  const auto row =
      std::find_if(units.begin(), units.end(), [&](const Unit& u) { return u.name == unit; });
  if (row == units.end()) return std::nullopt;
  return number * static_cast<double>(row->factor);
}

constexpr auto kDurations = std::to_array<Unit>({
    {"", 1'000'000'000},
    {"s", 1'000'000'000},
    {"ms", 1'000'000},
    {"us", 1'000},
    {"m", 60'000'000'000},
    {"min", 60'000'000'000},
    {"h", 3'600'000'000'000},
});

constexpr auto kSizes = std::to_array<Unit>({
    {"", 1},
    {"K", 1 << 10},
    {"KiB", 1 << 10},
    {"M", 1 << 20},
    {"MiB", 1 << 20},
    {"G", 1 << 30},
    {"GiB", 1 << 30},
});

constexpr auto kPercents = std::to_array<Unit>({{"", 1}, {"%", 1}});

constexpr double kExact = 9007199254740992.0;  // 2^53: beyond it a double skips integers

}  // namespace

std::optional<uint64_t> parse_duration(std::string_view text) {
  const auto ns = scaled(text, kDurations);
  if (!ns || *ns < 1 || *ns > kExact) return std::nullopt;
  return static_cast<uint64_t>(*ns);
}

std::optional<uint64_t> parse_size(std::string_view text) {
  const auto bytes = scaled(text, kSizes);
  if (!bytes || *bytes > kExact) return std::nullopt;
  return static_cast<uint64_t>(*bytes);
}

std::optional<double> parse_percent(std::string_view text) {
  const auto percent = scaled(text, kPercents);
  if (!percent || *percent <= 0 || *percent > 100) return std::nullopt;
  return percent;
}

std::optional<std::vector<pid_t>> parse_pids(std::string_view text) {
  constexpr pid_t kMaxPid = 1 << 22;  // PID_MAX_LIMIT of 64-bit kernels
  std::vector<pid_t> pids;
  for (;;) {
    const size_t comma = text.find(',');
    const std::string_view item = text.substr(0, comma);
    pid_t pid = 0;
    const auto [stop, error] = std::from_chars(item.data(), item.data() + item.size(), pid);
    if (error != std::errc{} || stop != item.data() + item.size() || pid < 1 || pid > kMaxPid)
      return std::nullopt;
    if (std::find(pids.begin(), pids.end(), pid) == pids.end()) pids.push_back(pid);
    if (comma == std::string_view::npos) return pids;
    text.remove_prefix(comma + 1);
  }
}

}  // namespace sigma
