// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Rows: operations, sorted into queue pairs and peers as they come; the one pass that all of report
// is made from. Times become UTC here, so that traces of several machines go together.
//
//   Rows rows({}, threads);
//   rows.begin_trace("node1", clock);
//   Replay replay(reader, rows); replay.run();
//   rows.end_trace();
//   Report report = make_report(rows, ...);       // report.h
//
// The thread that calls finds an operation's row and makes a sample of it, a plain value; with more
// than one thread others count the samples: each row belongs to one of them, and what relates rows
// (barriers, incast) to another, so the order that counts is that of the calls, and the result the
// same for any number.
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
#include "analysis/incast.h"
#include "analysis/tally.h"
#include "base/clock.h"
#include "base/stage.h"
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
  // Number of its peer's address in Rows::incast(), where that is known.
  std::optional<uint32_t> receiver() const { return receiver_; }

 private:
  friend class Rows;
  bool own_peer_ = false;             // differs from that of the queue pair: UD
  std::optional<uint32_t> receiver_;  // number of the peer's address
  uint32_t sender_ = 0;               // number of the process
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
  uint64_t number = 0;  // in order of the calls
};

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
  void on_operation(const Operation& operation) override;
  void end_trace();

  // After end_trace().
  const std::vector<std::unique_ptr<Row>>& rows() const { return rows_; }
  const std::vector<std::string>& nodes() const { return nodes_; }
  const BarrierFinder& barriers() const { return barriers_; }
  const Incast& incast() const { return incast_; }
  // The oldest first.
  std::vector<PendingOperation> pending() const;

 private:
  struct Sample;
  struct Shard;
  using Key =
      std::tuple<uint32_t, std::string, uint32_t, uint32_t, uint32_t, uint32_t, std::string>;
  // What a row is looked up by: the description, and the peer where it is the operation's own.
  struct Ends {
    const QueuePair* qp = nullptr;
    std::optional<uint32_t> peer_qp_num;
    Address peer;
    bool operator==(const Ends& other) const;
  };
  struct HashOfEnds {
    size_t operator()(const Ends& ends) const;
  };

  Row& row_of(const Operation& operation);
  Row& make_row(const Operation& operation, bool own_peer);
  void relate(const Sample& sample);

  Limits limits_;
  UtcClock clock_{ClockPair{}};
  std::vector<std::string> nodes_;
  uint32_t node_ = 0;
  uint64_t operations_ = 0;
  std::vector<std::unique_ptr<Row>> rows_;
  std::map<Key, Row*> by_key_;
  std::unordered_map<Ends, Row*, HashOfEnds> by_ends_;
  std::vector<std::shared_ptr<const QueuePair>> kept_;  // so that an address stays its own
  Ends last_;  // as the last operation named them
  Row* last_row_ = nullptr;
  Row* beyond_ = nullptr;
  std::map<std::pair<uint32_t, uint32_t>, uint32_t> senders_;  // node, pid
  std::map<std::string, uint32_t> receivers_;                  // by address_text
  BarrierFinder barriers_;
  Incast incast_;
  std::vector<std::unique_ptr<Shard>> shards_;
  std::unique_ptr<Stage<Sample>> relations_;  // null: by the caller, or by the only shard's
};

}  // namespace sigma
