// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
#include "analysis/rows.h"

#include <fmt/format.h>

#include "base/human.h"

namespace sigma {
namespace {

bool is_known(const Address& address) {
  return address.gid || address.lid;
}

bool later(const PendingOperation& a, const PendingOperation& b) {
  return a.time_ns.value_or(0) < b.time_ns.value_or(0);
}

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
  for (const auto& of_opcode : cells)
    for (const auto& cell : of_opcode)
      if (cell) all.add(cell->tally);
  all.busy_ns = totals.busy_ns;
  all.depth_max = totals.depth_max;
  return all;
}

Tally Row::sent() const {
  Tally all;
  for (size_t opcode = 0; opcode < kOpcodes; ++opcode) {
    if (opcode == static_cast<size_t>(Opcode::recv) ||
        opcode == static_cast<size_t>(Opcode::recv_rdma_with_imm))
      continue;
    for (const auto& cell : cells[opcode])
      if (cell) all.add(cell->tally);
  }
  all.busy_ns = totals.busy_ns;
  all.depth_max = totals.depth_max;
  return all;
}

void Rows::begin_trace(const std::string& node, const UtcClock& clock) {
  clock_ = clock;
  node_ = static_cast<uint32_t>(nodes_.size());
  nodes_.push_back(node);
  by_description_.clear();
  last_qp_ = nullptr;
}

Row& Rows::row_of(const Operation& operation) {
  const QueuePair* qp = operation.qp.get();
  const bool own_peer = operation.peer_qp_num || is_known(operation.peer);
  if (qp && qp == last_qp_ && !own_peer) return *last_row_;
  if (qp && !own_peer) {
    if (const auto found = by_description_.find(qp); found != by_description_.end()) {
      last_qp_ = qp;
      return *(last_row_ = found->second);
    }
  }
  const Address& peer = is_known(operation.peer) || !qp ? operation.peer : qp->peer;
  const auto peer_qp_num = operation.peer_qp_num || !qp ? operation.peer_qp_num : qp->peer_qp_num;
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
      return *row;
    }
    by_key_.emplace(key, row);
    row->pid = qp ? qp->pid : operation.pid;
  } else {
    return *beyond_;
  }
  row->qp = operation.qp;
  row->peer = peer;
  row->peer_qp_num = peer_qp_num;
  if (!operation.comm.empty() && row->comm != operation.comm) row->comm = operation.comm;
  if (qp && !own_peer && kept_.size() < 4 * limits_.rows) {
    // Kept, so that its address stays its own.
    kept_.push_back(operation.qp);
    by_description_.emplace(qp, row);
    last_qp_ = qp;
    last_row_ = row;
  }
  return *row;
}

void Rows::on_operation(const Operation& operation) {
  Row& row = row_of(operation);
  const uint64_t bytes = operation.bytes.value_or(0);
  const auto opcode = static_cast<size_t>(operation.opcode);
  const size_t size = size_class(bytes);
  auto& cell = row.cells[opcode][size];
  if (!cell) cell = std::make_unique<Cell>();
  Tally& tally = cell->tally;

  ++tally.operations;
  tally.bytes += bytes;
  std::optional<uint64_t> post_ns, complete_ns;
  if (operation.time_ns) post_ns = clock_.utc_ns(*operation.time_ns);
  if (operation.complete_ns) complete_ns = clock_.utc_ns(*operation.complete_ns);
  for (const auto& time : {post_ns, complete_ns})
    if (time) {
      tally.first_ns = std::min(tally.first_ns, *time);
      tally.last_ns = std::max(tally.last_ns, *time);
    }

  if (!operation.status) {
    ++tally.unfinished;
    note_pending(row, operation);
    return;
  }
  if (*operation.status != kStatusSuccess) {
    ++(*operation.status == kStatusFlushed ? tally.flushed : tally.errors);
    if (row.statuses.size() < 64 || row.statuses.contains(*operation.status))
      ++row.statuses[*operation.status];
    if (*operation.status != kStatusFlushed && !row.first_error)
      row.first_error = {*operation.status, operation.vendor_err, operation.opcode,
                         operation.queue,   operation.wr_id,      complete_ns};
    return;
  }
  ++tally.completed;
  if (operation.latency_ns) tally.latency_ns.add(*operation.latency_ns);
  if (operation.queue != Queue::send || !post_ns || !complete_ns || *complete_ns < *post_ns) return;

  tally.outstanding_ns += *complete_ns - *post_ns;
  const auto busy = [&](uint64_t& until) {
    const uint64_t from = std::max(until, *post_ns);
    const uint64_t added = *complete_ns > from ? *complete_ns - from : 0;
    until = std::max(until, *complete_ns);
    return added;
  };
  const uint64_t cell_busy_ns = busy(row.busy_until_[opcode][size]);
  tally.busy_ns += cell_busy_ns;
  cell->series.add(*complete_ns, bytes, cell_busy_ns);
  row.totals.busy_ns += busy(row.row_busy_until_);
  note_depth(row, tally, *post_ns, *complete_ns);

  if (BarrierFinder::is_signal(operation))
    barriers_.on_signal(node_, row.pid, row.number, *post_ns);
}

// A send queue completes in posting order, so both times go up.
void Rows::note_depth(Row& row, Tally& tally, uint64_t post_ns, uint64_t complete_ns) {
  auto& ring = row.outstanding_;
  const auto at = [&](size_t i) -> uint64_t& {
    return ring[(row.oldest_ + i) & (ring.size() - 1)];
  };
  while (row.outstanding_count_ > 0 && at(0) <= post_ns) {
    row.oldest_ = (row.oldest_ + 1) & (ring.size() - 1);
    --row.outstanding_count_;
  }
  constexpr size_t kMost = 1 << 16;
  if (row.outstanding_count_ == ring.size() && ring.size() < kMost) {
    std::vector<uint64_t> larger(std::max<size_t>(16, 2 * ring.size()));
    for (size_t i = 0; i < row.outstanding_count_; ++i) larger[i] = at(i);
    ring = std::move(larger);
    row.oldest_ = 0;
  }
  if (row.outstanding_count_ < ring.size()) at(row.outstanding_count_++) = complete_ns;
  const auto depth = static_cast<uint32_t>(row.outstanding_count_);
  tally.depth_max = std::max(tally.depth_max, depth);
  row.totals.depth_max = std::max(row.totals.depth_max, depth);
}

void Rows::note_pending(const Row& row, const Operation& operation) {
  PendingOperation pending{row.number,      std::nullopt,    operation.opcode,
                           operation.queue, operation.bytes, operation.wr_id};
  if (operation.time_ns) pending.time_ns = clock_.utc_ns(*operation.time_ns);
  pending_.push_back(pending);
  std::push_heap(pending_.begin(), pending_.end(), later);
  if (pending_.size() <= limits_.pending) return;
  std::pop_heap(pending_.begin(), pending_.end(), later);
  pending_.pop_back();
}

std::vector<PendingOperation> Rows::pending() const {
  auto sorted = pending_;
  std::sort(sorted.begin(), sorted.end(), later);
  return sorted;
}

}  // namespace sigma
