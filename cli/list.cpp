// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// sigmatrace list: who uses RDMA now.
#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "attach/inventory.h"
#include "base/human.h"
#include "base/terminal.h"
#include "cli/commands.h"
#include "output/names.h"
#include "output/table.h"

namespace sigma {
namespace {

using Align = Table::Align;
using Json = nlohmann::ordered_json;

struct ListOptions {
  bool json = false;
  bool qps = false;
};

std::string fact(const InventoryProcess& process, const char* key) {
  const auto found = process.facts.find(key);
  return found == process.facts.end() ? std::string() : found->second;
}

std::string words(const std::vector<std::string>& list) {
  std::string text;
  for (const std::string& word : list) text.append(text.empty() ? "" : " ").append(word);
  return text;
}

std::string type_of(const InventoryQp& qp) {
  return std::string(qp.type ? qp_type_name(*qp.type) : "");
}
std::string state_of(const InventoryQp& qp) {
  return std::string(qp.state ? qp_state_name(*qp.state) : "");
}

std::string driver_of(const InventoryQp& qp) {
  std::string text(to_string(qp.driver));
  if (!qp.why.empty()) text += fmt::format(" ({})", printable(qp.why));
  return text;
}

// "12 rc rts, 1 ud rts"
template <typename NameOf>
std::string counted(const std::vector<InventoryQp>& qps, const NameOf& name_of) {
  std::map<std::string, size_t> counts;
  for (const InventoryQp& qp : qps) ++counts[name_of(qp)];
  std::string text;
  for (const auto& [name, count] : counts)
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", count, name);
  return text;
}

std::string as_text(const Inventory& inventory, const ListOptions& options, const Style& style) {
  Table processes({{"pid", Align::right},
                   {"command"},
                   {"user"},
                   {"job", Align::right},
                   {"rank", Align::right},
                   {"container"},
                   {"devices"},
                   {"queue pairs"},
                   {"driven by"},
                   {"regions", Align::right},
                   {"registered", Align::right}});
  for (const InventoryProcess& process : inventory.processes)
    processes.add({fmt::format("{}", process.pid), process.command, process.user,
                   fact(process, "slurm_job_id"), fact(process, "rank"), fact(process, "container"),
                   words(process.devices),
                   counted(process.qps,
                           [](const InventoryQp& qp) {
                             const std::string type = type_of(qp), state = state_of(qp);
                             return (type.empty() ? "of unknown type" : type) +
                                    (state.empty() ? "" : " " + state);
                           }),
                   counted(process.qps, driver_of), human_count(process.memory_regions),
                   human_bytes(process.memory_region_bytes)});
  std::string out;
  if (inventory.processes.empty())
    out += "no process uses RDMA now\n";
  else
    out += processes.text(style);

  if (options.qps) {
    Table qps({{"pid", Align::right},
               {"device"},
               {"port", Align::right},
               {"qp", Align::right},
               {"type"},
               {"state"},
               {"peer qp", Align::right},
               {"driven by"}});
    const auto add = [&](const std::string& pid, const InventoryQp& qp) {
      qps.add({pid, qp.device, qp.port ? fmt::format("{}", *qp.port) : "",
               fmt::format("{}", qp.number), type_of(qp), state_of(qp),
               qp.peer_number ? fmt::format("{}", *qp.peer_number) : "", driver_of(qp)});
    };
    for (const InventoryProcess& process : inventory.processes)
      for (const InventoryQp& qp : process.qps) add(fmt::format("{}", process.pid), qp);
    for (const InventoryQp& qp : inventory.kernel_qps) add("", qp);
    if (!qps.empty()) out += "\n" + qps.text(style);
  } else if (!inventory.kernel_qps.empty()) {
    out += fmt::format("\n  queue pairs of kernel modules: {}\n",
                       counted(inventory.kernel_qps, [](const InventoryQp& qp) {
                         return printable(qp.why) + " on " + qp.device;
                       }));
  }
  for (const std::string& note : inventory.notes)
    out += fmt::format("  {}   {}\n", style.dim("note"), note);
  return out;
}

template <typename T>
Json number(const std::optional<T>& value) {
  return value ? Json(*value) : Json(nullptr);
}

Json word(const std::string& text) {
  return text.empty() ? Json(nullptr) : Json(text);
}

Json qp_json(const InventoryQp& qp) {
  return {{"device", word(qp.device)},
          {"port", number(qp.port)},
          {"qp_num", qp.number},
          {"qp_type", word(type_of(qp))},
          {"state", word(state_of(qp))},
          {"peer_qp_num", number(qp.peer_number)},
          {"driven_by", to_string(qp.driver)},
          {"because_of", word(qp.why)},
          {"in_kernel_list", qp.in_kernel_list},
          {"in_memory", qp.in_memory}};
}

std::string as_json(const Inventory& inventory) {
  Json processes = Json::array(), kernel = Json::array(), devices = Json::array();
  for (const InventoryProcess& process : inventory.processes) {
    Json qps = Json::array(), facts = Json::object();
    for (const InventoryQp& qp : process.qps) qps.push_back(qp_json(qp));
    for (const auto& [key, value] : process.facts) facts[key] = value;
    processes.push_back({{"pid", process.pid},
                         {"command", process.command},
                         {"user", word(process.user)},
                         {"facts", std::move(facts)},
                         {"devices", process.devices},
                         {"qps", std::move(qps)},
                         {"memory_regions", process.memory_regions},
                         {"memory_region_bytes", process.memory_region_bytes}});
  }
  for (const InventoryQp& qp : inventory.kernel_qps) kernel.push_back(qp_json(qp));
  for (const SysfsDevice& device : inventory.devices) devices.push_back(device.name);
  const Json document = {{"schema_version", 1},
                         {"devices", std::move(devices)},
                         {"processes", std::move(processes)},
                         {"kernel_qps", std::move(kernel)},
                         {"notes", inventory.notes}};
  return document.dump(1, ' ', false, Json::error_handler_t::replace) + "\n";
}

Result<int> run(const ListOptions& options) {
  const Inventory inventory = take_inventory();
  const std::string text =
      options.json ? as_json(inventory) : as_text(inventory, options, style_for(STDOUT_FILENO));
  if (std::fwrite(text.data(), 1, text.size(), stdout) != text.size() || std::fflush(stdout) != 0)
    return Error{"cannot write to standard output: " + errno_text(errno)};
  return 0;
}

constexpr const char* kExamples = R"(EXAMPLES
  sudo sigmatrace list
      Processes that use RDMA, one line each.
  sudo sigmatrace list --qps
      Each queue pair as well, with its peer.
)";

}  // namespace

Command add_list(CLI::App& app) {
  CLI::App* parser = app.add_subcommand("list", "Who uses RDMA now, without attaching anything");
  auto options = std::make_shared<ListOptions>();
  parser->footer(kExamples);
  parser->add_flag("--qps", options->qps, "Each queue pair as well");
  parser->add_flag("--json", options->json, "All of it, for programs");
  return {parser, [options] { return run(*options); }};
}

}  // namespace sigma
