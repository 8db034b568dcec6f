// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
#include "analysis/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "analysis/report_parts.h"
#include "base/human.h"

namespace sigma {
namespace {

constexpr double kSkewFinding = 1.5;  // max to min

void add_groups(Report& report, const Rows& rows, const RowNames& names) {
  std::map<GroupBy, std::map<std::string, Tally>> groups;
  std::set<std::string> peers, processes, queue_pairs;
  for (const auto& row : rows.rows()) {
    const Tally all = row->sum();
    const std::string peer = names.peer(*row);
    report.totals.add(all);
    groups[GroupBy::qp][names.queue_pair(*row) + (peer.empty() ? "" : " -> " + peer)].add(all);
    groups[GroupBy::device][names.port(*row)].add(all);
    groups[GroupBy::process][names.process(*row)].add(all);
    processes.insert(names.process(*row));
    if (row->qp)
      queue_pairs.insert(fmt::format("{} {} {}", names.queue_pair(*row), row->node, row->pid));
    if (!peer.empty()) {
      groups[GroupBy::peer][peer].add(all);
      peers.insert(peer);
    }
    for (size_t opcode = 0; opcode < Row::kOpcodes; ++opcode)
      for (size_t size = 0; size < kSizeClasses; ++size) {
        const auto& cell = row->cells[opcode][size];
        if (!cell) continue;
        const auto name = to_string(static_cast<Opcode>(opcode));
        groups[GroupBy::opcode][name.empty() ? "unknown" : std::string(name)].add(cell->tally);
        groups[GroupBy::size][size_class_name(size)].add(cell->tally, Row::latency_of(opcode));
      }
  }
  report.queue_pairs = queue_pairs.size();
  report.peers = peers.size();
  report.processes = processes.size();
  for (auto& [by, of_name] : groups) {
    auto& list = report.groups[by];
    for (auto& [name, tally] : of_name) list.push_back({name, std::move(tally)});
    std::stable_sort(list.begin(), list.end(), [](const Group& a, const Group& b) {
      return std::pair(a.tally.bytes, a.tally.operations) >
             std::pair(b.tally.bytes, b.tally.operations);
    });
  }
}

// The process has its name by its operations.
void add_pick_ups(Report& report, const Rows& rows, const RowNames& names) {
  std::map<std::pair<uint32_t, uint32_t>, const Row*> by_process;
  for (const auto& row : rows.rows()) by_process.try_emplace({row->node, row->pid}, row.get());
  for (const PickUpRow* each : rows.pick_ups()) {
    Row of_it;
    of_it.node = each->node;
    of_it.qp = each->qp;
    of_it.pid = each->pid;
    const auto known = by_process.find({each->node, each->pid});
    if (known != by_process.end()) of_it.comm = known->second->comm;
    Report::PickUps entry{names.queue_pair(of_it), names.process(of_it), each->queue, {}, each->error_ns};
    entry.delay_ns.add(each->delay_ns);
    report.pick_ups.push_back(std::move(entry));
  }
  std::stable_sort(report.pick_ups.begin(), report.pick_ups.end(), [](const auto& a, const auto& b) {
    return a.delay_ns.percentile(0.99) > b.delay_ns.percentile(0.99);
  });
}

struct Flows {
  struct Flow : Matrix::Flow {
    uint64_t read_bytes = 0, reads = 0;  // of these
  };
  std::map<std::pair<std::string, std::string>, Flow> flows;

  // Reads bring data from the peer.
  void add(const Row& row, const std::string& here, const std::string& there) {
    if (here.empty() || there.empty()) return;
    for (size_t opcode = 0; opcode < Row::kOpcodes; ++opcode) {
      if (Row::is_receive(opcode)) continue;
      const bool inward = opcode == static_cast<size_t>(Opcode::rdma_read);
      for (const auto& cell : row.cells[opcode]) {
        if (!cell) continue;
        auto& flow = flows[inward ? std::pair(there, here) : std::pair(here, there)];
        flow.from = inward ? there : here;
        flow.to = inward ? here : there;
        flow.bytes += cell->tally.bytes;
        flow.operations += cell->tally.operations;
        if (inward) {
          flow.read_bytes += cell->tally.bytes;
          flow.reads += cell->tally.operations;
        }
      }
    }
  }
};

void add_matrix(Report& report, std::string_view name, const Flows& flows) {
  if (flows.flows.empty()) return;
  Matrix matrix{name, {}, std::nullopt};
  std::vector<double> off_diagonal;
  std::vector<size_t> at;
  for (const auto& [ends, flow] : flows.flows) {
    if (flow.from != flow.to && flow.bytes > 0) {
      off_diagonal.push_back(static_cast<double>(flow.bytes));
      at.push_back(matrix.flows.size());
    }
    matrix.flows.push_back(flow);
  }
  if (auto skew = skew_of(off_diagonal)) {
    skew->largest = at[skew->largest];
    skew->smallest = at[skew->smallest];
    matrix.skew = skew;
  }
  report.matrices.push_back(std::move(matrix));
}

// A skew that the verdict names: its finding's place there, and the flows that it is about.
struct FoundSkew {
  size_t finding;
  Flows::Flow largest, smallest;
  double median;  // bytes of the flow in the middle
  bool reads;
  uint64_t bytes_of(const Flows::Flow& flow) const {
    return reads ? flow.read_bytes : flow.bytes - flow.read_bytes;
  }
  const std::string& port_of(const Flows::Flow& flow) const { return reads ? flow.to : flow.from; }
};

// What is written or sent is compared with its like, and so are reads: a trace of one side has all
// of what this side asked for, so the two are no halves of one pattern.
std::optional<FoundSkew> judge_skew(Report& report, const Flows& flows) {
  for (const bool reads : {false, true}) {
    FoundSkew found{report.verdict.size(), {}, {}, 0, reads};
    std::vector<double> values;
    std::vector<const Flows::Flow*> at;
    for (const auto& [ends, flow] : flows.flows)
      if (flow.from != flow.to && found.bytes_of(flow) > 0) {
        values.push_back(static_cast<double>(found.bytes_of(flow)));
        at.push_back(&flow);
      }
    const auto skew = skew_of(values);
    if (!skew || skew->max_to_min < kSkewFinding) continue;
    const Flows::Flow& largest = found.largest = *at[skew->largest];
    const Flows::Flow& smallest = found.smallest = *at[skew->smallest];
    // What is nearly idle is no smaller half.
    if ((reads ? smallest.reads : smallest.operations - smallest.reads) < kMinOperations) continue;
    report.verdict.push_back(
        {FindingKind::skew,
         fmt::format("{} skewed {:.2f}x (max/min; max/mean {:.2f}): {} -> {} carries {}, "
                     "{} -> {} only {}",
                     reads ? "reads are" : "traffic is", skew->max_to_min, skew->max_to_mean,
                     largest.from, largest.to, human_bytes(found.bytes_of(largest)), smallest.from,
                     smallest.to, human_bytes(found.bytes_of(smallest))),
         reads ? largest.from : largest.to, skew->max_to_min});
    const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
    std::nth_element(values.begin(), middle, values.end());
    found.median = *middle;
    return found;
  }
  return std::nullopt;
}

struct Matrices {
  Flows nodes, ranks, nics;
};

Matrices add_matrices(Report& report, const Rows& rows, const RowNames& names,
                      const ReportContext& context) {
  Matrices flows;
  for (const auto& row : rows.rows()) {
    flows.nodes.add(*row, names.node(*row), names.peer_node(*row));
    flows.nics.add(*row, names.port(*row), names.peer(*row));
    const auto rank = names.rank_of(*row);
    const Host* host = context.hosts.find(row->peer);
    if (rank && host && host->rank)
      flows.ranks.add(*row, fmt::format("{}", *rank), fmt::format("{}", *host->rank));
  }
  add_matrix(report, "node", flows.nodes);
  add_matrix(report, "rank", flows.ranks);
  add_matrix(report, "nic", flows.nics);
  return flows;
}

// The matrices show the same bytes: the first one that tells something does. What leaves a single
// node of unnamed peers is a sum over its NICs, in which a skew among their pairs fades: these come
// first. What is found among NICs is returned, as rails may be out of balance for the same cause.
std::optional<FoundSkew> judge_skew(Report& report, const Matrices& flows, bool nics_first) {
  if (nics_first)
    if (auto found = judge_skew(report, flows.nics)) return found;
  if (judge_skew(report, flows.nodes) || judge_skew(report, flows.ranks)) return std::nullopt;
  return nics_first ? std::nullopt : judge_skew(report, flows.nics);
}

bool several_nics(const Rows& rows, const RowNames& names) {
  std::set<std::string> ports;
  for (const auto& row : rows.rows())
    if (row->qp && !row->qp->device.empty()) ports.insert(names.port(*row));
  return ports.size() > 1;
}

// ---- barriers -----------------------------------------------------------------------------------

// Barriers go to all peers: signals that leave out a peer which data goes to are something else.
bool signals_reach_all(const Rows& rows, const RowNames& names) {
  for (const auto& process : rows.barriers().processes()) {
    std::set<std::string> signalled, all;
    for (const auto& row : rows.rows()) {
      if (std::pair(row->node, row->pid) != process || row->totals.busy_ns == 0) continue;
      const std::string peer = names.peer(*row);
      if (peer.empty()) continue;
      all.insert(peer);
      if (row->signals() > 0) signalled.insert(peer);
    }
    if (signalled != all) return false;
  }
  return true;
}

void find_barriers(Report& report, const Rows& rows, const RowNames& names) {
  Barriers barriers = rows.barriers().find();
  if (barriers.epochs == 0 || !signals_reach_all(rows, names)) return;
  for (const BarrierRank& rank : barriers.ranks) {
    std::string name = fmt::format("pid {}", rank.pid);
    for (const auto& row : rows.rows())
      if (row->node == rank.node && row->pid == rank.pid) {
        name = names.process(*row);
        break;
      }
    report.barrier_ranks.push_back(name);
  }
  report.barriers = std::move(barriers);
  const Barriers& found = report.barriers;
  size_t worst = 0;
  for (size_t i = 0; i < found.ranks.size(); ++i)
    if (found.ranks[i].last > found.ranks[worst].last) worst = i;
  // Chance makes each the last in its turn; half of the times is no chance among three or more.
  const double share =
      static_cast<double>(found.ranks[worst].last) / static_cast<double>(found.epochs);
  const double fair = 1.0 / static_cast<double>(found.ranks.size());
  if (found.epochs >= 10 && share >= std::max(0.5, std::min(0.9, 2 * fair)))
    report.verdict.push_back(
        {FindingKind::barrier,
         fmt::format("{} is the last at {:.0f}% of {} barriers (spread p50 {}, max {})",
                     report.barrier_ranks[worst], share * 100, human_count(found.epochs),
                     human_duration(found.spread_ns.percentile(0.5)),
                     human_duration(found.spread_ns.max())),
         report.barrier_ranks[worst], share / fair});
}

// ---- rails, receivers, memory -------------------------------------------------------------------

// Whether each rail's own flows are alike: then they are skewed only as the rails are.
bool alike_on_each_rail(const Flows& nics, const FoundSkew& skew) {
  std::map<std::string, std::vector<double>> of_port;
  for (const auto& [ends, flow] : nics.flows)
    if (flow.from != flow.to && skew.bytes_of(flow) > 0)
      of_port[skew.port_of(flow)].push_back(static_cast<double>(skew.bytes_of(flow)));
  return std::all_of(of_port.begin(), of_port.end(), [](const auto& port) {
    const auto among = skew_of(port.second);
    return !among || among->max_to_min < kSkewFinding;
  });
}

// One cause is told once: where two flows alone make the rails uneven, the skew's finding says so
// of the rails; where whole rails differ, the rails' finding stands for the skew.
void add_rails(Report& report, const Rows& rows, const RowNames& names, const Flows& nics,
               const std::optional<FoundSkew>& skew) {
  std::map<std::string, Tally> rails;
  for (const auto& row : rows.rows())
    if (row->qp && !row->qp->device.empty()) rails[names.port(*row)].add(row->sent());
  std::vector<double> bytes, without_skew;
  for (auto& [name, tally] : rails) {
    if (tally.operations == 0) continue;
    bytes.push_back(static_cast<double>(tally.bytes));
    without_skew.push_back(bytes.back());
    if (skew)
      for (const Flows::Flow* flow : {&skew->largest, &skew->smallest})
        if (skew->port_of(*flow) == name)
          without_skew.back() += skew->median - static_cast<double>(skew->bytes_of(*flow));
    report.rails.push_back({name, std::move(tally)});
  }
  report.rail_skew = skew_of(bytes);
  if (!report.rail_skew || report.rail_skew->max_to_min < kSkewFinding) return;
  const Group& largest = report.rails[report.rail_skew->largest];
  const Group& smallest = report.rails[report.rail_skew->smallest];
  if (smallest.tally.operations < kMinOperations) return;
  const std::string sent =
      fmt::format("{} sent {}, {} only {}", largest.name, human_bytes(largest.tally.bytes),
                  smallest.name, human_bytes(smallest.tally.bytes));
  const auto left = skew_of(without_skew);
  if (skew && left && left->max_to_min < kSkewFinding) {
    report.verdict[skew->finding].text += "; so " + sent;
    return;
  }
  const double ratio = report.rail_skew->max_to_min;
  ReportFinding finding{FindingKind::rail,
                        fmt::format("rails are unbalanced {:.2f}x: {}", ratio, sent), largest.name,
                        ratio};
  if (skew && alike_on_each_rail(nics, *skew))
    report.verdict[skew->finding] = std::move(finding);
  else
    report.verdict.push_back(std::move(finding));
}

// Many senders at once are how collectives work; a receiver that has far more than the others is
// where data has to wait.
void add_receivers(Report& report, const Rows& rows, const RowNames& names) {
  std::map<size_t, const Row*> row_of_receiver;
  for (const auto& row : rows.rows())
    if (row->receiver()) row_of_receiver.try_emplace(*row->receiver(), row.get());
  std::vector<double> means;
  for (const auto& [number, incast] : rows.incast().receivers())
    if (incast.most != 0)
      report.receivers.push_back({names.peer_node(*row_of_receiver.at(number)), incast});
  // Their numbers are a matter of who came first.
  std::stable_sort(report.receivers.begin(), report.receivers.end(),
                   [](const auto& a, const auto& b) { return a.name < b.name; });
  for (const Report::Receiver& receiver : report.receivers) means.push_back(receiver.incast.mean());
  const auto outliers = find_outliers(means, Direction::high, {.factor = 2, .min_difference = 2});
  for (const Outlier& outlier : outliers) {
    const Report::Receiver& receiver = report.receivers[outlier.index];
    report.verdict.push_back(
        {FindingKind::incast,
         fmt::format("{} has {:.1f} senders at once, up to {}; receivers have {:.1f} typically",
                     receiver.name, outlier.value, receiver.incast.most, outlier.typical),
         receiver.name, outlier.value / outlier.typical});
  }
  std::stable_sort(report.receivers.begin(), report.receivers.end(),
                   [](const auto& a, const auto& b) {
                     return std::pair(a.incast.most, a.incast.mean()) >
                            std::pair(b.incast.most, b.incast.mean());
                   });
}

void add_memory(Report& report, const ReportContext& context) {
  report.memory.registrations.add(context.registrations);
  for (const MemoryRegion& region : context.memory_regions) {
    ++report.memory.regions;
    report.memory.bytes += region.length;
    report.memory.alive += !region.destroyed_ns;
    report.memory.older += !region.register_ns;
  }
}

}  // namespace

std::string_view to_string(FindingKind kind) {
  static constexpr auto kNames =
      std::to_array<std::string_view>({"error", "hang", "straggler", "decline", "skew", "rail",
                                       "barrier", "config", "incast", "port", "loss"});
  const auto index = static_cast<size_t>(kind);
  return index < kNames.size() ? kNames[index] : "";
}

Report make_report(const Rows& rows, const ReportContext& context) {
  const RowNames names(rows, context);
  Report report;
  report.coverage = context.coverage;
  report.duration_ns = context.duration_ns;
  add_groups(report, rows, names);
  const Matrices matrices = add_matrices(report, rows, names, context);
  add_errors(report, rows, names);
  add_pending(report, rows, names, context);
  find_stragglers(report, rows, names);
  const auto skew =
      judge_skew(report, matrices,
                 rows.nodes().size() == 1 && context.hosts.empty() && several_nics(rows, names));
  add_rails(report, rows, names, matrices.nics, skew);
  find_barriers(report, rows, names);
  report.config = compare_config(rows.nodes(), context.queue_pairs);
  judge_config(report);
  add_receivers(report, rows, names);
  add_ports(report, rows, context);
  add_memory(report, context);
  add_pick_ups(report, rows, names);
  report.marks = context.marks;
  if (context.lost_records)
    report.verdict.push_back({FindingKind::loss,
                              fmt::format("{} records were lost: figures are lower bounds",
                                          human_count(context.lost_records)),
                              "", 0});
  return report;
}

}  // namespace sigma
