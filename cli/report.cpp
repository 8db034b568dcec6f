// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// sigmatrace report: what traces say, in one pass over each.
#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "analysis/report.h"
#include "analysis/rows.h"
#include "analysis/trace_pass.h"
#include "base/terminal.h"
#include "cli/commands.h"
#include "output/coverage.h"

namespace sigma {
namespace {

struct ReportOptions {
  std::vector<std::string> traces;
  std::vector<std::string> by;
  std::string hosts;
  ReportSections sections;
  bool json = false;
};

Result<int> run(const ReportOptions& options) {
  ReportContext context;
  if (!options.hosts.empty()) {
    SIGMA_ASSIGN(context.hosts, Hosts::read(options.hosts));
  }
  const unsigned threads = std::max(1u, std::thread::hardware_concurrency());
  Rows rows({}, threads);
  for (const std::string& path : options.traces)
    SIGMA_CHECK(add_trace(path, threads, rows, context));
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
