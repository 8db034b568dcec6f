// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
#include "analysis/trace_pass.h"

#include <algorithm>
#include <charconv>

#include "base/text_field.h"
#include "output/coverage.h"
#include "trace/replay.h"
#include "trace/trace_reader.h"

namespace sigma {
namespace {

std::optional<uint32_t> rank_in(const Replay::Facts& facts) {
  const auto found = facts.find("rank");
  if (found == facts.end()) return std::nullopt;
  uint32_t rank = 0;
  const std::string& text = found->second;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), rank);
  return error == std::errc{} && end == text.data() + text.size() ? std::optional(rank)
                                                                  : std::nullopt;
}

// Beside the caller's thread and those that match and count (Rows).
unsigned decoders_of(unsigned threads) {
  return threads > 1 ? std::max(1u, threads / 4) : 0;
}

}  // namespace

Status add_trace(const std::string& path, unsigned threads, Rows& rows, ReportContext& context) {
  SIGMA_ASSIGN(const auto reader, TraceReader::open(path));
  const UtcClock clock(reader->meta().info.start_clock);
  const auto node = static_cast<uint32_t>(rows.nodes().size());
  rows.begin_trace(reader->meta().info.node.node, clock);
  Replay replay(*reader, rows.sinks(), [&rows] { rows.relate(); });
  PortCounterTotals counters;
  replay.set_on_counter([&](const NoteCounter& sample) {
    counters.add(node, text_of(sample.device), sample.port, text_of(sample.counter),
                 sample.h.time_ns, sample.value);
  });
  replay.run(decoders_of(threads));
  rows.end_trace();

  const auto changes = counters.changes();
  context.port_counters.insert(context.port_counters.end(), changes.begin(), changes.end());
  context.registrations.add(replay.session().registrations());
  for (const NoteMark& mark : replay.marks())
    context.marks.push_back({std::string(name_of(static_cast<MarkReason>(mark.reason))),
                             std::string(text_of(mark.text)), clock.utc_ns(mark.h.time_ns),
                             reader->meta().info.node.node});
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

}  // namespace sigma
