// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Rows: operations, sorted into queue pairs and peers as they come; the one pass that all of report
// is made from. Times become UTC here, so that traces of several machines go together.
//
//   Rows rows;
//   rows.begin_trace("node1", clock);
//   Replay replay(reader, rows); replay.run();
//   rows.end_trace();
//   Report report = make_report(rows, ...);       // report.h
//
// With several threads each sink of sinks() gets the operations of some of the queue pairs, by a thread of
// its own (session.h), and counts them: a row is of one of them. What relates rows (barriers, incast) is
// set aside, and put into the order of the records by relate(), round by round. Rows have an order of
// their own in the end. So the result is the same for any number of threads.
//
// Memory: a row for each queue pair and peer (beyond Limits, one for all further; which these are is
// then a matter of who came first), in it a cell for each opcode and size class that occurs.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "analysis/barriers.h"
#include "analysis/incast.h"
#include "analysis/tally.h"
#include "base/clock.h"
#include "session/operation.h"

namespace sigma {

// Of one opcode and size class in one row.
struct Cell {
  Tally tally;
  Series series;  // send queue only
};

// A queue pair; for UD, a queue pair and one peer.
struct Row {
  static constexpr size_t kOpcodes = static_cast<size_t>(Opcode::unknown) + 1;
  static constexpr bool is_receive(size_t opcode) {
    return opcode == static_cast<size_t>(Opcode::recv) ||
           opcode == static_cast<size_t>(Opcode::recv_rdma_with_imm);
  }
  static constexpr Tally::Latency latency_of(size_t opcode) {
    return is_receive(opcode) ? Tally::Latency::without : Tally::Latency::with;
  }

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
  std::optional<FirstError> first_error;
  std::map<uint32_t, uint64_t> statuses;  // of errors

  // A receive waits for its peer, which says nothing of the path: latencies are those of what was sent.
  Tally sum() const;
  // Of what it sent: the send queue's operations.
  Tally sent() const;
  // Number of its peer's address in Rows::incast(), where that is known.
  std::optional<uint32_t> receiver() const { return receiver_; }
  // Signals as BarrierFinder means them.
  uint64_t signals() const { return signals_; }

 private:
  friend class Rows;
  friend class RowShard;
  // By what rows are told apart; their order.
  using Key =
      std::tuple<uint32_t, std::string, uint32_t, uint32_t, uint32_t, uint32_t, std::string>;
  Key key_;
  bool is_beyond_ = false;            // the one for all beyond the limit
  bool own_peer_ = false;             // differs from that of the queue pair: UD
  std::optional<uint32_t> receiver_;  // number of the peer's address
  uint32_t sender_ = 0;               // number of the process
  uint64_t operations_ = 0, signals_ = 0;
  Lane lane_;
  // Completion times of the send queue's newest operations: those still later than a post are
  // outstanding with it. A ring, a power of two, grown to the depth that occurs.
  std::vector<uint64_t> outstanding_;
  size_t oldest_ = 0, outstanding_count_ = 0;
  std::array<std::array<uint64_t, kSizeClasses>, kOpcodes> busy_until_{};
  uint64_t row_busy_until_ = 0;
};

struct PendingOperation {
  const Row* row = nullptr;
  std::optional<uint64_t> time_ns;
  Opcode opcode = Opcode::unknown;
  Queue queue = Queue::send;
  std::optional<uint64_t> bytes, wr_id;
  uint64_t number = 0;  // of the row's operations
};

// How long the completions of a queue pair's queue lay there until a poll returned them.
struct PickUpRow {
  uint32_t node = 0;
  std::shared_ptr<const QueuePair> qp;
  uint32_t pid = 0;
  Queue queue = Queue::send;
  Histogram delay_ns;
  uint64_t error_ns = 0;  // the largest
};

// What relates rows, in the order of the records.
struct Relation {
  uint64_t record = 0;
  const Row* row = nullptr;
  bool is_signal = false;  // the n-th of its row; else a span
  uint64_t n = 0, post_ns = 0, post_error_ns = 0;
  Lane::Span span;
};

class RowShard;

class Rows final : public OperationSink {
 public:
  struct Limits {
    size_t rows = 1 << 14;
    size_t pending = 64;  // unfinished operations described; all are counted
  };
  Rows() : Rows(Limits()) {}
  // `threads`: as many as are to work at once, the caller's among them.
  explicit Rows(const Limits& limits, unsigned threads = 1);
  ~Rows() override;

  void begin_trace(const std::string& node, const UtcClock& clock);
  // Of a trace that one thread gives: all of it. Else each sink gets what is its own, and relate() is
  // SessionOptions::on_round.
  void on_operation(const Operation& operation) override;
  void on_pick_up(const PickUp& pick_up) override;
  std::span<OperationSink* const> sinks() const { return sinks_; }
  void relate();
  void end_trace();

  // After end_trace(). In order of node, device, number.
  const std::vector<std::unique_ptr<Row>>& rows() const { return rows_; }
  const std::vector<std::string>& nodes() const { return nodes_; }
  const BarrierFinder& barriers() const { return barriers_; }
  const Incast& incast() const { return incast_; }
  // The oldest first.
  std::vector<PendingOperation> pending() const;
  // After end_trace(). In order of node, device, number, life, process, queue.
  std::vector<const PickUpRow*> pick_ups() const;

 private:
  friend class RowShard;
  using Key = Row::Key;

  // By any thread: what is not known yet.
  Row& make_row(const Operation& operation, bool own_peer);
  uint32_t receiver_of(const std::string& address);
  void relate(const Relation& relation);
  void take_pick_ups();
  static bool before(const std::unique_ptr<Row>& a, const std::unique_ptr<Row>& b);

  Limits limits_;
  UtcClock clock_{ClockPair{}};
  std::vector<std::string> nodes_;
  uint32_t node_ = 0;
  size_t first_of_trace_ = 0;  // in rows_
  std::mutex mutex_;           // of what follows, while operations come
  std::vector<std::unique_ptr<Row>> rows_;
  std::map<Key, Row*> by_key_;
  Row* beyond_ = nullptr;
  std::mutex beyond_mutex_;
  std::map<std::pair<uint32_t, uint32_t>, uint32_t> senders_;  // node, pid
  std::map<std::string, uint32_t> receivers_;                  // by address_text

  // By node, device, number, life, pid, queue.
  std::map<std::tuple<uint32_t, std::string, uint32_t, uint32_t, uint32_t, Queue>, PickUpRow> pick_ups_;

  BarrierFinder barriers_;
  Incast incast_;
  std::vector<std::unique_ptr<RowShard>> shards_;
  std::vector<OperationSink*> sinks_;
};

}  // namespace sigma
