// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Rows: operations, sorted into queue pairs and peers as they come; the one pass that all of report
// is made from. Times become UTC here, so that traces of several machines go together.
//
//   Rows rows;
//   rows.begin_trace("node1", clock);
//   Replay replay(reader, rows); replay.run();
//   Report report = make_report(rows, ...);       // report.h
//
// Memory: a row for each queue pair and peer (beyond Limits, one for all further), in it a cell for
// each opcode and size class that occurs.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <unordered_map>
#include <vector>

#include "analysis/barriers.h"
#include "analysis/tally.h"
#include "base/clock.h"
#include "session/operation.h"

namespace sigma {

// Of one opcode and size class in one row.
struct Cell {
  Tally tally;
  Series series;  // send queue only
};

struct ErrorSample {
  uint32_t status = 0;
  std::optional<uint32_t> vendor_err;
  Opcode opcode = Opcode::unknown;
  Queue queue = Queue::send;
  std::optional<uint64_t> wr_id, complete_ns;
};

// A queue pair; for UD, a queue pair and one peer.
struct Row {
  static constexpr size_t kOpcodes = static_cast<size_t>(Opcode::unknown) + 1;

  size_t number = 0;                    // in Rows
  uint32_t node = 0;                    // index in Rows::nodes()
  std::shared_ptr<const QueuePair> qp;  // its newest description; null: requests of shared queues,
                                        // and the row for all beyond the limit
  uint32_t pid = 0;
  std::string comm;
  std::optional<uint32_t> peer_qp_num;
  Address peer;
  std::array<std::array<std::unique_ptr<Cell>, kSizeClasses>, kOpcodes> cells;
  Tally totals;  // all but its histogram, which is the cells' sum
  std::optional<ErrorSample> first_error;
  std::map<uint32_t, uint64_t> statuses;  // of errors

  Tally sum() const;
  // Of what it sent: the send queue's operations.
  Tally sent() const;

 private:
  friend class Rows;
  // Completion times of the send queue's newest operations: those still later than a post are
  // outstanding with it. A ring, a power of two, grown to the depth that occurs.
  std::vector<uint64_t> outstanding_;
  size_t oldest_ = 0, outstanding_count_ = 0;
  std::array<std::array<uint64_t, kSizeClasses>, kOpcodes> busy_until_{};
  uint64_t row_busy_until_ = 0;
};

struct PendingOperation {
  size_t row = 0;
  std::optional<uint64_t> time_ns;
  Opcode opcode = Opcode::unknown;
  Queue queue = Queue::send;
  std::optional<uint64_t> bytes, wr_id;
};

class Rows final : public OperationSink {
 public:
  struct Limits {
    size_t rows = 1 << 14;
    size_t pending = 64;  // unfinished operations described; all are counted
  };
  Rows() : Rows(Limits()) {}
  explicit Rows(const Limits& limits) : limits_(limits) {}

  void begin_trace(const std::string& node, const UtcClock& clock);
  void on_operation(const Operation& operation) override;

  const std::vector<std::unique_ptr<Row>>& rows() const { return rows_; }
  const std::vector<std::string>& nodes() const { return nodes_; }
  const BarrierFinder& barriers() const { return barriers_; }
  // The oldest first.
  std::vector<PendingOperation> pending() const;

 private:
  using Key =
      std::tuple<uint32_t, std::string, uint32_t, uint32_t, uint32_t, uint32_t, std::string>;

  Row& row_of(const Operation& operation);
  void note_depth(Row& row, Tally& tally, uint64_t post_ns, uint64_t complete_ns);
  void note_pending(const Row& row, const Operation& operation);

  Limits limits_;
  UtcClock clock_{ClockPair{}};
  std::vector<std::string> nodes_;
  uint32_t node_ = 0;
  std::vector<std::unique_ptr<Row>> rows_;
  std::map<Key, Row*> by_key_;
  // Of connected queue pairs. The shared_ptr in Row keeps a description alive; a newer one replaces
  // it.
  std::unordered_map<const QueuePair*, Row*> by_description_;
  std::vector<std::shared_ptr<const QueuePair>> kept_;
  const QueuePair* last_qp_ = nullptr;
  Row* last_row_ = nullptr;
  Row* beyond_ = nullptr;
  std::vector<PendingOperation> pending_;  // a heap: the newest on top
  BarrierFinder barriers_;
};

}  // namespace sigma
