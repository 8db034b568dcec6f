// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Who is slow: among the queue pairs of one device, opcode and size class.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <tuple>

#include "analysis/report_parts.h"
#include "base/human.h"

namespace sigma {
namespace {

constexpr uint64_t kMinLatencies = 32;  // below these a comparison says little

std::string gbit(double bytes_per_s) {
  return fmt::format("{:.3g} Gb/s", bytes_per_s * 8e-9);
}

struct Member {
  const Row* row;
  const Cell* cell;
};

struct Culprit {
  double factor = 1;
  std::string text;
};

}  // namespace

void find_stragglers(Report& report, const Rows& rows, const RowNames& names) {
  // Comparable: the same device, opcode and size class.
  std::map<std::tuple<std::string, size_t, size_t>, std::vector<Member>> classes;
  for (const auto& row : rows.rows()) {
    if (!row->qp) continue;
    for (size_t opcode = 0; opcode < Row::kOpcodes; ++opcode) {
      if (Row::is_receive(opcode)) continue;
      for (size_t size = 0; size < kSizeClasses; ++size)
        if (const auto& cell = row->cells[opcode][size])
          classes[{names.device(*row), opcode, size}].push_back({row.get(), cell.get()});
    }
  }

  std::map<const Row*, Culprit> culprits;
  const auto accuse = [&](const Row* row, double factor, std::string text) {
    Culprit& culprit = culprits[row];
    if (factor > culprit.factor) culprit = {factor, std::move(text)};
  };
  struct Fall {
    const Row* row;
    Decline decline;
  };
  std::vector<Fall> falls;
  for (const auto& [what, members] : classes) {
    const auto& [device, opcode, size] = what;
    const std::string kind =
        fmt::format("{} of {}", to_string(static_cast<Opcode>(opcode)), size_class_name(size));
    std::vector<double> latencies, rates;
    std::vector<const Row*> with_latency, with_rate;
    std::vector<Fall> fallen;
    size_t declinable = 0;
    for (const Member& member : members) {
      const Tally& tally = member.cell->tally;
      if (tally.latency_ns.count() >= kMinLatencies) {
        latencies.push_back(static_cast<double>(tally.latency_ns.percentile(0.5)));
        with_latency.push_back(member.row);
      }
      if (tally.completed >= kMinOperations && tally.busy_ns && tally.bytes) {
        rates.push_back(tally.path_bytes_per_s());
        with_rate.push_back(member.row);
        ++declinable;
        if (const auto decline = find_decline(member.cell->series))
          fallen.push_back({member.row, *decline});
      }
    }
    for (const Outlier& outlier :
         find_outliers(latencies, Direction::high, {.min_difference = 1000}))
      accuse(with_latency[outlier.index], outlier.value / outlier.typical,
             fmt::format("median latency {} against {} of its like ({})",
                         human_duration(static_cast<uint64_t>(outlier.value)),
                         human_duration(static_cast<uint64_t>(outlier.typical)), kind));
    // Small messages have a rate, too, but it is their latency once more.
    if (size >= size_class(4096))
      for (const Outlier& outlier : find_outliers(rates, Direction::low))
        accuse(with_rate[outlier.index], outlier.typical / outlier.value,
               fmt::format("path gives {} against {} of its like ({})", gbit(outlier.value),
                           gbit(outlier.typical), kind));
    // Where most paths fell at once, the job changed, or everything did: no path is to blame.
    if (fallen.size() == 1 || 2 * fallen.size() < declinable)
      falls.insert(falls.end(), fallen.begin(), fallen.end());
  }

  // A peer is to blame where all queue pairs to it are.
  std::map<std::string, std::pair<size_t, size_t>> by_peer;  // rows, culprits
  for (const auto& row : rows.rows()) {
    if (!row->qp || row->totals.busy_ns == 0) continue;
    auto& [all, guilty] = by_peer[names.peer(*row)];
    ++all;
    guilty += culprits.contains(row.get());
  }
  std::map<std::string, ReportFinding> of_peer;
  for (const auto& [row, culprit] : culprits) {
    const std::string peer = names.peer(*row);
    const auto [all, guilty] = by_peer[peer];
    const bool blame_peer = !peer.empty() && guilty == all;
    const std::string subject = blame_peer ? peer : names.queue_pair(*row);
    ReportFinding finding{
        FindingKind::straggler,
        fmt::format("{} is {:.2g}x slow: {}",
                    blame_peer ? "peer " + peer
                               : names.queue_pair(*row) + (peer.empty() ? "" : " -> " + peer),
                    culprit.factor, culprit.text),
        subject, culprit.factor};
    const auto [known, is_new] = of_peer.try_emplace(subject, finding);
    if (!is_new && finding.ratio > known->second.ratio) known->second = finding;
  }
  for (auto& [subject, finding] : of_peer) report.stragglers.push_back(std::move(finding));

  std::set<const Row*> said;
  for (const Fall& fall : falls) {
    if (!said.insert(fall.row).second) continue;
    const std::string name = names.queue_pair(*fall.row);
    const std::string peer = names.peer(*fall.row);
    report.stragglers.push_back({FindingKind::decline,
                                 fmt::format("{}{} fell from {} to {} and stayed there", name,
                                             peer.empty() ? "" : " -> " + peer,
                                             gbit(fall.decline.before), gbit(fall.decline.after)),
                                 peer.empty() ? name : peer,
                                 fall.decline.before / fall.decline.after});
  }
  std::stable_sort(report.stragglers.begin(), report.stragglers.end(),
                   [](const auto& a, const auto& b) { return a.ratio > b.ratio; });
  report.verdict.insert(report.verdict.end(), report.stragglers.begin(), report.stragglers.end());
}

}  // namespace sigma
