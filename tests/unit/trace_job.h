// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// The records of a small job, as the probes would make them: processes, contexts, queue pairs,
// posts and completions, with errors, unsignalled requests and what is still pending at the end.
#pragma once

#include <infiniband/verbs.h>

#include <algorithm>
#include <deque>
#include <functional>
#include <random>
#include <vector>

#include "bpf/records.h"
#include "trace_support.h"

namespace sigma::test {

struct TraceJobSpec {
  uint32_t processes = 2, qps = 8;  // queue pairs in all
  uint64_t operations = 10'000;
  uint64_t step_ns = 500;             // between posts, about
  uint64_t errors_from = UINT64_MAX;  // number of the operation whose queue fails
};

// Gives every record to `deliver`, in order of time.
inline void run_trace_job(const TraceJobSpec& spec, uint32_t seed,
                          const std::function<void(std::span<const std::byte>)>& deliver) {
  std::mt19937 random(seed);
  uint64_t now = 2'000'000'000;
  const auto emit = [&](auto& record, uint16_t type, uint32_t pid, uint32_t cpu) {
    record.h = {now, type, static_cast<uint16_t>(sizeof record), cpu, pid, pid + 1};
    deliver(std::as_bytes(std::span(&record, 1)));
    now += 1 + random() % spec.step_ns;
  };
  for (uint32_t p = 0; p < spec.processes; ++p) {
    sigma_context context{};
    context.context = 0x1000 + p;
    context.kind = SIGMA_CONTEXT_SEEN;
    context.cmd_fd = 5;
    std::snprintf(context.device, sizeof context.device, "mlx5_%u", p % 2);
    emit(context, SIGMA_CONTEXT, 100 + p, 0);
  }
  for (uint32_t q = 0; q < spec.qps; ++q) {
    const uint32_t p = q % spec.processes;
    sigma_qp_seen seen{};
    seen.context = 0x1000 + p;
    seen.qp_ptr = 0x20000 + q * 0x100;
    seen.send_cq_ptr = seen.recv_cq_ptr = 0x30000 + q * 0x100;
    seen.qp_num = 500 + q;
    seen.handle = q;
    seen.qp_type = IBV_QPT_RC;
    seen.state = IBV_QPS_RTS;
    seen.source = SIGMA_QP_AT_POST;
    emit(seen, SIGMA_QP_SEEN, 100 + p, q % 4);
    sigma_qp_peer peer{};
    std::snprintf(peer.device, sizeof peer.device, "mlx5_%u", p % 2);
    peer.qp_num = 500 + q;
    peer.peer_qp_num = 900 + q;
    peer.state = IBV_QPS_RTS;
    peer.qp_type = IBV_QPT_RC;
    emit(peer, SIGMA_QP_PEER, 100 + p, 0);
  }

  struct Posted {
    uint64_t wr_id;
    uint64_t bytes;
    bool signaled;
  };
  std::vector<std::deque<Posted>> queues(spec.qps);
  std::vector<bool> failed(spec.qps, false);
  const auto complete = [&](uint32_t q) {
    auto& queue = queues[q];
    while (!queue.empty() && !queue.front().signaled && !failed[q]) queue.pop_front();
    if (queue.empty()) return;
    sigma_completion completion{};
    completion.context = 0x1000 + q % spec.processes;
    completion.cq_ptr = 0x30000 + q * 0x100;
    completion.wr_id = queue.front().wr_id;
    completion.qp_num = 500 + q;
    completion.status = failed[q] ? IBV_WC_WR_FLUSH_ERR : IBV_WC_SUCCESS;
    completion.opcode = IBV_WC_RDMA_WRITE;
    completion.byte_len = static_cast<uint32_t>(queue.front().bytes);
    completion.batch = 1;
    queue.pop_front();
    emit(completion, SIGMA_COMPLETION, 100 + q % spec.processes, (q + 1) % 4);
  };
  for (uint64_t i = 0; i < spec.operations; ++i) {
    const uint32_t q = static_cast<uint32_t>(random() % spec.qps);
    sigma_post post{};
    post.context = 0x1000 + q % spec.processes;
    post.call_ns = now;
    post.queue_ptr = 0x20000 + q * 0x100;
    post.wr_id = i;
    post.local_addr = 0x7f0000000000 + i * 64;
    post.remote_addr = 0x7e0000000000 + i * 64;
    post.bytes = uint64_t{1} << random() % 17;
    post.qp_num = 500 + q;
    post.lkey = 0x1234;
    post.rkey = 0x5678;
    post.num_sge = 1;
    post.queue = SIGMA_QUEUE_SEND;
    post.opcode = IBV_WR_RDMA_WRITE;
    const bool signaled = i % 4 != 0;
    post.send_flags = signaled ? IBV_SEND_SIGNALED : 0;
    post.qp_type = IBV_QPT_RC;
    emit(post, SIGMA_POST, 100 + q % spec.processes, q % 4);
    queues[q].push_back({post.wr_id, post.bytes, signaled});
    if (i == spec.errors_from) {
      sigma_completion completion{};
      completion.context = post.context;
      completion.cq_ptr = 0x30000 + q * 0x100;
      completion.wr_id = queues[q].front().wr_id;
      completion.qp_num = post.qp_num;
      completion.status = IBV_WC_RETRY_EXC_ERR;
      completion.vendor_err = 0x81;
      completion.batch = 1;
      queues[q].pop_front();
      failed[q] = true;
      emit(completion, SIGMA_COMPLETION, 100 + q % spec.processes, q % 4);
    }
    const uint32_t other = static_cast<uint32_t>(random() % spec.qps);
    if (queues[other].size() > 8) complete(other);
    if (i + 100 < spec.operations) complete(other);
  }
}

}  // namespace sigma::test
