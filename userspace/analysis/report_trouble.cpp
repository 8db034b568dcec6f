// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// What went wrong: errors, what hangs, ports that lose, attributes that differ.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

#include "analysis/report_parts.h"
#include "base/human.h"
#include "output/names.h"

namespace sigma {
namespace {

constexpr uint64_t kHangNs = 1'000'000'000;  // posted, and nothing since

}  // namespace

void add_errors(Report& report, const Rows& rows, const RowNames& names) {
  uint64_t errors = 0, flushed = 0;
  for (const auto& row : rows.rows()) {
    if (row->statuses.empty()) continue;
    report.errors.push_back(
        {names.queue_pair(*row), names.peer(*row), row->first_error, row->statuses});
    for (const auto& [status, count] : row->statuses)
      (status == kStatusFlushed ? flushed : errors) += count;
  }
  const auto time = [](const ErrorGroup& group) {
    return group.first ? group.first->complete_ns.value_or(UINT64_MAX - 1) : UINT64_MAX;
  };
  std::stable_sort(report.errors.begin(), report.errors.end(),
                   [&](const auto& a, const auto& b) { return time(a) < time(b); });
  if (errors == 0) return;
  const ErrorGroup& first = report.errors.front();
  const uint32_t status = first.first->status;
  report.verdict.insert(
      report.verdict.begin(),
      {FindingKind::error,
       fmt::format("{} error{} ({} flushed after): first {} on {}{}: {}", human_count(errors),
                   errors == 1 ? "" : "s", human_count(flushed), status_text(status),
                   first.queue_pair, first.peer.empty() ? "" : " -> " + first.peer,
                   meaning_of(status)),
       first.queue_pair, 0});
}

namespace {

constexpr size_t kHungShown = 4;

// Queues of which their reader said at the end that they hang: posted to, not completed, unmoved.
// Who they are, for nothing else is to be said of their requests.
std::set<std::string> add_hung(Report& report, const Rows& rows, const RowNames& names,
                               const ReportContext& context) {
  struct Hung {
    const Row* row;
    uint64_t posted, pending = 0;
    const PendingOperation* oldest = nullptr;
  };
  const std::vector<PendingOperation> all_pending = rows.pending();
  std::vector<Hung> hung;
  for (const auto& [node, qp] : context.queue_pairs) {
    if (!qp->observed || !qp->observed->hung) continue;
    for (const auto& row : rows.rows()) {
      if (!row->qp || row->node != node || row->pid != qp->pid || row->qp->device != qp->device ||
          row->qp->qp_num != qp->qp_num || row->qp->life != qp->life)
        continue;
      Hung one{row.get(), qp->observed->posted};
      for (const PendingOperation& operation : all_pending) {
        if (operation.row != row.get() || operation.queue != Queue::send) continue;
        ++one.pending;
        if (!one.oldest) one.oldest = &operation;
      }
      hung.push_back(one);
      break;
    }
  }
  std::stable_sort(hung.begin(), hung.end(),
                   [](const Hung& a, const Hung& b) { return a.pending > b.pending; });
  std::set<std::string> who;
  for (const Hung& one : hung) {
    const std::string name = names.queue_pair(*one.row), peer = names.peer(*one.row);
    if (who.size() < kHungShown) {
      std::string oldest;
      if (one.oldest) {
        oldest = fmt::format(", the oldest {}", to_string(one.oldest->opcode));
        if (one.oldest->time_ns && context.end_ns > *one.oldest->time_ns)
          oldest += fmt::format(" posted {} before the end",
                                human_duration(context.end_ns - *one.oldest->time_ns));
      }
      report.verdict.push_back(
          {FindingKind::hang,
           fmt::format(
               "{}{} hangs: {} blocks posted by a GPU, {} requests of those seen not completed{}",
               name, peer.empty() ? "" : " -> " + peer, human_count(one.posted),
               human_count(one.pending), oldest),
           name, 0});
    }
    who.insert(name);
  }
  if (who.size() > kHungShown)
    report.verdict.push_back({FindingKind::hang,
                              fmt::format("{} more queue pairs hang", who.size() - kHungShown), "",
                              0});
  return who;
}

}  // namespace

void add_pending(Report& report, const Rows& rows, const RowNames& names,
                 const ReportContext& context) {
  const std::set<std::string> hung = add_hung(report, rows, names, context);
  const Report::Pending* oldest = nullptr;
  for (const PendingOperation& operation : rows.pending()) {
    const Row& row = *operation.row;
    Report::Pending pending{operation, names.queue_pair(row), names.peer(row), std::nullopt};
    if (operation.time_ns && context.end_ns > *operation.time_ns)
      pending.age_ns = context.end_ns - *operation.time_ns;
    report.pending.push_back(std::move(pending));
  }
  for (const auto& pending : report.pending)
    if (pending.operation.queue == Queue::send && !oldest) oldest = &pending;
  if (oldest && oldest->age_ns.value_or(0) >= kHangNs && !hung.contains(oldest->queue_pair))
    report.verdict.push_back(
        {FindingKind::hang,
         fmt::format("{} on {}{} was posted {} before the end and has not completed",
                     to_string(oldest->operation.opcode), oldest->queue_pair,
                     oldest->peer.empty() ? "" : " -> " + oldest->peer,
                     human_duration(*oldest->age_ns)),
         oldest->queue_pair, 0});
}

void add_ports(Report& report, const Rows& rows, const ReportContext& context) {
  const bool several = rows.nodes().size() > 1;
  for (const PortCounterChange& change : context.port_counters) {
    if (change.increase == 0) continue;
    std::string port = fmt::format("{}/{}", printable(change.device), change.port);
    if (several) port = rows.nodes()[change.node] + "/" + port;
    report.ports.push_back({std::move(port), printable(change.counter), change.increase,
                            Tally::per_second(change.increase, change.last_ns - change.first_ns),
                            meaning_of_counter(change.counter)});
  }
  std::stable_sort(report.ports.begin(), report.ports.end(),
                   [](const auto& a, const auto& b) { return a.meaning.sense > b.meaning.sense; });
  // One finding a port, on what moved most.
  std::map<std::string, const Report::PortCounter*> worst;
  for (const Report::PortCounter& counter : report.ports) {
    if (counter.meaning.sense != CounterSense::trouble) continue;
    const auto [known, is_new] = worst.try_emplace(counter.port, &counter);
    if (!is_new && counter.increase > known->second->increase) known->second = &counter;
  }
  for (const auto& [port, counter] : worst)
    report.verdict.push_back({FindingKind::port,
                              fmt::format("{}: {} went up by {}: {}", port, counter->counter,
                                          human_count(counter->increase), counter->meaning.text),
                              port, 0});
}

void judge_config(Report& report) {
  for (const ConfigDifference& difference : report.config) {
    size_t all = 0;
    for (const auto& value : difference.values) all += value.queue_pairs;
    const size_t odd = all - difference.values[0].queue_pairs;
    if (all < 3 || 3 * odd > all) continue;  // no clear majority to depart from
    const auto& minority = difference.values[1];
    report.verdict.push_back(
        {FindingKind::config,
         fmt::format("{} differs: {} of {} queue pairs ({}) have not {} (e.g. {} has {})",
                     difference.attribute, odd, all, difference.where, difference.values[0].text,
                     minority.examples.empty() ? "" : minority.examples[0], minority.text),
         minority.examples.empty() ? difference.where : minority.examples[0], 0});
  }
}

}  // namespace sigma
