// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
#include "analysis/rows.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

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

bool later(const PendingOperation& a, const PendingOperation& b) {
  return std::pair(a.time_ns.value_or(0), a.number) < std::pair(b.time_ns.value_or(0), b.number);
}

bool is_trouble(uint32_t status) {
  return status != kStatusSuccess && status != kStatusFlushed;
}

constexpr uint32_t kNoReceiver = UINT32_MAX;
constexpr unsigned kMaxShards = 8;

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

// ---- samples: what is counted of an operation ---------------------------------------------------

// Small, for it travels between threads: a field that `known` does not name is 0.
struct Rows::Sample {
  enum Known : uint8_t {
    kPost = 1 << 0,
    kComplete = 1 << 1,
    kLatency = 1 << 2,
    kBytes = 1 << 3,
    kWrId = 1 << 4,
    kStatus = 1 << 5,
    kVendorErr = 1 << 6,
  };
  Row* row;
  uint64_t number;
  uint64_t post_ns, complete_ns;  // UTC
  uint64_t latency_ns, bytes, wr_id;
  uint32_t status, vendor_err;
  uint32_t receiver, sender;
  Opcode opcode;
  Queue queue;
  uint8_t known;
  bool is_signal;

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

// Some of the rows.
struct Rows::Shard {
  size_t max_pending;
  std::vector<PendingOperation> pending;  // a heap: the newest on top
  std::unique_ptr<Stage<Sample>> stage;   // null: by the caller

  void count(const Sample& sample);
  void note_error(const Sample& sample);
  void note_pending(const Sample& sample);
  static void note_depth(Row& row, Tally& tally, uint64_t post_ns, uint64_t complete_ns);
};

Rows::Rows(const Limits& limits, unsigned threads) : limits_(limits) {
  // Beside the caller's there is one for the relations; the others share the rows. Where there are
  // few, one does both: a sample that travels once costs less.
  const unsigned shards = std::clamp(threads / 2, 1u, kMaxShards);
  for (unsigned i = 0; i < shards; ++i)
    shards_.push_back(std::make_unique<Shard>(Shard{limits.pending, {}, nullptr}));
  if (threads <= 1) return;
  for (const auto& each : shards_) {
    Shard* const shard = each.get();
    const bool relates = shards == 1;
    shard->stage =
        std::make_unique<Stage<Sample>>([this, shard, relates](std::span<const Sample> samples) {
          for (const Sample& sample : samples) {
            shard->count(sample);
            if (relates) relate(sample);
          }
        });
  }
  if (shards > 1)
    relations_ = std::make_unique<Stage<Sample>>([this](std::span<const Sample> samples) {
      for (const Sample& sample : samples) relate(sample);
    });
}

Rows::~Rows() = default;

bool Rows::Ends::operator==(const Ends& other) const {
  return qp == other.qp && peer_qp_num == other.peer_qp_num && same(peer, other.peer);
}

size_t Rows::HashOfEnds::operator()(const Ends& ends) const {
  uint64_t low = 0, high = 0;
  if (ends.peer.gid) {
    std::memcpy(&low, ends.peer.gid->data(), sizeof low);
    std::memcpy(&high, ends.peer.gid->data() + sizeof low, sizeof high);
  }
  const uint64_t number = ends.peer_qp_num.value_or(0);
  return mix64(mix64(reinterpret_cast<uintptr_t>(ends.qp) ^ number << 32) ^ low ^ mix64(high) ^
               ends.peer.lid.value_or(0));
}

void Rows::begin_trace(const std::string& node, const UtcClock& clock) {
  clock_ = clock;
  node_ = static_cast<uint32_t>(nodes_.size());
  nodes_.push_back(node);
  by_ends_.clear();
  kept_.clear();
  last_row_ = nullptr;
}

void Rows::end_trace() {
  for (const auto& shard : shards_)
    if (shard->stage) shard->stage->drain();
  if (relations_) relations_->drain();
  incast_.finish_trace();
  // A queue pair's peer may have become known after its first operations.
  for (const auto& row : rows_)
    if (row->node == node_ && row->qp && !row->own_peer_) {
      row->peer = row->qp->peer;
      row->peer_qp_num = row->qp->peer_qp_num;
    }
}

// ---- finding the row ----------------------------------------------------------------------------

// The peer of a connected queue pair is the same in each operation; that of a datagram its own.
Row& Rows::row_of(const Operation& operation) {
  const QueuePair* qp = operation.qp.get();
  // Operations come in runs of one queue pair and peer.
  if (last_row_ && qp && qp == last_.qp && operation.peer_qp_num == last_.peer_qp_num &&
      same(operation.peer, last_.peer))
    return *last_row_;
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
    row = &make_row(operation, own_peer);
    if (qp && by_ends_.size() < 4 * limits_.rows) {
      kept_.push_back(operation.qp);
      by_ends_.emplace(ends, row);
    }
  }
  last_ = {qp, operation.peer_qp_num, operation.peer};
  last_row_ = row;
  if (!operation.comm.empty() && row != beyond_ && row->comm != operation.comm)
    row->comm = operation.comm;
  return *row;
}

Row& Rows::make_row(const Operation& operation, bool own_peer) {
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
      return *row;
    }
    by_key_.emplace(key, row);
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

void Rows::on_operation(const Operation& operation) {
  Row& row = row_of(operation);
  if (!row.receiver_ && &row != beyond_) {
    const bool of_qp = operation.qp && !is_known(operation.peer);
    const Address& peer = of_qp ? operation.qp->peer : operation.peer;
    if (is_known(peer))
      row.receiver_ =
          receivers_.try_emplace(address_text(peer), static_cast<uint32_t>(receivers_.size()))
              .first->second;
  }
  uint8_t known = 0;
  const auto take = [&known](const auto& field, Sample::Known bit) {
    if (!field) return std::decay_t<decltype(*field)>{};
    known |= bit;
    return *field;
  };
  Sample sample{
      .row = &row,
      .number = operations_++,
      .post_ns = take(operation.time_ns, Sample::kPost),
      .complete_ns = take(operation.complete_ns, Sample::kComplete),
      .latency_ns = take(operation.latency_ns, Sample::kLatency),
      .bytes = take(operation.bytes, Sample::kBytes),
      .wr_id = take(operation.wr_id, Sample::kWrId),
      .status = take(operation.status, Sample::kStatus),
      .vendor_err = take(operation.vendor_err, Sample::kVendorErr),
      .receiver = row.receiver_.value_or(kNoReceiver),
      .sender = row.sender_,
      .opcode = operation.opcode,
      .queue = operation.queue,
      .known = known,
      .is_signal = BarrierFinder::is_signal(operation.opcode, operation.bytes, operation.signaled),
  };
  if (known & Sample::kPost) sample.post_ns = clock_.utc_ns(sample.post_ns);
  if (known & Sample::kComplete) sample.complete_ns = clock_.utc_ns(sample.complete_ns);
  Shard& shard = *shards_[row.number % shards_.size()];
  if (!shard.stage) {
    shard.count(sample);
    return relate(sample);
  }
  shard.stage->push(sample);
  if (relations_ && sample.occupies()) relations_->push(sample);
}

// ---- counting -----------------------------------------------------------------------------------

void Rows::relate(const Sample& sample) {
  if (!sample.occupies()) return;
  const Row& row = *sample.row;
  if (sample.is_signal) barriers_.on_signal(row.node, row.pid, row.number, sample.post_ns);
  if (sample.receiver != kNoReceiver)
    incast_.on_operation(row.number, sample.sender, sample.receiver, sample.post_ns,
                         sample.complete_ns);
}

void Rows::Shard::count(const Sample& sample) {
  Row& row = *sample.row;
  const uint64_t bytes = sample.bytes;
  const auto opcode = static_cast<size_t>(sample.opcode);
  const size_t size = size_class(bytes);
  auto& cell = row.cells[opcode][size];
  if (!cell) cell = std::make_unique<Cell>();
  Tally& tally = cell->tally;

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
    return note_pending(sample);
  }
  if (sample.status != kStatusSuccess) {
    ++(is_trouble(sample.status) ? tally.errors : tally.flushed);
    return note_error(sample);
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

void Rows::Shard::note_error(const Sample& sample) {
  Row& row = *sample.row;
  const uint32_t status = sample.status;
  if (row.statuses.size() < 64 || row.statuses.contains(status)) ++row.statuses[status];
  if (is_trouble(status) && !row.first_error)
    row.first_error = {status,
                       sample.if_known(Sample::kVendorErr, sample.vendor_err),
                       sample.opcode,
                       sample.queue,
                       sample.if_known(Sample::kWrId, sample.wr_id),
                       sample.if_known(Sample::kComplete, sample.complete_ns)};
}

// A send queue completes in posting order, so both times go up.
void Rows::Shard::note_depth(Row& row, Tally& tally, uint64_t post_ns, uint64_t complete_ns) {
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

void Rows::Shard::note_pending(const Sample& sample) {
  pending.push_back({sample.row->number, sample.if_known(Sample::kPost, sample.post_ns),
                     sample.opcode, sample.queue, sample.if_known(Sample::kBytes, sample.bytes),
                     sample.if_known(Sample::kWrId, sample.wr_id), sample.number});
  std::push_heap(pending.begin(), pending.end(), later);
  if (pending.size() <= max_pending) return;
  std::pop_heap(pending.begin(), pending.end(), later);
  pending.pop_back();
}

std::vector<PendingOperation> Rows::pending() const {
  std::vector<PendingOperation> all;
  for (const auto& shard : shards_)
    all.insert(all.end(), shard->pending.begin(), shard->pending.end());
  std::sort(all.begin(), all.end(), later);
  if (all.size() > limits_.pending) all.resize(limits_.pending);
  return all;
}

}  // namespace sigma
