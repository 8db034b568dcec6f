// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
#include "output/summary.h"

#include <fmt/format.h>

#include <algorithm>
#include <ctime>

#include "base/human.h"
#include "output/coverage.h"
#include "output/names.h"
#include "output/table.h"

namespace sigma {
namespace {

using Align = Table::Align;

std::string time_of_day(uint64_t utc_ns) {
  const auto seconds = static_cast<time_t>(utc_ns / 1'000'000'000);
  tm local{};
  localtime_r(&seconds, &local);
  return fmt::format("{:02}:{:02}:{:02}.{:03}", local.tm_hour, local.tm_min, local.tm_sec,
                     utc_ns / 1'000'000 % 1000);
}

std::string nonzero(uint64_t count) {
  return count ? human_count(count) : std::string();
}

std::string at(const Histogram& latency, double fraction) {
  return latency.count() ? human_duration(latency.percentile(fraction)) : std::string();
}

std::string opcode_name(Opcode opcode, Queue queue) {
  const std::string_view name = to_string(opcode);
  return std::string(name.empty() ? name_of(queue) : name);
}

bool operator!=(const Address& a, const Address& b) {
  return a.gid != b.gid || a.lid != b.lid;
}

}  // namespace

void SummarySink::Tally::add(const Operation& operation, bool with_latency) {
  ++operations;
  bytes += operation.bytes.value_or(0);
  if (!operation.status)
    ++unfinished;
  else if (*operation.status == kStatusFlushed)
    ++flushed;
  else if (*operation.status != kStatusSuccess)
    ++errors;
  // A failed operation's time says how long the retries took, not how fast the network is.
  if (with_latency && operation.latency_ns && operation.status == kStatusSuccess)
    latency_ns.add(*operation.latency_ns);
}

void SummarySink::on_operation(const Operation& operation) {
  all_.add(operation);
  opcodes_[std::min(static_cast<size_t>(operation.opcode), kOpcodes - 1)].add(operation);

  QueuePairRow& row = row_of(operation);
  // A receive waits for its peer, which says nothing of the path.
  row.tally.add(operation, operation.queue == Queue::send);
  note_peer(row, operation);
  const uint32_t status = operation.status.value_or(kStatusSuccess);
  if (is_first_error(status) && !row.first_error)
    row.first_error = {status,          operation.vendor_err, operation.opcode,
                       operation.queue, operation.wr_id,      operation.complete_ns};
}

void SummarySink::on_pick_up(const PickUp& pick_up) {
  pick_up_ns_.add(pick_up.delay_ns);
  QueuePairRow& row = row_of(pick_up.qp);
  row.pick_up_ns.add(pick_up.delay_ns);
  if (&row != &shared_row_) row.pid = pick_up.pid;
}

SummarySink::QueuePairRow& SummarySink::row_of(const Operation& operation) {
  QueuePairRow& row = row_of(operation.qp);
  if (&row == &shared_row_) return row;
  row.pid = operation.pid;
  if (!operation.comm.empty() && row.comm != operation.comm) row.comm = operation.comm;
  return row;
}

SummarySink::QueuePairRow& SummarySink::row_of(const std::shared_ptr<const QueuePair>& described) {
  if (!described) return shared_row_;
  // The row holds the description that it was last seen with, so an equal pointer is the same one.
  const auto place = reinterpret_cast<uintptr_t>(described.get());
  QueuePairRow*& recent = recent_rows_[(place >> 4 ^ place >> 12) % recent_rows_.size()];
  if (recent && recent->qp == described) return *recent;
  const QueuePair& qp = *described;
  const Key key{qp.device, qp.qp_num, qp.life, qp.pid};
  auto found = rows_.find(key);
  if (found == rows_.end()) {
    if (rows_.size() >= options_.queue_pairs) return shared_row_;
    found = rows_.emplace(key, QueuePairRow{}).first;
  }
  QueuePairRow& row = found->second;
  row.qp = described;
  recent = &row;
  return row;
}

void SummarySink::note_peer(QueuePairRow& row, const Operation& operation) {
  if (row.many_peers) return;
  const auto qpn = operation.peer_qp_num;
  const Address& peer = operation.peer;
  if (qpn) {
    if (row.peer_qp_num && *row.peer_qp_num != *qpn) row.many_peers = true;
    row.peer_qp_num = qpn;
  }
  if (peer.gid || peer.lid) {
    if ((row.peer.gid || row.peer.lid) && row.peer != peer) row.many_peers = true;
    row.peer = peer;
  }
}

std::string SummarySink::text(const SummaryContext& context) const {
  std::string out;
  add_totals(out, context);
  add_opcodes(out, context);
  add_queue_pairs(out, context);
  add_pick_ups(out, context);
  add_errors(out, context);

  const Style style{context.colour};
  out += "\n" + style.bold("not seen") + "\n";
  for (const auto& line : coverage_lines(context.counters)) {
    const std::string_view word = to_string(line.severity);
    const std::string coloured =
        line.severity == Severity::gap ? style.warn(word) : style.bad(word);
    out += fmt::format("  {}{}  {}\n", coloured, std::string(5 - word.size(), ' '), line.text);
  }
  for (const auto& remark : context.remarks)
    out += fmt::format("  {}   {}\n", style.dim("note"), remark);
  if (coverage_lines(context.counters).empty() && context.remarks.empty())
    out += fmt::format("  {}\n", style.good(kNothingMissing));
  out += fmt::format("  {}\n", style.dim(fmt::format("({})", kOutOfSight)));
  return out;
}

void SummarySink::add_totals(std::string& out, const SummaryContext& context) const {
  const Style style{context.colour};
  out += style.bold(
      fmt::format("{}, {}", plural(all_.operations, "operation"), human_bytes(all_.bytes)));
  if (context.duration_ns) out += fmt::format(" in {}", human_duration(context.duration_ns));
  out += fmt::format(", {}", plural(rows_.size(), "queue pair"));
  if (all_.unfinished) out += fmt::format(", {} unfinished", human_count(all_.unfinished));
  if (all_.errors) out += ", " + style.bad(plural(all_.errors, "error"));
  if (all_.flushed) out += fmt::format(", {} flushed", human_count(all_.flushed));
  out += "\n";
}

void SummarySink::add_opcodes(std::string& out, const SummaryContext& context) const {
  Table table({{"opcode"},
               {"operations", Align::right},
               {"bytes", Align::right},
               {"unfinished", Align::right},
               {"p50", Align::right},
               {"p99", Align::right},
               {"max", Align::right},
               {"errors", Align::right},
               {"flushed", Align::right}});
  for (size_t i = 0; i < kOpcodes; ++i) {
    const Tally& tally = opcodes_[i];
    if (tally.operations == 0) continue;
    const std::string_view name = to_string(static_cast<Opcode>(i));
    table.add({std::string(name.empty() ? "unknown" : name), human_count(tally.operations),
               human_bytes(tally.bytes), nonzero(tally.unfinished), at(tally.latency_ns, 0.5),
               at(tally.latency_ns, 0.99), at(tally.latency_ns, 1), nonzero(tally.errors),
               nonzero(tally.flushed)});
  }
  if (!table.empty()) out += "\n" + table.text({context.colour});
}

void SummarySink::add_queue_pairs(std::string& out, const SummaryContext& context) const {
  std::vector<const QueuePairRow*> order;
  for (const auto& [key, row] : rows_) order.push_back(&row);
  std::stable_sort(order.begin(), order.end(), [](const auto* a, const auto* b) {
    return std::tie(a->tally.bytes, a->tally.operations) >
           std::tie(b->tally.bytes, b->tally.operations);
  });
  const size_t shown = std::min(order.size(), context.rows);

  Table table({{"pid", Align::right},
               {"process"},
               {"device"},
               {"qp", Align::right},
               {"type"},
               {"peer qp", Align::right},
               {"peer"},
               {"operations", Align::right},
               {"bytes", Align::right},
               {"p50", Align::right},
               {"p99", Align::right},
               {"max", Align::right},
               {"errors", Align::right}});
  for (size_t i = 0; i < shown; ++i) {
    const QueuePairRow& row = *order[i];
    const QueuePair& qp = *row.qp;
    const auto peer_qp = row.peer_qp_num ? row.peer_qp_num : qp.peer_qp_num;
    const std::string peer = address_text(row.peer.gid || row.peer.lid ? row.peer : qp.peer);
    const auto errors = row.tally.errors + row.tally.flushed;
    table.add({fmt::format("{}", row.pid), printable(row.comm), printable(qp.device),
               fmt::format("{}", qp.qp_num), std::string(qp.type ? qp_type_name(*qp.type) : ""),
               row.many_peers ? ""
               : peer_qp      ? fmt::format("{}", *peer_qp)
                              : "unknown",
               row.many_peers ? "several" : peer, human_count(row.tally.operations),
               human_bytes(row.tally.bytes), at(row.tally.latency_ns, 0.5),
               at(row.tally.latency_ns, 0.99), at(row.tally.latency_ns, 1), nonzero(errors)});
  }
  if (!table.empty()) out += "\n" + table.text({context.colour});
  if (order.size() > shown)
    out += fmt::format("  and {} more\n", plural(order.size() - shown, "queue pair"));
  if (shared_row_.tally.operations)
    out += fmt::format("  {} on queues not listed, {}\n",
                       plural(shared_row_.tally.operations, "operation"),
                       human_bytes(shared_row_.tally.bytes));
}

// Who lets completions lie the longest stands first.
void SummarySink::add_pick_ups(std::string& out, const SummaryContext& context) const {
  if (pick_up_ns_.count() == 0) return;
  const Style style{context.colour};
  out += "\n" + style.bold("pick-up: how long completions lay in their queue until a poll returned them") + "\n";
  out += fmt::format("  {}: p50 {}, p99 {}, max {}\n", plural(pick_up_ns_.count(), "completion"), at(pick_up_ns_, 0.5),
                     at(pick_up_ns_, 0.99), at(pick_up_ns_, 1));
  std::vector<const QueuePairRow*> order;
  for (const auto& [key, row] : rows_)
    if (row.pick_up_ns.count()) order.push_back(&row);
  if (order.size() < 2) return;
  std::stable_sort(order.begin(), order.end(), [](const auto* a, const auto* b) {
    return a->pick_up_ns.percentile(0.99) > b->pick_up_ns.percentile(0.99);
  });
  const size_t shown = std::min(order.size(), context.rows);
  Table table({{"pid", Align::right},
               {"process"},
               {"device"},
               {"qp", Align::right},
               {"picked up", Align::right},
               {"p50", Align::right},
               {"p99", Align::right},
               {"max", Align::right}});
  for (size_t i = 0; i < shown; ++i) {
    const QueuePairRow& row = *order[i];
    table.add({fmt::format("{}", row.pid), printable(row.comm), printable(row.qp->device),
               fmt::format("{}", row.qp->qp_num), human_count(row.pick_up_ns.count()), at(row.pick_up_ns, 0.5),
               at(row.pick_up_ns, 0.99), at(row.pick_up_ns, 1)});
  }
  out += table.text({context.colour});
  if (order.size() > shown) out += fmt::format("  and {} more\n", plural(order.size() - shown, "queue pair"));
}

void SummarySink::add_errors(std::string& out, const SummaryContext& context) const {
  // In order of time: what broke first is the cause to look at.
  std::vector<const QueuePairRow*> order;
  for (const auto& [key, row] : rows_)
    if (row.tally.errors + row.tally.flushed > 0) order.push_back(&row);
  if (shared_row_.tally.errors + shared_row_.tally.flushed > 0) order.push_back(&shared_row_);
  if (order.empty()) return;
  const auto when = [](const QueuePairRow* row) {
    return row->first_error && row->first_error->complete_ns ? *row->first_error->complete_ns
                                                             : UINT64_MAX;
  };
  std::stable_sort(order.begin(), order.end(),
                   [&](const auto* a, const auto* b) { return when(a) < when(b); });

  const Style style{context.colour};
  out += "\n" + style.bold("errors, by time of the first on each queue pair") + "\n";
  const size_t shown = std::min(order.size(), context.rows);
  for (size_t i = 0; i < shown; ++i) {
    const QueuePairRow& row = *order[i];
    std::string line = "  ";
    if (row.first_error && row.first_error->complete_ns)
      line += time_of_day(options_.clock.utc_ns(*row.first_error->complete_ns)) + "  ";
    line += row.qp ? fmt::format("{} qp {}", printable(row.qp->device), row.qp->qp_num)
                   : "queues not listed";
    if (row.qp && !row.many_peers) {
      const auto peer_qp = row.peer_qp_num ? row.peer_qp_num : row.qp->peer_qp_num;
      const std::string peer = address_text(row.peer.gid || row.peer.lid ? row.peer : row.qp->peer);
      if (peer_qp) line += fmt::format(" -> qp {}", *peer_qp);
      if (!peer.empty()) line += fmt::format(" at {}", peer);
    }
    line += ": ";
    if (const auto& error = row.first_error) {
      line += fmt::format("{} on {}", style.bad(status_text(error->status)),
                          opcode_name(error->opcode, error->queue));
      if (error->wr_id) line += fmt::format(", wr_id {}", *error->wr_id);
      if (error->vendor_err) line += fmt::format(", vendor_err {:#x}", *error->vendor_err);
      if (row.tally.errors > 1)
        line += fmt::format("; {} more", plural(row.tally.errors - 1, "error"));
      if (row.tally.flushed) line += fmt::format("; {} flushed", human_count(row.tally.flushed));
    } else {
      line +=
          fmt::format("{} flushed; the error itself was not seen", human_count(row.tally.flushed));
    }
    out += line + "\n";
  }
  if (order.size() > shown)
    out += fmt::format("  and {} more with errors\n", plural(order.size() - shown, "queue pair"));
}

std::string live_line(const LiveTotals& now, const LiveTotals& before, double seconds,
                      unsigned width) {
  const auto rate = [&](uint64_t a, uint64_t b) {
    return seconds > 0 && a > b ? static_cast<double>(a - b) / seconds : 0.0;
  };
  std::string line =
      fmt::format("{} operations  {}  {}/s  {}/s", human_count(now.operations),
                  human_bytes(now.bytes), human_rate(rate(now.operations, before.operations)),
                  human_bytes(static_cast<uint64_t>(rate(now.bytes, before.bytes))));
  if (now.errors) line += fmt::format("  {} errors", human_count(now.errors));
  if (now.dropped) line += fmt::format("  {} dropped", human_count(now.dropped));
  if (line.size() > width) line.resize(width);
  return line;
}

}  // namespace sigma
