// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
#include "trace/trace_meta.h"

#include <fmt/format.h>

#include <charconv>
#include <nlohmann/json.hpp>
#include <optional>

namespace sigma {
namespace {

using Json = nlohmann::ordered_json;

// Every access says what type it expects; another one counts as missing.
const Json& member(const Json& object, const char* name) {
  static const Json kNull;
  if (!object.is_object()) return kNull;
  const auto found = object.find(name);
  return found == object.end() ? kNull : *found;
}

std::string text(const Json& object, const char* name) {
  const Json& value = member(object, name);
  return value.is_string() ? value.get_ref<const std::string&>() : std::string();
}

uint64_t number(const Json& object, const char* name) {
  const Json& value = member(object, name);
  return value.is_number_unsigned() ? value.get<uint64_t>() : 0;
}

bool yes(const Json& object, const char* name) {
  const Json& value = member(object, name);
  return value.is_boolean() && value.get<bool>();
}

std::vector<std::string> texts(const Json& array) {
  std::vector<std::string> out;
  if (!array.is_array()) return out;
  for (const Json& value : array)
    if (value.is_string()) out.push_back(value.get_ref<const std::string&>());
  return out;
}

std::string uuid_text(const Uuid& uuid) {
  std::string out;
  for (const uint8_t byte : uuid) out += fmt::format("{:02x}", byte);
  return out;
}

std::optional<Uuid> parse_uuid(std::string_view digits) {
  Uuid uuid{};
  if (digits.size() != 2 * uuid.size()) return std::nullopt;
  for (size_t i = 0; i < uuid.size(); ++i) {
    const char* at = digits.data() + 2 * i;
    if (std::from_chars(at, at + 2, uuid[i], 16).ptr != at + 2) return std::nullopt;
  }
  return uuid;
}

Json counters_json(const Counters& counters) {
  Json out = Json::object();
  for (const CounterInfo& counter : kCounters)
    if (counters.*counter.value) out[std::string(counter.name)] = counters.*counter.value;
  return out;
}

Counters parse_counters(const Json& object) {
  Counters counters;
  for (const CounterInfo& counter : kCounters)
    counters.*counter.value = number(object, std::string(counter.name).c_str());
  return counters;
}

ClockPair parse_clock(const Json& object) {
  return {number(object, "monotonic_ns"), number(object, "utc_ns"), number(object, "error_ns")};
}

LibraryInfo parse_library(const Json& object) {
  LibraryInfo library{text(object, "name"), text(object, "path"), text(object, "build_id"), {}, {}};
  if (const Json& probes = member(object, "probes"); probes.is_array())
    for (const Json& probe : probes) {
      ProbeInfo info{.function = text(probe, "function"),
                     .route = text(probe, "route"),
                     .instruction = text(probe, "instruction"),
                     .link = text(probe, "link")};
      const std::string offset = text(probe, "file_offset");
      if (offset.starts_with("0x"))
        std::from_chars(offset.data() + 2, offset.data() + offset.size(), info.file_offset, 16);
      info.expected_ns = static_cast<uint32_t>(number(probe, "expected_ns"));
      info.at_return = yes(probe, "at_return");
      library.probes.push_back(std::move(info));
    }
  if (const Json& uncovered = member(object, "uncovered"); uncovered.is_array())
    for (const Json& function : uncovered)
      library.uncovered.push_back({text(function, "function"), text(function, "reason")});
  return library;
}

}  // namespace

std::string trace_meta_json(const TraceMeta& meta) {
  Json document = {
      {"format", "sigmatrace-trace"},
      {"format_version", kTraceFormatVersion},
      {"record_version", SIGMA_RECORD_VERSION},
      {"uuid", uuid_text(meta.uuid)},
      {"max_size_bytes", meta.max_size_bytes},
      {"records", meta.records},
      {"attacher_counters", counters_json(meta.attacher)},
      {"remarks", meta.info.remarks},
  };
  const Json side = Json::parse(meta_json(meta.info), nullptr, false);
  for (const auto& [name, value] : side.items()) document[name] = value;
  return document.dump(1, ' ', false, Json::error_handler_t::replace) + "\n";
}

Result<TraceMeta> parse_trace_meta(std::string_view input) {
  const Json document = Json::parse(input.begin(), input.end(), nullptr, false);
  if (!document.is_object() || text(document, "format") != "sigmatrace-trace")
    return Error{"meta.json is not that of a trace", "name the folder that `attach -o DIR` wrote"};
  // Only what it is: the tracer ended before it said more.
  if (document.size() == 1)
    return Error{"the trace has no beginning: its tracer was stopped at once"};
  const auto version = number(document, "format_version");
  const auto records = number(document, "record_version");
  if (version != kTraceFormatVersion || records != SIGMA_RECORD_VERSION)
    return Error{fmt::format("the trace has format {}, records {}; this program reads format {}, "
                             "records {}",
                             version, records, kTraceFormatVersion, SIGMA_RECORD_VERSION),
                 "read it with the sigmatrace that wrote it: " +
                     (text(document, "tool_version").empty() ? "version unknown"
                                                             : text(document, "tool_version"))};
  TraceMeta meta;
  const auto uuid = parse_uuid(text(document, "uuid"));
  if (!uuid) return Error{"meta.json has no valid uuid: the trace is damaged"};
  meta.uuid = *uuid;
  meta.max_size_bytes = number(document, "max_size_bytes");
  meta.records = number(document, "records");
  meta.attacher = parse_counters(member(document, "attacher_counters"));
  TraceInfo& info = meta.info;
  info.remarks = texts(member(document, "remarks"));
  info.tool_version = text(document, "tool_version");
  info.command_line = texts(member(document, "command_line"));
  info.node = {text(document, "node"), text(document, "boot_id"), text(document, "kernel")};
  info.complete = yes(document, "complete");
  info.end_reason = text(document, "end_reason");
  const Json& clocks = member(document, "clocks");
  info.start_clock = parse_clock(member(clocks, "start"));
  if (member(clocks, "end").is_object()) info.end_clock = parse_clock(member(clocks, "end"));
  const Json& coverage = member(document, "coverage");
  info.counters = parse_counters(member(coverage, "counters"));
  if (const Json& libraries = member(coverage, "libraries"); libraries.is_array())
    for (const Json& library : libraries) info.libraries.push_back(parse_library(library));
  return meta;
}

}  // namespace sigma
