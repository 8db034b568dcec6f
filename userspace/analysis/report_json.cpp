// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// The whole report, for programs. Units in the names; null = unknown. Members are only ever added.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "analysis/report.h"
#include "output/names.h"

namespace sigma {
namespace {

using Json = nlohmann::ordered_json;

Json latency(const Histogram& histogram) {
  if (histogram.count() == 0) return nullptr;
  return {{"count", histogram.count()},
          {"p50_ns", histogram.percentile(0.5)},
          {"p95_ns", histogram.percentile(0.95)},
          {"p99_ns", histogram.percentile(0.99)},
          {"max_ns", histogram.max()}};
}

Json tally(const Tally& tally) {
  const bool timed = tally.last_ns > 0;
  const auto depth = tally.depth_mean();
  return {{"operations", tally.operations},
          {"bytes", tally.bytes},
          {"completed", tally.completed},
          {"unfinished", tally.unfinished},
          {"errors", tally.errors},
          {"flushed", tally.flushed},
          {"first_ns", timed ? Json(tally.first_ns) : Json(nullptr)},
          {"last_ns", timed ? Json(tally.last_ns) : Json(nullptr)},
          {"bytes_per_s", tally.span_ns() ? Json(tally.bytes_per_s()) : Json(nullptr)},
          {"operations_per_s", tally.span_ns() ? Json(tally.operations_per_s()) : Json(nullptr)},
          {"path_bytes_per_s", tally.busy_ns ? Json(tally.path_bytes_per_s()) : Json(nullptr)},
          {"busy_ns", tally.busy_ns},
          {"depth_mean", depth ? Json(*depth) : Json(nullptr)},
          {"depth_max", tally.depth_max ? Json(tally.depth_max) : Json(nullptr)},
          {"latency", latency(tally.latency_ns)}};
}

Json groups(const std::vector<Group>& list) {
  Json out = Json::array();
  for (const Group& group : list) {
    Json entry = {{"name", group.name}};
    entry.update(tally(group.tally));
    out.push_back(std::move(entry));
  }
  return out;
}

Json findings(const std::vector<ReportFinding>& list) {
  Json out = Json::array();
  for (const ReportFinding& finding : list)
    out.push_back({{"kind", to_string(finding.kind)},
                   {"subject", finding.subject},
                   {"ratio", finding.ratio > 0 ? Json(finding.ratio) : Json(nullptr)},
                   {"text", finding.text}});
  return out;
}

Json skew(const std::optional<Skew>& skew) {
  if (!skew) return nullptr;
  return {{"max_to_mean", skew->max_to_mean}, {"max_to_min", skew->max_to_min}};
}

Json matrices(const Report& report) {
  Json out = Json::object();
  for (const Matrix& matrix : report.matrices) {
    Json flows = Json::array();
    for (const auto& flow : matrix.flows)
      flows.push_back({{"from", flow.from},
                       {"to", flow.to},
                       {"bytes", flow.bytes},
                       {"operations", flow.operations}});
    out[std::string(matrix.name)] = {{"flows", std::move(flows)}, {"skew", skew(matrix.skew)}};
  }
  return out;
}

Json barriers(const Report& report) {
  const Barriers& found = report.barriers;
  Json ranks = Json::array(), widest = Json::array();
  for (size_t i = 0; i < found.ranks.size(); ++i)
    ranks.push_back({{"name", report.barrier_ranks[i]},
                     {"pid", found.ranks[i].pid},
                     {"last", found.ranks[i].last},
                     {"behind", latency(found.ranks[i].behind_ns)}});
  for (const BarrierEpoch& epoch : found.widest)
    widest.push_back({{"begin_ns", epoch.begin_ns},
                      {"spread_ns", epoch.spread_ns},
                      {"last", report.barrier_ranks[epoch.last]}});
  return {{"epochs", found.epochs},
          {"first_epochs_only", found.beyond},
          {"spread", latency(found.spread_ns)},
          {"ranks", std::move(ranks)},
          {"widest", std::move(widest)}};
}

template <typename T>
Json number(const std::optional<T>& value) {
  return value ? Json(*value) : Json(nullptr);
}

Json pending(const Report& report) {
  Json out = Json::array();
  for (const auto& [operation, queue_pair, peer, age_ns] : report.pending)
    out.push_back({{"queue_pair", queue_pair},
                   {"peer", peer},
                   {"queue", name_of(operation.queue)},
                   {"opcode", to_string(operation.opcode)},
                   {"bytes", number(operation.bytes)},
                   {"wr_id", number(operation.wr_id)},
                   {"time_ns", number(operation.time_ns)},
                   {"age_ns", number(age_ns)}});
  return out;
}

Json errors(const Report& report) {
  Json out = Json::array();
  for (const ErrorGroup& group : report.errors) {
    Json counts = Json::object(), first = nullptr;
    for (const auto& [status, count] : group.statuses) counts[status_text(status)] = count;
    if (group.first)
      first = {{"status", status_text(group.first->status)},
               {"vendor_err", number(group.first->vendor_err)},
               {"opcode", to_string(group.first->opcode)},
               {"queue", name_of(group.first->queue)},
               {"wr_id", number(group.first->wr_id)},
               {"complete_ns", number(group.first->complete_ns)},
               {"meaning", meaning_of(group.first->status)}};
    out.push_back({{"queue_pair", group.queue_pair},
                   {"peer", group.peer},
                   {"first", std::move(first)},
                   {"statuses", std::move(counts)}});
  }
  return out;
}

Json config(const Report& report) {
  Json out = Json::array();
  for (const ConfigDifference& difference : report.config) {
    Json values = Json::array();
    for (const auto& value : difference.values)
      values.push_back({{"value", value.text},
                        {"queue_pairs", value.queue_pairs},
                        {"examples", value.examples}});
    out.push_back({{"where", difference.where},
                   {"attribute", difference.attribute},
                   {"values", std::move(values)}});
  }
  return out;
}

Json receivers(const Report& report) {
  Json out = Json::array();
  for (const auto& [name, incast] : report.receivers)
    out.push_back({{"name", name},
                   {"senders", incast.senders},
                   {"senders_at_once_max", incast.most},
                   {"senders_at_once_max_ns", incast.most_ns},
                   {"senders_at_once_mean", incast.mean()},
                   {"busy_ns", incast.busy_ns}});
  return out;
}

Json memory(const Report& report) {
  const RegistrationTotals& totals = report.memory.registrations;
  return {{"regions", report.memory.regions},
          {"bytes", report.memory.bytes},
          {"alive", report.memory.alive},
          {"older_than_trace", report.memory.older},
          {"registrations", totals.registrations},
          {"registrations_failed", totals.failed},
          {"deregistrations", totals.deregistrations},
          {"registered_bytes", totals.bytes},
          {"registered_bytes_at_once_max", totals.bytes_at_once},
          {"register_total_ns", totals.total_ns},
          {"register_time", latency(totals.register_ns)}};
}

std::string_view word_of(CounterSense sense) {
  switch (sense) {
    case CounterSense::traffic:
      return "traffic";
    case CounterSense::congestion:
      return "congestion";
    case CounterSense::trouble:
      return "trouble";
  }
  return "";
}

Json ports(const Report& report) {
  Json out = Json::array();
  for (const Report::PortCounter& counter : report.ports)
    out.push_back(
        {{"port", counter.port},
         {"counter", counter.counter},
         {"increase", counter.increase},
         {"increase_bytes", counter.meaning.unit_bytes ? Json(counter.increase * counter.meaning.unit_bytes)
                                                       : Json(nullptr)},
         {"per_second", counter.per_second > 0 ? Json(counter.per_second) : Json(nullptr)},
         {"sense", word_of(counter.meaning.sense)},
         {"meaning", counter.meaning.text}});
  return out;
}

Json pick_ups(const Report& report) {
  Json out = Json::array();
  for (const Report::PickUps& each : report.pick_ups)
    out.push_back({{"queue_pair", each.queue_pair},
                   {"process", each.process},
                   {"queue", name_of(each.queue)},
                   {"delay", latency(each.delay_ns)},
                   {"error_ns_max", each.error_ns}});
  return out;
}

Json marks(const Report& report) {
  Json out = Json::array();
  for (const Report::Mark& mark : report.marks)
    out.push_back({{"time_ns", mark.time_ns},
                   {"reason", mark.reason},
                   {"text", mark.text},
                   {"node", mark.node}});
  return out;
}

}  // namespace

std::string report_json(const Report& report) {
  Json by = Json::object();
  for (const auto& [grouping, name] : kGroupings) {
    const auto found = report.groups.find(grouping);
    by[std::string(name)] = found == report.groups.end() ? Json::array() : groups(found->second);
  }
  Json totals = tally(report.totals);
  totals["queue_pairs"] = report.queue_pairs;
  totals["peers"] = report.peers;
  totals["processes"] = report.processes;
  totals["duration_ns"] = report.duration_ns;
  const Json document = {
      {"schema_version", 1},
      {"coverage", report.coverage},
      {"verdict", findings(report.verdict)},
      {"totals", std::move(totals)},
      {"by", std::move(by)},
      {"matrix", matrices(report)},
      {"barriers", barriers(report)},
      {"stragglers", findings(report.stragglers)},
      {"pending", pending(report)},
      {"errors", errors(report)},
      {"config", config(report)},
      {"rails",
       {{"ports", groups(report.rails)},
        {"skew", skew(report.rail_skew)},
        {"receivers", receivers(report)}}},
      {"memory", memory(report)},
      {"port_counters", ports(report)},
      {"marks", marks(report)},
      {"pick_ups", pick_ups(report)},
  };
  return document.dump(1, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace sigma
