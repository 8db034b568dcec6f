// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// What people read at the end of an attach: totals, opcodes, queue pairs with their peers, errors
// with their first cause, and the coverage statement. And the live line while it runs.
//
//   SummarySink summary({clock});
//   session calls summary.on_operation(operation) ...
//   fputs(summary.text({...}, style_for(STDERR_FILENO)).c_str(), stderr);
//
// Memory is bounded: beyond SummaryOptions::queue_pairs, further ones share one row.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <tuple>
#include <unordered_map>
#include <vector>

#include "base/clock.h"
#include "base/counters.h"
#include "base/histogram.h"
#include "base/terminal.h"
#include "session/operation.h"

namespace sigma {

struct SummaryOptions {
  UtcClock clock;
  size_t queue_pairs = 1024;  // of which statistics are kept apart
};

struct SummaryContext {
  const Counters& counters;
  std::span<const std::string> remarks = {};  // see coverage_statement
  uint64_t duration_ns = 0;                   // traced time
  size_t rows = 10;                           // the most queue pairs and errors shown
  bool colour = false;
};

struct LiveTotals {
  uint64_t operations = 0;
  uint64_t bytes = 0;
  uint64_t errors = 0;
  uint64_t dropped = 0;  // records lost so far
};

class SummarySink final : public OperationSink {
 public:
  explicit SummarySink(const SummaryOptions& options) : options_(options) {}

  void on_operation(const Operation& operation) override;
  void on_pick_up(const PickUp& pick_up) override;

  std::string text(const SummaryContext& context) const;
  // `dropped` is the caller's.
  LiveTotals totals() const { return {all_.operations, all_.bytes, all_.errors, 0}; }

 private:
  struct Tally {
    uint64_t operations = 0;
    uint64_t bytes = 0;
    uint64_t unfinished = 0;
    uint64_t errors = 0;  // first errors: any status but success and flush
    uint64_t flushed = 0;
    Histogram latency_ns;

    void add(const Operation& operation, bool with_latency = true);
  };
  struct QueuePairRow {
    std::shared_ptr<const QueuePair> qp;  // the newest description; null in the shared row
    uint32_t pid = 0;
    std::string comm;
    std::optional<uint32_t> peer_qp_num;  // the only one seen; see many_peers
    Address peer;
    bool many_peers = false;
    Tally tally;
    Histogram pick_up_ns;
    std::optional<FirstError> first_error;
  };
  // Numbers repeat across devices and processes, and are reused.
  using Key = std::tuple<std::string, uint32_t, uint32_t, uint32_t>;  // device, qp_num, life, pid

  QueuePairRow& row_of(const Operation& operation);
  // The shared row: that of all beyond the limit.
  QueuePairRow& row_of(const std::shared_ptr<const QueuePair>& described);
  void note_peer(QueuePairRow& row, const Operation& operation);

  void add_totals(std::string& out, const SummaryContext& context) const;
  void add_opcodes(std::string& out, const SummaryContext& context) const;
  void add_queue_pairs(std::string& out, const SummaryContext& context) const;
  void add_pick_ups(std::string& out, const SummaryContext& context) const;
  void add_errors(std::string& out, const SummaryContext& context) const;

  static constexpr size_t kOpcodes = static_cast<size_t>(Opcode::unknown) + 1;

  SummaryOptions options_;
  Tally all_;
  std::array<Tally, kOpcodes> opcodes_;
  Histogram pick_up_ns_;
  std::map<Key, QueuePairRow> rows_;
  QueuePairRow shared_row_;  // of queue pairs beyond the limit, and of SRQ posts without one
  // Rows that operations were found to belong to, by the place of their description: many queue pairs are in
  // use at once.
  std::array<QueuePairRow*, 256> recent_rows_{};
};

// One line of live totals, at most `width` columns: what happened since `before`, `seconds` ago.
// For a terminal; written nowhere else.
std::string live_line(const LiveTotals& now, const LiveTotals& before, double seconds,
                      unsigned width);

}  // namespace sigma
