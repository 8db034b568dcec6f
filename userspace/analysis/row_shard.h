// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// RowShard: one of Rows' sinks: finds the row of an operation, and counts it there. For Rows alone.
#pragma once

#include <deque>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "analysis/rows.h"

namespace sigma {

class RowShard final : public OperationSink {
 public:
  // `at_once`: it is the only one, and says what relates rows as it comes.
  RowShard(Rows& rows, bool at_once) : rows_(rows), at_once_(at_once) {}

  void begin_trace();
  void on_operation(const Operation& operation) override;
  void on_pick_up(const PickUp& pick_up) override;
  void end_round() override;
  // By Rows::relate: of the oldest round that has ended, in order of their records.
  std::vector<Relation> take_round();
  void give_back(std::vector<Relation> round);

  // Of the trace that ends: those of queue pairs beyond the limit are left out, as they were when they came.
  std::vector<PickUpRow> take_pick_ups();
  const std::vector<PendingOperation>& pending() const { return pending_; }
  // Of two the newer.
  static bool later(const PendingOperation& a, const PendingOperation& b);

 private:
  struct Sample;
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
  Row& find_row(const Operation& operation);
  void count(Row& row, const Sample& sample);
  void relate(Row& row, const Sample& sample);
  void add(const Relation& relation);
  static void note_error(Row& row, const Sample& sample);
  static void note_depth(Row& row, Tally& tally, uint64_t post_ns, uint64_t complete_ns);
  void note_pending(const Row& row, const Sample& sample);

  Rows& rows_;
  bool at_once_;
  std::unordered_map<Ends, Row*, HashOfEnds> by_ends_;
  std::vector<std::shared_ptr<const QueuePair>> kept_;  // so that an address stays its own
  Ends last_;  // as the last operation named them
  Row* last_row_ = nullptr;
  std::unordered_map<const QueuePair*, std::array<PickUpRow, 2>> pick_ups_;  // by enum class Queue
  std::vector<PendingOperation> pending_;  // a heap: the newest on top
  std::vector<Relation> relations_;        // of this round
  std::mutex mutex_;
  std::deque<std::vector<Relation>> rounds_;  // that have ended
  std::vector<std::vector<Relation>> free_;
};

}  // namespace sigma
