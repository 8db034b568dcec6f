// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// sigmatrace report: what traces say, in one pass over each.
#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "analysis/report.h"
#include "analysis/rows.h"
#include "base/terminal.h"
#include "cli/commands.h"
#include "output/coverage.h"
#include "trace/replay.h"
#include "trace/trace_reader.h"

namespace sigma {
namespace {

struct ReportOptions {
  std::vector<std::string> traces;
  std::vector<std::string> by;
  std::string hosts;
  ReportSections sections;
  bool json = false;
};

std::optional<uint32_t> rank_in(const Replay::Facts& facts) {
  const auto found = facts.find("rank");
  if (found == facts.end()) return std::nullopt;
  uint32_t rank = 0;
  const std::string& text = found->second;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), rank);
  return error == std::errc{} && end == text.data() + text.size() ? std::optional(rank)
                                                                  : std::nullopt;
}

// One trace into `rows`, and its facts into `context`.
Status read_trace(const std::string& path, Rows& rows, ReportContext& context) {
  SIGMA_ASSIGN(const auto reader, TraceReader::open(path));
  const UtcClock clock(reader->meta().info.start_clock);
  const auto node = static_cast<uint32_t>(rows.nodes().size());
  rows.begin_trace(reader->meta().info.node.node, clock);
  Replay replay(*reader, rows);
  replay.run();

  const TraceInfo info = replay.info();
  for (const std::string& line : coverage_statement(info.counters, info.remarks)) {
    std::string text = node || rows.nodes().size() > 1 ? path + ": " + line : line;
    context.coverage.push_back(std::move(text));
  }
  context.lost_records += info.counters.records_dropped + info.counters.trace_missing;
  const uint64_t last_ns =
      std::max(reader->last_ns(), info.end_clock ? info.end_clock->monotonic_ns : 0);
  if (last_ns) context.end_ns = std::max(context.end_ns, clock.utc_ns(last_ns));
  const uint64_t first_ns = info.start_clock.monotonic_ns;
  if (last_ns > first_ns) context.duration_ns = std::max(context.duration_ns, last_ns - first_ns);
  for (const auto& [pid, facts] : replay.facts())
    if (const auto rank = rank_in(facts)) context.ranks[{node, pid}] = *rank;
  for (const auto& qp : info.queue_pairs) context.queue_pairs.emplace_back(node, qp);
  context.memory_regions.insert(context.memory_regions.end(), info.memory_regions.begin(),
                                info.memory_regions.end());
  return {};
}

Result<int> run(const ReportOptions& options) {
  ReportContext context;
  if (!options.hosts.empty()) {
    SIGMA_ASSIGN(context.hosts, Hosts::read(options.hosts));
  }
  Rows rows;
  for (const std::string& path : options.traces) SIGMA_CHECK(read_trace(path, rows, context));
  context.coverage.emplace_back(kOutOfSight);

  ReportSections sections = options.sections;
  for (const auto& [by, name] : kGroupings)
    if (std::find(options.by.begin(), options.by.end(), name) != options.by.end())
      sections.by.push_back(by);
  const Report report = make_report(rows, context);
  const std::string text =
      options.json ? report_json(report) : report_text(report, sections, style_for(STDOUT_FILENO));
  if (std::fwrite(text.data(), 1, text.size(), stdout) != text.size() || std::fflush(stdout) != 0)
    return Error{"cannot write to standard output: " + errno_text(errno)};
  return 0;
}

}  // namespace

Command add_report(CLI::App& app) {
  CLI::App* parser = app.add_subcommand("report", "What a trace says: verdict, totals, culprits");
  auto options = std::make_shared<ReportOptions>();
  parser->add_option("TRACE", options->traces, "Folders that attach -o DIR wrote")->required();
  std::vector<std::string> names;
  for (const auto& [by, name] : kGroupings) names.emplace_back(name);
  parser->add_option("--by", options->by, "Statistics by qp, peer, device, opcode, size, process")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->check(CLI::IsMember(names));
  ReportSections& sections = options->sections;
  parser->add_flag("--matrix", sections.matrix, "Who sent how much to whom, and the skew");
  parser->add_flag("--barriers", sections.barriers, "Barrier epochs: spread, and who was last");
  parser->add_flag("--stragglers", sections.stragglers, "Queue pairs and peers that are slow");
  parser->add_flag("--pending", sections.pending, "Posted and not complete, oldest first");
  parser->add_flag("--errors", sections.errors, "Errors with their first cause");
  parser->add_flag("--config", sections.config, "Attributes in which queue pairs differ");
  parser->add_flag("--rails", sections.rails, "Balance among NICs and ports");
  parser->add_option("--hosts", options->hosts, "File: ADDRESS HOST [RANK], one a line");
  parser->add_flag("--json", options->json, "All of it, for programs");
  return {parser, [options] { return run(*options); }};
}

}  // namespace sigma
