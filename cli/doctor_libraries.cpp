// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
#include "cli/doctor_libraries.h"

#include <fmt/format.h>

#include <map>
#include <nlohmann/json.hpp>

#include "attach/installed_libraries.h"
#include "attach/probe_table.h"
#include "base/human.h"
#include "output/table.h"
#include "resolve/resolver.h"

namespace sigma {
namespace {

void plan_one(Resolver& resolver, const std::string& path, const std::string& libibverbs,
              std::vector<LibraryPlan>& plans, Findings& findings) {
  auto plan = resolver.plan(path, libibverbs);
  if (plan.ok())
    plans.push_back(**plan);
  else
    findings.push_back(
        {"libraries", path, Verdict::note, "not covered: " + plan.error().what, plan.error().hint});
}

std::string place(const ProbeSite& site) {
  return site.delta ? fmt::format("{} (+{})", site.instruction, site.delta) : site.instruction;
}

}  // namespace

std::vector<LibraryPlan> plan_installed_libraries(Findings& findings) {
  std::vector<LibraryPlan> plans;
  Resolver resolver;
  const InstalledLibraries installed = installed_libraries("/");
  if (installed.libibverbs.empty()) {
    findings.push_back(
        {"libraries", "libibverbs", Verdict::note,
         "not installed here; containers that bring their own are covered all the same",
         "install libibverbs1 (Debian, Ubuntu) or libibverbs (RHEL)"});
    return plans;
  }
  plan_one(resolver, installed.libibverbs, installed.libibverbs, plans, findings);
  for (const std::string& provider : installed.providers)
    plan_one(resolver, provider, installed.libibverbs, plans, findings);
  return plans;
}

void add_library_findings(const std::vector<LibraryPlan>& plans, Findings& findings) {
  for (const LibraryPlan& plan : plans) {
    const size_t missing = plan.unresolved.size();
    Finding finding{"libraries", plan.name, missing ? Verdict::note : Verdict::ok, {}, {}};
    finding.detail =
        fmt::format("{}, build-id {}, {} probe sites", plan.path,
                    plan.build_id.empty() ? "unknown" : plan.build_id, plan.functions.size());
    if (missing) {
      finding.detail += fmt::format(", {} not covered", missing);
      finding.mend =
          fmt::format("{}: {}", to_string(plan.unresolved[0].function), plan.unresolved[0].reason);
    }
    for (const std::string& note : plan.notes) finding.detail += "; " + note;
    findings.push_back(std::move(finding));
  }
}

std::string probe_table_text(const std::vector<LibraryPlan>& plans, const Style& style) {
  using Align = Table::Align;
  Table table({{"library"},
               {"found by"},
               {"instruction"},
               {"cost", Align::right},
               {"return"},
               {"functions"}});
  for (const LibraryPlan& plan : plans) {
    std::map<std::vector<std::string>, std::string>
        groups;  // row without its functions -> functions
    for (const ResolvedFunction& each : plan.functions) {
      std::string& names = groups[{plan.name, std::string(route_name(each.route)), place(each.site),
                                   human_duration(each.site.expected_ns),
                                   each.return_site.return_valid ? "yes" : "no"}];
      names.append(names.empty() ? "" : " ").append(to_string(each.function));
    }
    for (auto& [cells, names] : groups) {
      auto row = cells;
      row.push_back(std::move(names));
      table.add(std::move(row));
    }
    for (const UnresolvedFunction& each : plan.unresolved)
      table.add({plan.name, "-", "-", "-", "-",
                 fmt::format("{}: {}", to_string(each.function), each.reason)});
  }
  return table.empty() ? std::string() : table.text(style);
}

nlohmann::ordered_json library_json(const LibraryPlan& plan) {
  using Json = nlohmann::ordered_json;
  Json functions = Json::array(), uncovered = Json::array();
  for (const ResolvedFunction& each : plan.functions)
    functions.push_back({{"function", to_string(each.function)},
                         {"symbol", each.symbol.empty() ? Json(nullptr) : Json(each.symbol)},
                         {"route", route_name(each.route)},
                         {"file_offset", fmt::format("{:#x}", each.site.file_offset)},
                         {"delta", each.site.delta},
                         {"instruction", each.site.instruction},
                         {"kind", instruction_kind_name(each.site.kind)},
                         {"expected_ns", each.site.expected_ns},
                         {"return_valid", each.return_site.return_valid}});
  for (const UnresolvedFunction& each : plan.unresolved)
    uncovered.push_back({{"function", to_string(each.function)}, {"reason", each.reason}});
  return {{"name", plan.name},
          {"path", plan.path},
          {"build_id", plan.build_id.empty() ? Json(nullptr) : Json(plan.build_id)},
          {"functions", std::move(functions)},
          {"uncovered", std::move(uncovered)},
          {"notes", plan.notes}};
}

}  // namespace sigma
