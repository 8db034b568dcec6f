// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
#include "analysis/rows.h"

#include <fmt/format.h>

#include <algorithm>

#include "analysis/row_shard.h"
#include "base/human.h"

namespace sigma {
namespace {

constexpr unsigned kMaxShards = 16;

}  // namespace

std::string size_class_name(size_t index) {
  if (index == 0) return "0 B";
  const uint64_t limit = uint64_t{64} << (2 * (index - 1));
  const auto text = [](uint64_t bytes) {
    if (bytes >= 1 << 20) return fmt::format("{} MiB", bytes >> 20);
    if (bytes >= 1 << 10) return fmt::format("{} KiB", bytes >> 10);
    return fmt::format("{} B", bytes);
  };
  return index + 1 == kSizeClasses ? "> " + text(limit / 4) : "<= " + text(limit);
}

Tally Row::sum() const {
  Tally all;
  for (size_t opcode = 0; opcode < kOpcodes; ++opcode)
    for (const auto& cell : cells[opcode])
      if (cell) all.add(cell->tally, latency_of(opcode));
  all.busy_ns = totals.busy_ns;
  all.depth_max = totals.depth_max;
  return all;
}

Tally Row::sent() const {
  Tally all;
  for (size_t opcode = 0; opcode < kOpcodes; ++opcode) {
    if (is_receive(opcode)) continue;
    for (const auto& cell : cells[opcode])
      if (cell) all.add(cell->tally);
  }
  all.busy_ns = totals.busy_ns;
  all.depth_max = totals.depth_max;
  return all;
}

Rows::Rows(const Limits& limits, unsigned threads) : limits_(limits) {
  // Beside the caller's thread, which has little to do where there are few.
  const unsigned shards = threads <= 2 ? std::max(1u, threads) : std::min(threads - 1, kMaxShards);
  for (unsigned i = 0; i < shards; ++i) {
    shards_.push_back(std::make_unique<RowShard>(*this, shards == 1));
    sinks_.push_back(shards_.back().get());
  }
}

Rows::~Rows() = default;

void Rows::begin_trace(const std::string& node, const UtcClock& clock) {
  clock_ = clock;
  node_ = static_cast<uint32_t>(nodes_.size());
  nodes_.push_back(node);
  first_of_trace_ = rows_.size();
  for (const auto& shard : shards_) shard->begin_trace();
}

bool Rows::before(const std::unique_ptr<Row>& a, const std::unique_ptr<Row>& b) {
  return std::pair(a->is_beyond_, a->key_) < std::pair(b->is_beyond_, b->key_);
}

void Rows::end_trace() {
  for (size_t i = first_of_trace_; i < rows_.size(); ++i)
    if (const auto until_ns = rows_[i]->lane_.until_ns()) incast_.on_last(rows_[i]->number, *until_ns);
  incast_.finish_trace();
  // A queue pair's peer may have become known after its first operations.
  for (const auto& row : rows_)
    if (row->node == node_ && row->qp && !row->own_peer_) {
      row->peer = row->qp->peer;
      row->peer_qp_num = row->qp->peer_qp_num;
    }
  take_pick_ups();
  std::sort(rows_.begin() + static_cast<ptrdiff_t>(first_of_trace_), rows_.end(), before);
  for (size_t i = first_of_trace_; i < rows_.size(); ++i) rows_[i]->number = i;
}

void Rows::on_operation(const Operation& operation) {
  shards_[0]->on_operation(operation);
}

void Rows::on_pick_up(const PickUp& pick_up) {
  shards_[0]->on_pick_up(pick_up);
}

// A queue pair may have gone from one thread to another.
void Rows::take_pick_ups() {
  for (const auto& shard : shards_)
    for (PickUpRow& part : shard->take_pick_ups()) {
      const QueuePair& qp = *part.qp;
      const auto [found, added] =
          pick_ups_.try_emplace({node_, qp.device, qp.qp_num, qp.life, part.pid, part.queue}, std::move(part));
      if (added) continue;
      found->second.delay_ns.add(part.delay_ns);
      found->second.error_ns = std::max(found->second.error_ns, part.error_ns);
    }
}

std::vector<const PickUpRow*> Rows::pick_ups() const {
  std::vector<const PickUpRow*> all;
  for (const auto& [key, row] : pick_ups_) all.push_back(&row);
  return all;
}

// ---- what any thread may need -------------------------------------------------------------------

Row& Rows::make_row(const Operation& operation, bool own_peer) {
  const std::lock_guard lock(mutex_);
  const QueuePair* qp = operation.qp.get();
  const Address& peer = own_peer || !qp ? operation.peer : qp->peer;
  const auto peer_qp_num = own_peer || !qp ? operation.peer_qp_num : qp->peer_qp_num;
  const Key key{node_,
                qp ? qp->device : "",
                qp ? qp->qp_num : 0,
                qp ? qp->life : 0,
                qp ? qp->pid : operation.pid,
                own_peer ? peer_qp_num.value_or(0) : 0,
                own_peer ? address_text(peer) : ""};
  Row* row = nullptr;
  if (const auto found = by_key_.find(key); found != by_key_.end()) {
    row = found->second;
  } else if (rows_.size() < limits_.rows || !beyond_) {
    rows_.push_back(std::make_unique<Row>());
    row = rows_.back().get();
    row->number = rows_.size() - 1;
    row->node = node_;
    if (rows_.size() > limits_.rows) {
      beyond_ = row;
      row->is_beyond_ = true;
      return *row;
    }
    by_key_.emplace(key, row);
    row->key_ = key;
    row->pid = qp ? qp->pid : operation.pid;
    row->sender_ = senders_.try_emplace({node_, row->pid}, static_cast<uint32_t>(senders_.size()))
                       .first->second;
  } else {
    return *beyond_;
  }
  row->qp = operation.qp;
  row->peer = peer;
  row->peer_qp_num = peer_qp_num;
  row->own_peer_ = own_peer || !qp;
  return *row;
}

uint32_t Rows::receiver_of(const std::string& address) {
  const std::lock_guard lock(mutex_);
  return receivers_.try_emplace(address, static_cast<uint32_t>(receivers_.size())).first->second;
}

// ---- what relates rows --------------------------------------------------------------------------

void Rows::relate(const Relation& relation) {
  const Row& row = *relation.row;
  if (relation.is_signal)
    barriers_.on_signal(row.node, row.pid, relation.n, relation.post_ns, relation.post_error_ns);
  else
    incast_.on_span(row.number, row.sender_, *row.receiver_, relation.span);
}

// Each shard's are in order already.
void Rows::relate() {
  std::vector<std::vector<Relation>> rounds;
  std::vector<size_t> at(shards_.size(), 0);
  for (const auto& shard : shards_) rounds.push_back(shard->take_round());
  for (;;) {
    const Relation* next = nullptr;
    size_t from = 0;
    for (size_t i = 0; i < rounds.size(); ++i) {
      if (at[i] == rounds[i].size()) continue;
      const Relation& relation = rounds[i][at[i]];
      if (next != nullptr && next->record <= relation.record) continue;
      next = &relation;
      from = i;
    }
    if (next == nullptr) break;
    relate(*next);
    ++at[from];
  }
  for (size_t i = 0; i < rounds.size(); ++i) shards_[i]->give_back(std::move(rounds[i]));
}

std::vector<PendingOperation> Rows::pending() const {
  std::vector<PendingOperation> all;
  for (const auto& shard : shards_) all.insert(all.end(), shard->pending().begin(), shard->pending().end());
  std::sort(all.begin(), all.end(), RowShard::later);
  if (all.size() > limits_.pending) all.resize(limits_.pending);
  return all;
}

}  // namespace sigma
