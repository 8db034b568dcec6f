// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
#include "analysis/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "base/human.h"
#include "output/names.h"

namespace sigma {
namespace {

// Below these a comparison says little.
constexpr uint64_t kMinLatencies = 32;
constexpr uint64_t kMinOperations = 30;
constexpr double kSkewFinding = 1.5;         // max to min
constexpr uint64_t kHangNs = 1'000'000'000;  // posted, and nothing since

std::string gbit(double bytes_per_s) {
  return fmt::format("{:.3g} Gb/s", bytes_per_s * 8e-9);
}

// Names of the ends of a row, the same in all tables.
class Names {
 public:
  Names(const Rows& rows, const ReportContext& context) : rows_(rows), context_(context) {
    std::set<std::string> addresses;
    for (const auto& row : rows.rows())
      if (const auto text = address_text(row->peer); !text.empty()) addresses.insert(text);
    // Where all peers share an address, it tells nobody apart.
    one_address_ = addresses.size() < 2;
  }

  std::string node(const Row& row) const { return rows_.nodes()[row.node]; }
  std::string device(const Row& row) const {
    const std::string device =
        row.qp && !row.qp->device.empty() ? row.qp->device : "unknown device";
    return several_nodes() ? node(row) + "/" + device : device;
  }
  std::string port(const Row& row) const {
    std::string name = device(row);
    if (row.qp && row.qp->port) name += fmt::format("/{}", *row.qp->port);
    return name;
  }
  std::string queue_pair(const Row& row) const {
    if (!row.qp) return device(row) + " shared or unknown queues";
    std::string name = fmt::format("{} qp {}", device(row), row.qp->qp_num);
    if (row.qp->life) name += fmt::format(" life {}", row.qp->life);
    return name;
  }
  // "": unknown.
  std::string peer(const Row& row) const {
    const Host* host = context_.hosts.find(row.peer);
    std::string name = host ? host->name : address_text(row.peer);
    if (host && host->rank) name += fmt::format(" rank {}", *host->rank);
    if (one_address_ && row.peer_qp_num)
      name += fmt::format("{}qp {}", name.empty() ? "" : " ", *row.peer_qp_num);
    return name;
  }
  std::string process(const Row& row) const {
    std::string name = several_nodes() ? node(row) + " " : "";
    if (const auto rank = rank_of(row)) name += fmt::format("rank {} ", *rank);
    return name + fmt::format("{} ({})", row.comm.empty() ? "pid" : printable(row.comm), row.pid);
  }
  std::optional<uint32_t> rank_of(const Row& row) const {
    const auto found = context_.ranks.find({row.node, row.pid});
    return found == context_.ranks.end() ? std::nullopt : std::optional(found->second);
  }
  std::string peer_node(const Row& row) const {
    const Host* host = context_.hosts.find(row.peer);
    return host ? host->name : peer(row);
  }

 private:
  bool several_nodes() const { return rows_.nodes().size() > 1; }

  const Rows& rows_;
  const ReportContext& context_;
  bool one_address_ = false;
};

bool is_receive(size_t opcode) {
  return opcode == static_cast<size_t>(Opcode::recv) ||
         opcode == static_cast<size_t>(Opcode::recv_rdma_with_imm);
}

void add_groups(Report& report, const Rows& rows, const Names& names) {
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
        groups[GroupBy::size][size_class_name(size)].add(cell->tally);
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

struct Flows {
  struct Flow : Matrix::Flow {
    uint64_t read_bytes = 0, reads = 0;  // of these
  };
  std::map<std::pair<std::string, std::string>, Flow> flows;

  // Reads bring data from the peer.
  void add(const Row& row, const std::string& here, const std::string& there) {
    if (here.empty() || there.empty()) return;
    for (size_t opcode = 0; opcode < Row::kOpcodes; ++opcode) {
      if (is_receive(opcode)) continue;
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

// What is written or sent is compared with its like, and so are reads: a trace of one side has all
// of what this side asked for, so the two are no halves of one pattern. Whether it found something.
bool judge_skew(Report& report, const Flows& flows) {
  for (const bool reads : {false, true}) {
    std::vector<double> values;
    std::vector<const Flows::Flow*> at;
    const auto bytes_of = [&](const Flows::Flow& flow) {
      return reads ? flow.read_bytes : flow.bytes - flow.read_bytes;
    };
    for (const auto& [ends, flow] : flows.flows)
      if (flow.from != flow.to && bytes_of(flow) > 0) {
        values.push_back(static_cast<double>(bytes_of(flow)));
        at.push_back(&flow);
      }
    const auto skew = skew_of(values);
    if (!skew || skew->max_to_min < kSkewFinding) continue;
    const Flows::Flow& largest = *at[skew->largest];
    const Flows::Flow& smallest = *at[skew->smallest];
    // What is nearly idle is no smaller half.
    if ((reads ? smallest.reads : smallest.operations - smallest.reads) < kMinOperations) continue;
    report.verdict.push_back(
        {FindingKind::skew,
         fmt::format("{} skewed {:.2f}x (max/min; max/mean {:.2f}): {} -> {} carries {}, "
                     "{} -> {} only {}",
                     reads ? "reads are" : "traffic is", skew->max_to_min, skew->max_to_mean,
                     largest.from, largest.to, human_bytes(bytes_of(largest)), smallest.from,
                     smallest.to, human_bytes(bytes_of(smallest))),
         reads ? largest.from : largest.to, skew->max_to_min});
    return true;
  }
  return false;
}

struct Matrices {
  Flows nodes, ranks, nics;
};

Matrices add_matrices(Report& report, const Rows& rows, const Names& names,
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

// The matrices show the same bytes: the first one that tells something does.
void judge_skew(Report& report, const Matrices& flows) {
  (void)(judge_skew(report, flows.nodes) || judge_skew(report, flows.ranks) ||
         judge_skew(report, flows.nics));
}

// ---- stragglers ---------------------------------------------------------------------------------

struct Member {
  const Row* row;
  const Cell* cell;
};

struct Culprit {
  double factor = 1;
  std::string text;
};

void find_stragglers(Report& report, const Rows& rows, const Names& names) {
  // Comparable: the same device, opcode and size class.
  std::map<std::tuple<std::string, size_t, size_t>, std::vector<Member>> classes;
  for (const auto& row : rows.rows()) {
    if (!row->qp) continue;
    for (size_t opcode = 0; opcode < Row::kOpcodes; ++opcode) {
      if (is_receive(opcode)) continue;
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

// ---- barriers -----------------------------------------------------------------------------------

// Barriers go to all peers: signals that leave out a peer which data goes to are something else.
bool signals_reach_all(const Rows& rows, const Names& names) {
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

void find_barriers(Report& report, const Rows& rows, const Names& names) {
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

// ---- errors, pending, rails, configuration, memory
// -----------------------------------------------

void add_errors(Report& report, const Rows& rows, const Names& names) {
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

void add_pending(Report& report, const Rows& rows, const Names& names,
                 const ReportContext& context) {
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
  if (oldest && oldest->age_ns.value_or(0) >= kHangNs)
    report.verdict.push_back(
        {FindingKind::hang,
         fmt::format("{} on {}{} was posted {} before the end and has not completed",
                     to_string(oldest->operation.opcode), oldest->queue_pair,
                     oldest->peer.empty() ? "" : " -> " + oldest->peer,
                     human_duration(*oldest->age_ns)),
         oldest->queue_pair, 0});
}

void add_rails(Report& report, const Rows& rows, const Names& names) {
  std::map<std::string, Tally> rails;
  for (const auto& row : rows.rows())
    if (row->qp && !row->qp->device.empty()) rails[names.port(*row)].add(row->sent());
  std::vector<double> bytes;
  for (auto& [name, tally] : rails) {
    if (tally.operations == 0) continue;
    bytes.push_back(static_cast<double>(tally.bytes));
    report.rails.push_back({name, std::move(tally)});
  }
  report.rail_skew = skew_of(bytes);
  if (!report.rail_skew || report.rail_skew->max_to_min < kSkewFinding) return;
  const Group& largest = report.rails[report.rail_skew->largest];
  const Group& smallest = report.rails[report.rail_skew->smallest];
  if (smallest.tally.operations < kMinOperations) return;
  report.verdict.push_back(
      {FindingKind::rail,
       fmt::format("rails are unbalanced {:.2f}x: {} sent {}, {} only {}",
                   report.rail_skew->max_to_min, largest.name, human_bytes(largest.tally.bytes),
                   smallest.name, human_bytes(smallest.tally.bytes)),
       largest.name, report.rail_skew->max_to_min});
}

// Many senders at once are how collectives work; a receiver that has far more than the others is
// where data has to wait.
void add_receivers(Report& report, const Rows& rows, const Names& names) {
  std::map<size_t, const Row*> row_of_receiver;
  for (const auto& row : rows.rows())
    if (row->receiver()) row_of_receiver.try_emplace(*row->receiver(), row.get());
  std::vector<double> means;
  for (const auto& [number, incast] : rows.incast().receivers())
    if (incast.most != 0) report.receivers.push_back({names.peer_node(*row_of_receiver.at(number)), incast});
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

}  // namespace

std::string_view to_string(FindingKind kind) {
  static constexpr auto kNames =
      std::to_array<std::string_view>({"error", "hang", "straggler", "decline", "skew", "rail",
                                       "barrier", "config", "incast", "port", "loss"});
  const auto index = static_cast<size_t>(kind);
  return index < kNames.size() ? kNames[index] : "";
}

Report make_report(const Rows& rows, const ReportContext& context) {
  const Names names(rows, context);
  Report report;
  report.coverage = context.coverage;
  report.duration_ns = context.duration_ns;
  add_groups(report, rows, names);
  const Matrices matrices = add_matrices(report, rows, names, context);
  add_errors(report, rows, names);
  add_pending(report, rows, names, context);
  find_stragglers(report, rows, names);
  judge_skew(report, matrices);
  add_rails(report, rows, names);
  find_barriers(report, rows, names);
  report.config = compare_config(rows.nodes(), context.queue_pairs);
  judge_config(report);
  add_receivers(report, rows, names);
  add_ports(report, rows, context);
  add_memory(report, context);
  report.marks = context.marks;
  if (context.lost_records)
    report.verdict.push_back({FindingKind::loss,
                              fmt::format("{} records were lost: figures are lower bounds",
                                          human_count(context.lost_records)),
                              "", 0});
  return report;
}

}  // namespace sigma
