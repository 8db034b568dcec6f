// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
#include "analysis/row_shard.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/human.h"
#include "session/flat_map.h"

namespace sigma {
namespace {

bool is_known(const Address& address) {
  return address.gid || address.lid;
}

bool same(const Address& a, const Address& b) {
  return a.gid == b.gid && a.lid == b.lid;
}

}  // namespace

// What is counted of an operation: a field that `known` does not name is 0.
struct RowShard::Sample {
  enum Known : uint8_t {
    kPost = 1 << 0,
    kComplete = 1 << 1,
    kLatency = 1 << 2,
    kBytes = 1 << 3,
    kWrId = 1 << 4,
    kStatus = 1 << 5,
    kVendorErr = 1 << 6,
  };
  uint64_t post_ns, complete_ns;  // UTC
  uint64_t latency_ns, bytes, wr_id;
  uint32_t status, vendor_err;
  Opcode opcode;
  Queue queue;
  uint8_t known;

  bool knows(unsigned fields) const { return (known & fields) == fields; }
  template <typename T>
  std::optional<T> if_known(Known field, T value) const {
    return knows(field) ? std::optional(value) : std::nullopt;
  }
  // An operation with both times on a send queue: it occupies queue, path and peer.
  bool occupies() const {
    return status == kStatusSuccess && queue == Queue::send &&
           knows(kStatus | kPost | kComplete) && complete_ns >= post_ns;
  }
};

// ---- finding the row ----------------------------------------------------------------------------

bool RowShard::Ends::operator==(const Ends& other) const {
  return qp == other.qp && peer_qp_num == other.peer_qp_num && same(peer, other.peer);
}

size_t RowShard::HashOfEnds::operator()(const Ends& ends) const {
  uint64_t low = 0, high = 0;
  if (ends.peer.gid) {
    std::memcpy(&low, ends.peer.gid->data(), sizeof low);
    std::memcpy(&high, ends.peer.gid->data() + sizeof low, sizeof high);
  }
  const uint64_t number = ends.peer_qp_num.value_or(0);
  return mix64(mix64(reinterpret_cast<uintptr_t>(ends.qp) ^ number << 32) ^ low ^ mix64(high) ^
               ends.peer.lid.value_or(0));
}

void RowShard::begin_trace() {
  by_ends_.clear();
  pick_ups_.clear();
  kept_.clear();
  last_row_ = nullptr;
}

// The peer of a connected queue pair is the same in each operation; that of a datagram its own.
Row& RowShard::row_of(const Operation& operation) {
  const QueuePair* qp = operation.qp.get();
  // Operations come in runs of one queue pair and peer.
  if (last_row_ && qp && qp == last_.qp && operation.peer_qp_num == last_.peer_qp_num &&
      same(operation.peer, last_.peer))
    return *last_row_;
  return find_row(operation);
}

Row& RowShard::find_row(const Operation& operation) {
  const QueuePair* qp = operation.qp.get();
  const bool own_peer =
      qp && (operation.peer_qp_num || is_known(operation.peer)) &&
      (operation.peer_qp_num != qp->peer_qp_num || !same(operation.peer, qp->peer));
  Ends ends{qp, std::nullopt, {}};
  if (own_peer || !qp) {
    ends.peer_qp_num = operation.peer_qp_num;
    ends.peer = operation.peer;
  }
  Row* row = nullptr;
  if (qp)
    if (const auto found = by_ends_.find(ends); found != by_ends_.end()) row = found->second;
  if (!row) {
    row = &rows_.make_row(operation, own_peer);
    if (qp && by_ends_.size() < 4 * rows_.limits_.rows) {
      kept_.push_back(operation.qp);
      by_ends_.emplace(ends, row);
    }
  }
  last_ = {qp, operation.peer_qp_num, operation.peer};
  last_row_ = row;
  if (!operation.comm.empty() && !row->is_beyond_ && row->comm != operation.comm)
    row->comm = operation.comm;
  return *row;
}

void RowShard::on_operation(const Operation& operation) {
  Row& row = row_of(operation);
  uint8_t known = 0;
  const auto take = [&known](const auto& field, Sample::Known bit) {
    if (!field) return std::decay_t<decltype(*field)>{};
    known |= bit;
    return *field;
  };
  Sample sample{
      .post_ns = take(operation.time_ns, Sample::kPost),
      .complete_ns = take(operation.complete_ns, Sample::kComplete),
      .latency_ns = take(operation.latency_ns, Sample::kLatency),
      .bytes = take(operation.bytes, Sample::kBytes),
      .wr_id = take(operation.wr_id, Sample::kWrId),
      .status = take(operation.status, Sample::kStatus),
      .vendor_err = take(operation.vendor_err, Sample::kVendorErr),
      .opcode = operation.opcode,
      .queue = operation.queue,
      .known = known,
  };
  if (known & Sample::kPost) sample.post_ns = rows_.clock_.utc_ns(sample.post_ns);
  if (known & Sample::kComplete) sample.complete_ns = rows_.clock_.utc_ns(sample.complete_ns);
  if (row.is_beyond_) {
    // Any thread's operations may be among these; of what relates rows they are no part.
    const std::lock_guard lock(rows_.beyond_mutex_);
    return count(row, sample);
  }
  count(row, sample);
  if (!sample.occupies()) return;
  if (BarrierFinder::is_signal(operation.opcode, operation.bytes, operation.signaled))
    add({.record = operation.record, .row = &row, .is_signal = true, .n = row.signals_++, .post_ns = sample.post_ns,
         .post_error_ns = operation.time_error_ns.value_or(0)});
  if (!row.receiver_) {
    const bool of_qp = operation.qp && !is_known(operation.peer);
    const Address& peer = of_qp ? operation.qp->peer : operation.peer;
    if (!is_known(peer)) return;
    row.receiver_ = rows_.receiver_of(address_text(peer));
  }
  if (const auto span = row.lane_.add(sample.post_ns, sample.complete_ns))
    add({.record = operation.record, .row = &row, .span = *span});
}

void RowShard::on_pick_up(const PickUp& pick_up) {
  auto found = pick_ups_.find(pick_up.qp.get());
  if (found == pick_ups_.end()) {
    if (pick_ups_.size() >= rows_.limits_.rows) return;
    found = pick_ups_.try_emplace(pick_up.qp.get()).first;
  }
  PickUpRow& row = found->second[static_cast<size_t>(pick_up.queue)];
  if (!row.qp) {
    row.node = rows_.node_;
    row.qp = pick_up.qp;
    row.pid = pick_up.pid;
    row.queue = pick_up.queue;
  }
  row.delay_ns.add(pick_up.delay_ns);
  row.error_ns = std::max(row.error_ns, pick_up.error_ns);
}

std::vector<PickUpRow> RowShard::take_pick_ups() {
  std::vector<PickUpRow> all;
  for (auto& [qp, sides] : pick_ups_)
    for (PickUpRow& row : sides)
      if (row.qp) all.push_back(std::move(row));
  pick_ups_.clear();
  return all;
}

// ---- what relates rows --------------------------------------------------------------------------

void RowShard::add(const Relation& relation) {
  if (at_once_) return rows_.relate(relation);
  relations_.push_back(relation);
}

void RowShard::end_round() {
  if (at_once_) return;
  const std::lock_guard lock(mutex_);
  rounds_.push_back(std::move(relations_));
  if (free_.empty()) {
    relations_ = {};
  } else {
    relations_ = std::move(free_.back());
    free_.pop_back();
  }
}

std::vector<Relation> RowShard::take_round() {
  const std::lock_guard lock(mutex_);
  if (rounds_.empty()) return {};
  std::vector<Relation> round = std::move(rounds_.front());
  rounds_.pop_front();
  return round;
}

void RowShard::give_back(std::vector<Relation> round) {
  round.clear();
  const std::lock_guard lock(mutex_);
  free_.push_back(std::move(round));
}

// ---- counting -----------------------------------------------------------------------------------

void RowShard::count(Row& row, const Sample& sample) {
  const uint64_t bytes = sample.bytes;
  const auto opcode = static_cast<size_t>(sample.opcode);
  const size_t size = size_class(bytes);
  auto& cell = row.cells[opcode][size];
  if (!cell) cell = std::make_unique<Cell>();
  Tally& tally = cell->tally;

  ++row.operations_;
  ++tally.operations;
  tally.bytes += bytes;
  const uint64_t post_ns = sample.post_ns, complete_ns = sample.complete_ns;
  const auto spans = [&tally](uint64_t time_ns) {
    tally.first_ns = std::min(tally.first_ns, time_ns);
    tally.last_ns = std::max(tally.last_ns, time_ns);
  };
  if (sample.knows(Sample::kPost)) spans(post_ns);
  if (sample.knows(Sample::kComplete)) spans(complete_ns);
  if (!sample.knows(Sample::kStatus)) {
    ++tally.unfinished;
    return note_pending(row, sample);
  }
  if (sample.status != kStatusSuccess) {
    ++(is_first_error(sample.status) ? tally.errors : tally.flushed);
    return note_error(row, sample);
  }
  ++tally.completed;
  if (sample.knows(Sample::kLatency)) tally.latency_ns.add(sample.latency_ns);
  if (!sample.occupies()) return;

  tally.outstanding_ns += complete_ns - post_ns;
  const auto busy = [&](uint64_t& until) {
    const uint64_t from = std::max(until, post_ns);
    const uint64_t added = complete_ns > from ? complete_ns - from : 0;
    until = std::max(until, complete_ns);
    return added;
  };
  const uint64_t cell_busy_ns = busy(row.busy_until_[opcode][size]);
  tally.busy_ns += cell_busy_ns;
  cell->series.add(complete_ns, bytes, cell_busy_ns);
  row.totals.busy_ns += busy(row.row_busy_until_);
  note_depth(row, tally, post_ns, complete_ns);
}

void RowShard::note_error(Row& row, const Sample& sample) {
  const uint32_t status = sample.status;
  if (row.statuses.size() < 64 || row.statuses.contains(status)) ++row.statuses[status];
  if (is_first_error(status) && !row.first_error)
    row.first_error = {status,
                       sample.if_known(Sample::kVendorErr, sample.vendor_err),
                       sample.opcode,
                       sample.queue,
                       sample.if_known(Sample::kWrId, sample.wr_id),
                       sample.if_known(Sample::kComplete, sample.complete_ns)};
}

// A send queue completes in posting order, so both times go up.
void RowShard::note_depth(Row& row, Tally& tally, uint64_t post_ns, uint64_t complete_ns) {
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

void RowShard::note_pending(const Row& row, const Sample& sample) {
  pending_.push_back({&row, sample.if_known(Sample::kPost, sample.post_ns), sample.opcode, sample.queue,
                      sample.if_known(Sample::kBytes, sample.bytes), sample.if_known(Sample::kWrId, sample.wr_id),
                      row.operations_});
  std::push_heap(pending_.begin(), pending_.end(), later);
  if (pending_.size() <= rows_.limits_.pending) return;
  std::pop_heap(pending_.begin(), pending_.end(), later);
  pending_.pop_back();
}

bool RowShard::later(const PendingOperation& a, const PendingOperation& b) {
  const uint64_t a_ns = a.time_ns.value_or(0), b_ns = b.time_ns.value_or(0);
  if (a_ns != b_ns) return a_ns < b_ns;
  return std::tie(a.row->key_, a.number) < std::tie(b.row->key_, b.number);
}

}  // namespace sigma
