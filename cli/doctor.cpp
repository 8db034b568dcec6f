// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// sigmatrace doctor: what this machine can trace, what is missing, how to mend it.
#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/terminal.h"
#include "cli/commands.h"
#include "cli/doctor_libraries.h"
#include "cli/findings.h"
#include "output/table.h"

namespace sigma {
namespace {

struct DoctorOptions {
  bool json = false;
};

bool is_possible(const Findings& findings) {
  return std::none_of(findings.begin(), findings.end(),
                      [](const Finding& f) { return f.verdict == Verdict::problem; });
}

std::string coloured(Verdict verdict, const Style& style) {
  const std::string word = fmt::format("{:<7}", to_string(verdict));
  switch (verdict) {
    case Verdict::ok:
      return style.good(word);
    case Verdict::note:
      return style.warn(word);
    case Verdict::problem:
      return style.bad(word);
  }
  return word;
}

std::string text_of(const Findings& findings, const std::vector<LibraryPlan>& plans,
                    const Style& style) {
  std::string out;
  size_t width = 0;
  for (const Finding& finding : findings) width = std::max(width, finding.name.size());
  std::string_view area;
  for (const Finding& finding : findings) {
    if (finding.area != area)
      out += fmt::format("{}{}\n", area.empty() ? "" : "\n", style.bold(finding.area));
    area = finding.area;
    out += fmt::format("  {}  {:<{}}  {}\n", coloured(finding.verdict, style), finding.name, width,
                       finding.detail);
    if (!finding.mend.empty())
      out += fmt::format("  {:<7}  {:<{}}  {} {}\n", "", "", width, style.dim("->"), finding.mend);
  }
  if (const std::string table = probe_table_text(plans, style); !table.empty())
    out += fmt::format("\n{}\n{}", style.bold("probe sites"), table);
  out +=
      fmt::format("\n{}\n", is_possible(findings)
                                ? style.good("this machine can trace")
                                : style.bad("nothing can be traced until the problems are mended"));
  return out;
}

std::string json_of(const Findings& findings, const std::vector<LibraryPlan>& plans) {
  using Json = nlohmann::ordered_json;
  Json rows = Json::array(), libraries = Json::array();
  for (const Finding& finding : findings)
    rows.push_back({{"area", finding.area},
                    {"name", finding.name},
                    {"verdict", to_string(finding.verdict)},
                    {"detail", finding.detail},
                    {"mend", finding.mend.empty() ? Json(nullptr) : Json(finding.mend)}});
  for (const LibraryPlan& plan : plans) libraries.push_back(library_json(plan));
  const Json document = {{"possible", is_possible(findings)},
                         {"findings", std::move(rows)},
                         {"libraries", std::move(libraries)}};
  return document.dump(1, ' ', false, Json::error_handler_t::replace) + "\n";
}

int run_doctor(const DoctorOptions& options) {
  Findings findings;
  add_kernel_findings(findings);
  add_device_findings(findings);
  const auto plans = plan_installed_libraries(findings);
  add_library_findings(plans, findings);
  put(stdout,
      options.json ? json_of(findings, plans) : text_of(findings, plans, style_for(STDOUT_FILENO)));
  return is_possible(findings) ? 0 : 1;
}

}  // namespace

std::string_view to_string(Verdict verdict) {
  switch (verdict) {
    case Verdict::ok:
      return "ok";
    case Verdict::note:
      return "note";
    case Verdict::problem:
      return "problem";
  }
  return "";
}

Command add_doctor(CLI::App& app) {
  const auto options = std::make_shared<DoctorOptions>();
  CLI::App* parser =
      app.add_subcommand("doctor", "What this machine can trace, what is missing, how to mend it");
  parser->add_flag("--json", options->json, "everything found, as JSON on standard output");
  parser->footer(R"(EXAMPLES
  sudo sigmatrace doctor
      The findings, each ok, note or problem. Exit status 1 when there is a problem.
  sudo sigmatrace doctor --json | jq '.findings[] | select(.verdict != "ok")'
      What is not as it should be, for scripts.
)");
  return {parser, [options] { return Result<int>(run_doctor(*options)); }};
}

}  // namespace sigma
