// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// A trace for the benches of report and export: 16 queue pairs, posts and completions in turn, as
// the probes make them. Written by TraceWriter itself, below a folder that goes away.
#pragma once

#include <infiniband/verbs.h>

#include <cstdio>
#include <span>
#include <stdexcept>
#include <string>

#include "bpf/records.h"
#include "tests/temporary_folder.h"
#include "trace/trace_writer.h"

namespace bench {

using namespace sigma;

struct ReplayJob : test::TemporaryFolder {
  // Returns the seconds that TraceWriter took, its caller's part included.
  double write(const std::string& path, uint64_t operations) const {
    constexpr uint32_t kQueues = 16;
    TraceMeta meta;
    meta.info.node = NodeInfo::read();
    meta.info.start_clock = sample_clocks();
    auto writer = TraceWriter::create(path, meta, {.cpus = 4});
    if (!writer.ok()) throw std::runtime_error(writer.error().what);
    const auto put = [&](const auto& record) {
      (*writer)->on_record(std::as_bytes(std::span(&record, 1)));
    };
    uint64_t now = meta.info.start_clock.monotonic_ns;
    sigma_context context{};
    context.h = {now, SIGMA_CONTEXT, sizeof context, 0, 100, 100};
    context.context = 0x1000;
    context.kind = SIGMA_CONTEXT_SEEN;
    std::snprintf(context.device, sizeof context.device, "mlx5_0");
    put(context);
    for (uint32_t q = 0; q < kQueues; ++q) {
      sigma_qp_seen seen{};
      seen.h = {++now, SIGMA_QP_SEEN, sizeof seen, 0, 100, 100};
      seen.context = 0x1000;
      seen.qp_ptr = 0x20000 + q * 0x100;
      seen.send_cq_ptr = seen.recv_cq_ptr = 0x30000 + q * 0x100;
      seen.qp_num = 500 + q;
      seen.handle = q;
      seen.qp_type = IBV_QPT_RC;
      seen.state = IBV_QPS_RTS;
      seen.source = SIGMA_QP_AT_POST;
      put(seen);
      sigma_qp_peer peer{};
      peer.h = {++now, SIGMA_QP_PEER, sizeof peer, 0, 100, 100};
      std::snprintf(peer.device, sizeof peer.device, "mlx5_0");
      peer.qp_num = 500 + q;
      peer.peer_qp_num = 900 + q;
      peer.state = IBV_QPS_RTS;
      peer.qp_type = IBV_QPT_RC;
      put(peer);
    }
    const uint64_t begin_ns = monotonic_now_ns();
    sigma_post post{};
    post.h = {0, SIGMA_POST, sizeof post, 0, 100, 101};
    post.context = 0x1000;
    post.bytes = 65536;
    post.num_sge = 1;
    post.opcode = IBV_WR_RDMA_WRITE;
    post.send_flags = IBV_SEND_SIGNALED;
    post.qp_type = IBV_QPT_RC;
    sigma_completion completion{};
    completion.h = {0, SIGMA_COMPLETION, sizeof completion, 0, 100, 101};
    completion.context = 0x1000;
    completion.opcode = IBV_WC_RDMA_WRITE;
    completion.byte_len = 65536;
    completion.batch = 16;
    // 16 posts, then 16 completions, a queue at a time.
    for (uint64_t i = 0; i < operations; i += 16) {
      const auto q = static_cast<uint32_t>(i / 16 % kQueues);
      post.h.cpu = completion.h.cpu = q % 4;
      post.queue_ptr = 0x20000 + q * 0x100;
      completion.cq_ptr = 0x30000 + q * 0x100;
      post.qp_num = completion.qp_num = 500 + q;
      for (uint64_t k = 0; k < 16; ++k) {
        post.h.time_ns = post.call_ns = now += 100;
        post.wr_id = i + k;
        post.local_addr = 0x7f0000000000 + (i + k) % 4096 * 65536;
        post.remote_addr = 0x7e0000000000 + (i + k) % 4096 * 65536;
        put(post);
      }
      now += 2000;
      for (uint64_t k = 0; k < 16; ++k) {
        completion.h.time_ns = now += 50;
        completion.wr_id = i + k;
        put(completion);
      }
    }
    (*writer)->flush();
    const double seconds = static_cast<double>(monotonic_now_ns() - begin_ns) * 1e-9;
    if (const auto finished = (*writer)->finish(meta.info, {}); !finished.ok())
      throw std::runtime_error(finished.error().what);
    return seconds;
  }
};

// Anonymous memory of this process, in bytes.
inline uint64_t anonymous_bytes() {
  uint64_t kib = 0;
  if (std::FILE* file = std::fopen("/proc/self/status", "r")) {
    char line[256];
    while (std::fgets(line, sizeof line, file))
      if (unsigned long value = 0; std::sscanf(line, "RssAnon: %lu", &value) == 1) kib = value;
    std::fclose(file);
  }
  return kib * 1024;
}

}  // namespace bench
