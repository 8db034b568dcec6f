// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// The report for people: coverage and verdict first, then what was asked for, or all that has
// something to say.
#include <fmt/format.h>

#include <algorithm>

#include "analysis/report.h"
#include "base/human.h"
#include "output/names.h"
#include "output/table.h"

namespace sigma {
namespace {

constexpr size_t kMaxRows = 20;

using Align = Table::Align;

std::string bits(double bytes_per_s) {
  return bytes_per_s > 0 ? fmt::format("{:.3g}", bytes_per_s * 8e-9) : "";
}

std::string latency(const Histogram& histogram, double fraction) {
  if (histogram.count() == 0) return "";
  return human_duration(fraction < 1 ? histogram.percentile(fraction) : histogram.max());
}

std::string nonzero(uint64_t count) {
  return count ? human_count(count) : "";
}

void title(std::string& out, const Style& style, std::string_view text) {
  out += "\n" + style.bold(text) + "\n";
}

void more(std::string& out, size_t shown, size_t all) {
  if (all > shown)
    out += fmt::format("  ... and {} more (all are in --json)\n", human_count(all - shown));
}

std::string table_of(std::span<const Group> groups, std::string_view what, const Style& style) {
  Table table({{what},
               {"operations", Align::right},
               {"bytes", Align::right},
               {"op/s", Align::right},
               {"Gb/s", Align::right},
               {"path Gb/s", Align::right},
               {"p50", Align::right},
               {"p95", Align::right},
               {"p99", Align::right},
               {"max", Align::right},
               {"depth", Align::right},
               {"max", Align::right},
               {"unfinished", Align::right},
               {"errors", Align::right},
               {"flushed", Align::right}});
  for (const Group& group : groups.first(std::min(groups.size(), kMaxRows))) {
    const Tally& tally = group.tally;
    const auto depth = tally.depth_mean();
    table.add({group.name, human_count(tally.operations), human_bytes(tally.bytes),
               tally.span_ns() ? human_rate(tally.operations_per_s()) : "",
               bits(tally.bytes_per_s()), bits(tally.path_bytes_per_s()),
               latency(tally.latency_ns, 0.5), latency(tally.latency_ns, 0.95),
               latency(tally.latency_ns, 0.99), latency(tally.latency_ns, 1),
               depth ? fmt::format("{:.1f}", *depth) : "", nonzero(tally.depth_max),
               nonzero(tally.unfinished), nonzero(tally.errors), nonzero(tally.flushed)});
  }
  std::string out = table.text(style);
  more(out, kMaxRows, groups.size());
  return out;
}

void add_matrix(std::string& out, const Matrix& matrix, const Style& style) {
  title(out, style, fmt::format("Matrix, {0} x {0} (in the direction of the data)", matrix.name));
  Table table({{"from"}, {"to"}, {"bytes", Align::right}, {"operations", Align::right}});
  std::vector<const Matrix::Flow*> flows;
  for (const auto& flow : matrix.flows) flows.push_back(&flow);
  std::stable_sort(flows.begin(), flows.end(),
                   [](const auto* a, const auto* b) { return a->bytes > b->bytes; });
  for (size_t i = 0; i < std::min(flows.size(), kMaxRows); ++i)
    table.add({flows[i]->from, flows[i]->to, human_bytes(flows[i]->bytes),
               human_count(flows[i]->operations)});
  out += table.text(style);
  more(out, kMaxRows, flows.size());
  if (matrix.skew)
    out += fmt::format("  skew: max/mean {:.2f}, max/min {:.2f}\n", matrix.skew->max_to_mean,
                       matrix.skew->max_to_min);
}

void add_barriers(std::string& out, const Report& report, const Style& style) {
  const Barriers& barriers = report.barriers;
  title(out, style, "Barriers");
  if (barriers.epochs == 0) {
    out += "  none found\n";
    return;
  }
  out += fmt::format("  {} epochs{}: spread p50 {}, p95 {}, p99 {}, max {}\n",
                     human_count(barriers.epochs), barriers.beyond ? " (the first ones)" : "",
                     latency(barriers.spread_ns, 0.5), latency(barriers.spread_ns, 0.95),
                     latency(barriers.spread_ns, 0.99), latency(barriers.spread_ns, 1));
  Table table({{"rank"},
               {"last", Align::right},
               {"share", Align::right},
               {"behind p50", Align::right},
               {"p99", Align::right}});
  for (size_t i = 0; i < barriers.ranks.size(); ++i) {
    const BarrierRank& rank = barriers.ranks[i];
    table.add({report.barrier_ranks[i], human_count(rank.last),
               fmt::format("{:.0f}%", 100.0 * static_cast<double>(rank.last) /
                                          static_cast<double>(barriers.epochs)),
               latency(rank.behind_ns, 0.5), latency(rank.behind_ns, 0.99)});
  }
  out += table.text(style);
}

void add_pending(std::string& out, const Report& report, const Style& style) {
  title(out, style, "Pending: posted and not complete at the end, oldest first");
  if (report.pending.empty()) {
    out += "  none\n";
    return;
  }
  Table table({{"age", Align::right},
               {"queue pair"},
               {"peer"},
               {"queue"},
               {"opcode"},
               {"bytes", Align::right},
               {"wr_id", Align::right}});
  for (size_t i = 0; i < std::min(report.pending.size(), kMaxRows); ++i) {
    const auto& [operation, queue_pair, peer, age_ns] = report.pending[i];
    table.add({age_ns ? human_duration(*age_ns) : "", queue_pair, peer,
               std::string(name_of(operation.queue)), std::string(to_string(operation.opcode)),
               operation.bytes ? human_bytes(*operation.bytes) : "",
               operation.wr_id ? fmt::format("{}", *operation.wr_id) : ""});
  }
  out += table.text(style);
  more(out, std::min(report.pending.size(), kMaxRows), report.totals.unfinished);
}

void add_errors(std::string& out, const Report& report, const Style& style) {
  title(out, style, "Errors, by queue pair, the first cause first");
  if (report.errors.empty()) {
    out += "  none\n";
    return;
  }
  for (size_t i = 0; i < std::min(report.errors.size(), kMaxRows); ++i) {
    const ErrorGroup& group = report.errors[i];
    out += fmt::format("  {}{}\n", group.queue_pair, group.peer.empty() ? "" : " -> " + group.peer);
    if (group.first) {
      out += fmt::format("    first: {}{}, {}{}\n", status_text(group.first->status),
                         group.first->vendor_err
                             ? fmt::format(" (vendor_err {:#x})", *group.first->vendor_err)
                             : "",
                         to_string(group.first->opcode),
                         group.first->wr_id ? fmt::format(", wr_id {}", *group.first->wr_id) : "");
      if (const auto meaning = meaning_of(group.first->status); !meaning.empty())
        out += fmt::format("    {}\n", meaning);
    }
    std::string counts;
    for (const auto& [status, count] : group.statuses)
      counts += fmt::format("{}{} {}", counts.empty() ? "" : ", ", human_count(count),
                            status_text(status));
    out += fmt::format("    in all: {}\n", counts);
  }
  more(out, kMaxRows, report.errors.size());
}

void add_config(std::string& out, const Report& report, const Style& style) {
  title(out, style, "Configuration: attributes in which connected queue pairs differ");
  if (report.config.empty()) {
    out += "  none\n";
    return;
  }
  Table table({{"of"},
               {"attribute"},
               {"value", Align::right},
               {"queue pairs", Align::right},
               {"for example"}});
  for (const ConfigDifference& difference : report.config)
    for (size_t i = 0; i < std::min<size_t>(difference.values.size(), 5); ++i) {
      const auto& value = difference.values[i];
      std::string examples;
      for (const auto& example : value.examples)
        examples.append(examples.empty() ? "" : " ").append(example);
      table.add({i ? "" : difference.where, i ? "" : difference.attribute, value.text,
                 human_count(value.queue_pairs), examples});
    }
  out += table.text(style);
}

void add_rails(std::string& out, const Report& report, const Style& style) {
  title(out, style, "Rails: what each port sent");
  out += report.rails.empty() ? "  none\n" : table_of(report.rails, "port", style);
  if (report.rail_skew)
    out += fmt::format("  balance: max/mean {:.2f}, max/min {:.2f}\n",
                       report.rail_skew->max_to_mean, report.rail_skew->max_to_min);
}

void add_receivers(std::string& out, const Report& report, const Style& style) {
  title(out, style, "Receivers: how many processes send to each at once");
  Table table({{"receiver"},
               {"senders", Align::right},
               {"at once", Align::right},
               {"at most", Align::right},
               {"busy", Align::right}});
  for (size_t i = 0; i < std::min(report.receivers.size(), kMaxRows); ++i) {
    const auto& [name, incast] = report.receivers[i];
    table.add({name, human_count(incast.senders), fmt::format("{:.2f}", incast.mean()),
               human_count(incast.most), human_duration(incast.busy_ns)});
  }
  out += table.text(style);
  more(out, kMaxRows, report.receivers.size());
}

void add_memory(std::string& out, const Report& report, const Style& style) {
  const auto& memory = report.memory;
  const RegistrationTotals& totals = memory.registrations;
  title(out, style, "Memory registration");
  if (totals.registrations || totals.failed)
    out += fmt::format(
        "  {} registrations of {} ({} at once at most), {} in all: p50 {}, p99 {}, max {}\n"
        "  {} deregistrations{}\n",
        human_count(totals.registrations), human_bytes(totals.bytes),
        human_bytes(totals.bytes_at_once), human_duration(totals.total_ns),
        latency(totals.register_ns, 0.5), latency(totals.register_ns, 0.99),
        latency(totals.register_ns, 1), human_count(totals.deregistrations),
        totals.failed ? fmt::format(", {} registrations failed", human_count(totals.failed)) : "");
  out +=
      fmt::format("  {} regions, {}; {} still registered at the end{}\n",
                  human_count(memory.regions), human_bytes(memory.bytes), human_count(memory.alive),
                  memory.older ? fmt::format("; {} made before the trace", memory.older) : "");
}

void add_ports(std::string& out, const Report& report, const Style& style) {
  title(out, style, "Ports: counters that moved");
  Table table(
      {{"port"}, {"counter"}, {"by", Align::right}, {"a second", Align::right}, {"which means"}});
  for (size_t i = 0; i < std::min(report.ports.size(), 2 * kMaxRows); ++i) {
    const Report::PortCounter& counter = report.ports[i];
    const uint64_t unit = counter.meaning.unit_bytes;
    const auto rate_bytes = static_cast<uint64_t>(counter.per_second * static_cast<double>(unit));
    const std::string by = unit ? human_bytes(counter.increase * unit) : human_count(counter.increase);
    const std::string rate = unit ? human_bytes(rate_bytes) : human_rate(counter.per_second);
    table.add({counter.port, counter.counter, by, counter.per_second > 0 ? rate : "",
               std::string(counter.meaning.text)});
  }
  out += table.text(style);
  more(out, 2 * kMaxRows, report.ports.size());
}

void add_pick_ups(std::string& out, const Report& report, const Style& style) {
  title(out, style, "Pick-up: how long completions lay in their queue until a poll returned them");
  Table table({{"queue pair"},
               {"process"},
               {"queue"},
               {"picked up", Align::right},
               {"p50", Align::right},
               {"p95", Align::right},
               {"p99", Align::right},
               {"max", Align::right},
               {"error", Align::right}});
  for (size_t i = 0; i < std::min(report.pick_ups.size(), kMaxRows); ++i) {
    const Report::PickUps& each = report.pick_ups[i];
    table.add({each.queue_pair, each.process, std::string(name_of(each.queue)), human_count(each.delay_ns.count()),
               latency(each.delay_ns, 0.5), latency(each.delay_ns, 0.95), latency(each.delay_ns, 0.99),
               latency(each.delay_ns, 1), "+-" + human_duration(each.error_ns)});
  }
  out += table.text(style);
  more(out, kMaxRows, report.pick_ups.size());
}

void add_marks(std::string& out, const Report& report, const Style& style) {
  title(out, style, "Marks: look here");
  Table table({{"time (UTC ns)", Align::right}, {"node"}, {"reason"}, {"what"}});
  for (size_t i = 0; i < std::min(report.marks.size(), kMaxRows); ++i) {
    const Report::Mark& mark = report.marks[i];
    table.add({fmt::format("{}", mark.time_ns), mark.node, mark.reason, mark.text});
  }
  out += table.text(style);
  more(out, kMaxRows, report.marks.size());
}

}  // namespace

std::string report_text(const Report& report, const ReportSections& sections, const Style& style) {
  std::string out = style.bold("Coverage") + "\n";
  for (const auto& line : report.coverage) out += "  " + printable(line) + "\n";

  title(out, style, "Verdict");
  if (report.verdict.empty()) out += "  " + style.good("nothing stands out") + "\n";
  for (const ReportFinding& finding : report.verdict)
    out += fmt::format("  {} {}\n", style.warn(fmt::format("[{}]", to_string(finding.kind))),
                       finding.text);

  const Tally& totals = report.totals;
  title(out, style, "Totals");
  out += fmt::format("  {}, {}, in {}; {}, {}, {}\n", plural(totals.operations, "operation"),
                     human_bytes(totals.bytes),
                     human_duration(report.duration_ns ? report.duration_ns : totals.span_ns()),
                     plural(report.queue_pairs, "queue pair"), plural(report.peers, "peer"),
                     report.processes == 1 ? "1 process"
                                           : human_count(report.processes) + " processes");
  if (totals.latency_ns.count())
    out += fmt::format("  latency p50 {}, p95 {}, p99 {}, max {}\n",
                       latency(totals.latency_ns, 0.5), latency(totals.latency_ns, 0.95),
                       latency(totals.latency_ns, 0.99), latency(totals.latency_ns, 1));
  if (totals.unfinished || totals.errors || totals.flushed)
    out += fmt::format("  {} unfinished, {}, {} flushed\n", human_count(totals.unfinished),
                       plural(totals.errors, "error"), human_count(totals.flushed));

  const bool all = sections.all();
  for (const auto& [by, name] : kGroupings) {
    const bool named = std::find(sections.by.begin(), sections.by.end(), by) != sections.by.end();
    const auto groups = report.groups.find(by);
    if (groups == report.groups.end() || !(named || all)) continue;
    title(out, style, fmt::format("By {}", name));
    out += table_of(groups->second, name, style);
  }
  if (sections.matrix || all)
    for (const Matrix& matrix : report.matrices) add_matrix(out, matrix, style);
  if (sections.barriers || (all && report.barriers.epochs)) add_barriers(out, report, style);
  if (sections.stragglers || (all && !report.stragglers.empty())) {
    title(out, style, "Stragglers: who departs from those of the same device, opcode and size");
    if (report.stragglers.empty()) out += "  none\n";
    for (const ReportFinding& finding : report.stragglers) out += "  " + finding.text + "\n";
  }
  if (sections.pending || (all && !report.pending.empty())) add_pending(out, report, style);
  if (sections.errors || (all && !report.errors.empty())) add_errors(out, report, style);
  if (sections.config || (all && !report.config.empty())) add_config(out, report, style);
  if (sections.rails || (all && report.rails.size() > 1)) add_rails(out, report, style);
  if (sections.rails || (all && report.receivers.size() > 1)) add_receivers(out, report, style);
  const auto& registrations = report.memory.registrations;
  if (all && (report.memory.regions || registrations.registrations || registrations.failed))
    add_memory(out, report, style);
  if (all && !report.ports.empty()) add_ports(out, report, style);
  if (all && !report.pick_ups.empty()) add_pick_ups(out, report, style);
  if (all && !report.marks.empty()) add_marks(out, report, style);
  return out;
}

}  // namespace sigma
