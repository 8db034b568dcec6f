// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// A job that never ran: operations of queue pairs with known truth. What the analysis is to find is
// put in here, and everything it counts is counted here by brute force.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "analysis/rows.h"
#include "session/operation.h"

namespace sigma::test {

inline Address gid(uint8_t last) {
  std::array<uint8_t, 16> bytes{0xfe, 0x80};
  bytes[15] = last;
  return {bytes, std::nullopt};
}
inline std::string gid_text(uint8_t last) {
  char text[16];
  std::snprintf(text, sizeof text, "fe80::%x", last);
  return text;
}

struct QpSpec {
  uint32_t pid = 100;
  uint8_t peer = 1;  // fe80::PEER
  std::string device = "mlx5_0";
  uint8_t port = 1;
};

class Job {
 public:
  explicit Job(uint32_t seed) : random_(seed) {}

  size_t add_qp(const QpSpec& spec) {
    auto qp = std::make_shared<QueuePair>();
    qp->device = spec.device;
    qp->qp_num = static_cast<uint32_t>(1000 + queues_.size());
    qp->pid = spec.pid;
    qp->type = 2;  // RC
    qp->port = spec.port;
    qp->peer_qp_num = static_cast<uint32_t>(5000 + queues_.size());
    qp->peer = gid(spec.peer);
    qp->path_mtu = 4096;
    qp->timeout = 18;
    queues_.push_back({qp, 0, 0});
    return queues_.size() - 1;
  }
  QueuePair& attributes(size_t qp) { return *queues_[qp].qp; }

  // Completes `latency_ns` after its post, but in order.
  Operation& post(size_t qp, uint64_t post_ns, uint64_t latency_ns, uint64_t bytes,
                  Opcode opcode = Opcode::rdma_write) {
    auto& queue = queues_[qp];
    post_ns = std::max(post_ns, queue.last_post_ns);
    const uint64_t complete_ns = std::max(post_ns + latency_ns, queue.last_complete_ns);
    queue.last_post_ns = post_ns;
    queue.last_complete_ns = complete_ns;
    Operation operation;
    operation.qp = queue.qp;
    operation.pid = queue.qp->pid;
    operation.tid = queue.qp->pid;
    operation.comm = "job";
    operation.opcode = opcode;
    operation.bytes = bytes;
    operation.wr_id = operations.size();
    operation.signaled = true;
    operation.time_ns = post_ns;
    operation.complete_ns = complete_ns;
    operation.latency_ns = complete_ns - post_ns;
    operation.complete_source = CompleteSource::poll;
    operation.status = 0;
    operations.push_back(operation);
    return operations.back();
  }
  uint64_t last_complete_ns(size_t qp) const { return queues_[qp].last_complete_ns; }

  // A window of `depth` requests, each taking the path `service_ns`; `noise` of it is random.
  uint64_t stream(size_t qp, uint64_t begin_ns, size_t count, uint64_t bytes, uint64_t service_ns,
                  size_t depth, double noise = 0.05) {
    std::vector<uint64_t> done;
    uint64_t free_ns = begin_ns;
    for (size_t i = 0; i < count; ++i) {
      const uint64_t post_ns = i < depth ? begin_ns : done[i - depth];
      const auto service =
          static_cast<uint64_t>(static_cast<double>(service_ns) * (1 + noise * (uniform() - 0.5)));
      free_ns = std::max(free_ns, post_ns) + service;
      done.push_back(free_ns);
      post(qp, post_ns, free_ns - post_ns, bytes);
    }
    return free_ns;
  }

  // As Session would: in order of completion.
  void emit(OperationSink& sink) const {
    std::vector<const Operation*> order;
    for (const Operation& operation : operations) order.push_back(&operation);
    std::stable_sort(order.begin(), order.end(), [](const Operation* a, const Operation* b) {
      return a->complete_ns.value_or(UINT64_MAX) < b->complete_ns.value_or(UINT64_MAX);
    });
    for (const Operation* operation : order) sink.on_operation(*operation);
  }

  double uniform() { return std::uniform_real_distribution<>(0, 1)(random_); }
  uint64_t between(uint64_t low, uint64_t high) { return low + random_() % (high - low + 1); }
  std::mt19937& random() { return random_; }

  std::vector<Operation> operations;

 private:
  struct QueueState {
    std::shared_ptr<QueuePair> qp;
    uint64_t last_post_ns, last_complete_ns;
  };
  std::mt19937 random_;
  std::vector<QueueState> queues_;
};

inline std::unique_ptr<Rows> rows_of(const Job& job, unsigned threads = 1) {
  auto rows = std::make_unique<Rows>(Rows::Limits(), threads);
  rows->begin_trace("node0", UtcClock({0, 0, 0}));
  job.emit(*rows);
  rows->end_trace();
  return rows;
}

// Nearest rank.
inline uint64_t exact_percentile(std::vector<uint64_t> values, double fraction) {
  std::sort(values.begin(), values.end());
  const auto rank = static_cast<size_t>(std::ceil(fraction * static_cast<double>(values.size())));
  return values[std::max<size_t>(rank, 1) - 1];
}

}  // namespace sigma::test
