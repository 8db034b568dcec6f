// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Report: what a trace says, as values; report_text.cpp and report_json.cpp show it. make_report is
// a pure function of rows and facts: it reads no clock, no file and no process.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "analysis/hosts.h"
#include "analysis/port_counters.h"
#include "analysis/rows.h"
#include "analysis/stragglers.h"
#include "base/terminal.h"
#include "session/session.h"

namespace sigma {

enum class GroupBy : uint8_t { qp, peer, device, opcode, size, process };
inline constexpr auto kGroupings = std::to_array<std::pair<GroupBy, std::string_view>>({
    {GroupBy::qp, "qp"},
    {GroupBy::peer, "peer"},
    {GroupBy::device, "device"},
    {GroupBy::opcode, "opcode"},
    {GroupBy::size, "size"},
    {GroupBy::process, "process"},
});

struct Group {
  std::string name;
  Tally tally;
};

enum class FindingKind : uint8_t {
  error,
  hang,
  straggler,
  decline,
  skew,
  rail,
  barrier,
  config,
  incast,
  port,
  loss,
};
std::string_view to_string(FindingKind kind);

struct ReportFinding {
  FindingKind kind = FindingKind::error;
  std::string text;     // one line, for people
  std::string subject;  // who: the name that groups have
  double ratio = 0;     // how much it departs, 0 where that means nothing
};

// Bytes and operations between two kinds of ends, by the direction in which the data goes.
struct Matrix {
  struct Flow {
    std::string from, to;
    uint64_t bytes = 0, operations = 0;
  };
  std::string_view name;     // "node", "rank", "nic"
  std::vector<Flow> flows;   // by from, to
  std::optional<Skew> skew;  // of the bytes of the off-diagonal; its indices are those of flows
};

struct ErrorGroup {
  std::string queue_pair, peer;
  std::optional<FirstError> first;
  std::map<uint32_t, uint64_t> statuses;
};

struct ConfigDifference {
  std::string where;      // "node1 rc"
  std::string attribute;  // "path_mtu"
  struct Value {
    std::string text;
    size_t queue_pairs = 0;
    std::vector<std::string> examples;  // at most 4
  };
  std::vector<Value> values;  // the most frequent first
};

struct Report {
  std::vector<std::string> coverage;
  std::vector<ReportFinding> verdict;  // worst first
  uint64_t duration_ns = 0;
  size_t queue_pairs = 0, peers = 0, processes = 0;
  Tally totals;
  std::map<GroupBy, std::vector<Group>> groups;  // the most bytes first
  std::vector<Matrix> matrices;
  Barriers barriers;
  std::vector<std::string> barrier_ranks;  // names, as in barriers.ranks
  std::vector<ReportFinding> stragglers;   // and declines
  struct Pending {
    PendingOperation operation;
    std::string queue_pair, peer;
    std::optional<uint64_t> age_ns;
  };
  std::vector<Pending> pending;
  std::vector<ErrorGroup> errors;
  std::vector<ConfigDifference> config;
  std::vector<Group> rails;
  std::optional<Skew> rail_skew;
  struct Receiver {
    std::string name;
    IncastReceiver incast;
  };
  std::vector<Receiver> receivers;  // the most senders at once first
  struct Memory {
    uint64_t regions = 0, bytes = 0;  // that were there at any time
    uint64_t alive = 0;               // still at the end
    uint64_t older = 0;               // made before the trace
    RegistrationTotals registrations;
  } memory;
  struct PortCounter {
    std::string port, counter;
    uint64_t increase = 0;
    double per_second = 0;
    CounterMeaning meaning;
  };
  std::vector<PortCounter> ports;  // counters that moved, trouble first
  struct Mark {
    std::string reason, text;
    uint64_t time_ns = 0;  // UTC
    std::string node;      // where there are several
  };
  std::vector<Mark> marks;  // by time
  // How long completions lay in their queue until the job polled them; the longest (p99) first.
  struct PickUps {
    std::string queue_pair, process;
    Queue queue = Queue::send;
    Histogram delay_ns;
    uint64_t error_ns = 0;  // the largest
  };
  std::vector<PickUps> pick_ups;
};

struct ReportContext {
  std::vector<std::string> coverage;  // see coverage_statement
  uint64_t lost_records = 0;          // dropped or missing
  uint64_t end_ns = 0;                // UTC, of the trace; 0: unknown
  uint64_t duration_ns = 0;
  Hosts hosts;
  // Rank of a process, by (index of its node, pid).
  std::map<std::pair<uint32_t, uint32_t>, uint32_t> ranks;
  std::vector<std::pair<uint32_t, std::shared_ptr<const QueuePair>>>
      queue_pairs;  // node, attributes
  std::vector<MemoryRegion> memory_regions;
  RegistrationTotals registrations;
  std::vector<PortCounterChange> port_counters;
  std::vector<Report::Mark> marks;
};

Report make_report(const Rows& rows, const ReportContext& context);

// config.cpp: attributes in which connected queue pairs differ that should agree.
std::vector<ConfigDifference> compare_config(
    const std::vector<std::string>& nodes,
    const std::vector<std::pair<uint32_t, std::shared_ptr<const QueuePair>>>& queue_pairs);
// The UDP source port that a RoCEv2 flow label becomes (rdma_flow_label_to_udp_sport,
// rdma/ib_verbs.h).
uint16_t udp_source_port(uint32_t flow_label);

// What a completion status usually means; "" for success and unknown ones.
std::string_view meaning_of(uint32_t status);

struct ReportSections {
  std::vector<GroupBy> by;
  bool matrix = false, barriers = false, stragglers = false, pending = false, errors = false,
       config = false, rails = false;
  bool all() const {  // none named: all that have something to say
    return by.empty() && !matrix && !barriers && !stragglers && !pending && !errors && !config &&
           !rails;
  }
};
std::string report_text(const Report& report, const ReportSections& sections, const Style& style);
std::string report_json(const Report& report);

}  // namespace sigma
