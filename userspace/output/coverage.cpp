// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
#include "output/coverage.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/human.h"

namespace sigma {

std::vector<CoverageLine> coverage_lines(const Counters& counters) {
  std::vector<CoverageLine> lines;
  for (const CounterInfo& info : kCounters) {
    const uint64_t value = counters.*info.value;
    if (info.severity == Severity::info || value == 0) continue;
    lines.push_back({info.severity, fmt::format("{}: {}", info.help, human_count(value))});
  }
  std::stable_sort(lines.begin(), lines.end(),
                   [](const auto& a, const auto& b) { return a.severity > b.severity; });
  return lines;
}

std::vector<std::string> coverage_statement(const Counters& counters,
                                            std::span<const std::string> remarks) {
  std::vector<std::string> statement;
  for (const auto& line : coverage_lines(counters))
    statement.push_back(fmt::format("{}: {}", to_string(line.severity), line.text));
  statement.insert(statement.end(), remarks.begin(), remarks.end());
  if (statement.empty()) statement.emplace_back(kNothingMissing);
  return statement;
}

std::string_view to_string(Severity severity) {
  switch (severity) {
    case Severity::info:
      return "info";
    case Severity::gap:
      return "gap";
    case Severity::loss:
      return "loss";
    case Severity::error:
      return "error";
  }
  return "";
}

}  // namespace sigma
