// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// A trace of a job that never ran, with known truth: ranks that exchange data in rounds with a
// barrier between, from a seed. It is written as the probes would have it, record by record; what
// is true of it is kept here, operation by operation, and nothing of the product takes part in
// that.
#pragma once

#include <infiniband/verbs.h>

#include <algorithm>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "decode_uverbs_record.h"
#include "trace_support.h"

namespace sigma::test {

struct TrueOperation {
  uint32_t rank, peer;
  std::string opcode;
  uint64_t bytes;
  uint64_t post_ns;
  std::optional<uint64_t> complete_ns;  // absent: still pending at the end
  uint32_t status = 0;
  uint64_t wr_id = 0;
  uint64_t latency_ns() const { return *complete_ns - post_ns; }
};

class ReportJob {
 public:
  static constexpr uint32_t kRanks = 6, kRounds = 30, kBulk = 40;  // bulk: of a pair in a round
  static constexpr uint64_t kStart = 2'000'000'000;

  explicit ReportJob(uint32_t seed) : random_(seed) {
    uint64_t now = set_up() + 1'000'000;
    for (uint32_t round = 0; round < kRounds; ++round) now = add_round(now);
    fail_one(now);
    leave_pending(now);
    end_ns = now + 3'000'000'000;
  }

  static uint32_t pid_of(uint32_t rank) { return 100 + rank; }
  static uint32_t qp_of(uint32_t rank, uint32_t peer) { return 500 + rank * 16 + peer; }
  static std::string device_of(uint32_t rank) { return "mlx5_" + std::to_string(rank); }
  static std::string address_of(uint32_t rank) {
    return "::ffff:10.0.0." + std::to_string(rank + 1);
  }

  void write(const std::string& path) {
    auto writer = make_writer(path);
    std::stable_sort(records_.begin(), records_.end(),
                     [](const auto& a, const auto& b) { return time_of(a) < time_of(b); });
    for (uint32_t rank = 0; rank < kRanks; ++rank)
      writer->note_fact(pid_of(rank), "rank", std::to_string(rank));
    size_t count = 0;
    for (const Bytes& record : records_) {
      writer->on_record(record);
      if (++count % 500 == 0) writer->flush();
    }
    for (const auto& [counter, values] : counters)
      for (size_t i = 0; i < values.size(); ++i)
        writer->note_counter(kStart + i * 1'000'000'000, "mlx5_1", 1, counter, values[i]);
    writer->note_mark(kMarkUser, "look");
    TraceInfo info = trace_meta().info;
    info.end_clock = info.start_clock;
    info.end_clock->monotonic_ns = end_ns;
    info.end_clock->utc_ns = utc(end_ns);
    if (!writer->finish(info, {}).ok()) throw std::runtime_error("finish");
  }
  static uint64_t utc(uint64_t monotonic_ns) {
    const ClockPair clock = trace_meta().info.start_clock;
    return monotonic_ns - clock.monotonic_ns + clock.utc_ns;
  }

  std::vector<TrueOperation> operations;
  struct Epoch {
    uint64_t first_ns, last_ns;
    uint32_t last_rank;
    std::map<uint32_t, uint64_t> behind_ns;
  };
  std::vector<Epoch> epochs;
  struct Registration {
    uint64_t length, took_ns;
    bool deregistered;
  };
  std::vector<Registration> registrations;
  uint64_t registered_at_once = 0;
  std::map<std::string, std::vector<uint64_t>> counters = {{"out_of_sequence", {7, 7, 19}},
                                                           {"port_xmit_data", {100, 5100, 9100}},
                                                           {"symbol_error", {3, 3}}};
  uint64_t end_ns = 0;

 private:
  static uint64_t time_of(const Bytes& record) {
    sigma_header header;
    std::memcpy(&header, record.data(), sizeof header);
    return header.time_ns;
  }
  void keep(std::span<const std::byte> record) {
    records_.emplace_back(record.begin(), record.end());
  }
  uint64_t between(uint64_t low, uint64_t high) { return low + random_() % (high - low + 1); }

  // Returns when all is connected.
  uint64_t set_up() {
    uint64_t now = kStart;
    const auto uverbs = [&](UverbsRecord record, uint32_t rank, uint64_t took_ns = 100) {
      now += took_ns + 100;
      keep(record.from(now, pid_of(rank), 0x1000 + rank).entered(now - took_ns).bytes());
    };
    uint64_t registered = 0;
    for (uint32_t rank = 0; rank < kRanks; ++rank) {
      sigma_context context{};
      context.h = {++now, SIGMA_CONTEXT, sizeof context, 0, pid_of(rank), pid_of(rank)};
      context.context = 0x1000 + rank;
      context.kind = SIGMA_CONTEXT_SEEN;
      std::snprintf(context.device, sizeof context.device, "%s", device_of(rank).c_str());
      keep(bytes_of(context));
      for (uint32_t i = 0; i < 8; ++i) {
        const Registration region{4096 * between(1, 1000), between(2000, 900'000), i % 3 == 0};
        registrations.push_back(region);
        registered += region.length;
        registered_at_once = std::max(registered_at_once, registered);
        const uint32_t handle = 1000 + rank * 8 + i;
        uverbs(UverbsRecord::write(IB_USER_VERBS_CMD_REG_MR,
                                   ib_uverbs_reg_mr{0, 0x10000, region.length, 0x10000, 2, 7},
                                   ib_uverbs_reg_mr_resp{handle, handle, handle}),
               rank, region.took_ns);
        if (!region.deregistered) continue;
        registered -= region.length;
        uverbs(UverbsRecord::write(IB_USER_VERBS_CMD_DEREG_MR, ib_uverbs_dereg_mr{handle}), rank);
      }
      for (uint32_t peer = 0; peer < kRanks; ++peer) {
        if (peer == rank) continue;
        const uint32_t number = qp_of(rank, peer);
        uverbs(UverbsRecord(UVERBS_OBJECT_QP, UVERBS_METHOD_QP_CREATE)
                   .handle(UVERBS_ATTR_CREATE_QP_HANDLE, number)
                   .in(UVERBS_ATTR_CREATE_QP_USER_HANDLE, uint64_t{number} << 8)
                   .handle(UVERBS_ATTR_CREATE_QP_SEND_CQ_HANDLE, 1)
                   .handle(UVERBS_ATTR_CREATE_QP_RECV_CQ_HANDLE, 1)
                   .in(UVERBS_ATTR_CREATE_QP_TYPE, uint64_t{IBV_QPT_RC})
                   .out(UVERBS_ATTR_CREATE_QP_RESP_QP_NUM, number),
               rank);
        ib_uverbs_modify_qp core{};
        core.qp_handle = number;
        core.attr_mask = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
                         IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
        core.qp_state = IBV_QPS_RTR;
        core.path_mtu = IBV_MTU_4096;
        core.dest_qp_num = qp_of(peer, rank);
        core.dest.is_global = 1;
        core.dest.dgid[10] = core.dest.dgid[11] = 0xff;
        core.dest.dgid[12] = 10;
        core.dest.dgid[15] = static_cast<uint8_t>(peer + 1);
        core.dest.port_num = 1;
        uverbs(UverbsRecord::write(IB_USER_VERBS_CMD_MODIFY_QP, core), rank);
      }
    }
    return now;
  }

  // Posts and completes one request; `complete_ns` absent: never.
  void add(TrueOperation operation) {
    const uint32_t qp = qp_of(operation.rank, operation.peer);
    operation.wr_id = operations.size();
    sigma_post post{};
    post.h = {
        operation.post_ns,     SIGMA_POST, sizeof post, operation.rank % 4, pid_of(operation.rank),
        pid_of(operation.rank)};
    post.context = 0x1000 + operation.rank;
    post.call_ns = operation.post_ns;
    post.queue_ptr = uint64_t{qp} << 8;
    post.wr_id = operation.wr_id;
    post.bytes = operation.bytes;
    post.qp_num = qp;
    post.num_sge = 1;
    post.opcode = operation.opcode == "rdma_read"    ? IBV_WR_RDMA_READ
                  : operation.opcode == "rdma_write" ? IBV_WR_RDMA_WRITE
                                                     : IBV_WR_SEND;
    post.send_flags = IBV_SEND_SIGNALED;
    post.qp_type = IBV_QPT_RC;
    keep(bytes_of(post));
    if (operation.complete_ns) {
      sigma_completion wc{};
      wc.h = {*operation.complete_ns,   SIGMA_COMPLETION,       sizeof wc,
              (operation.rank + 1) % 4, pid_of(operation.rank), pid_of(operation.rank)};
      wc.context = post.context;
      wc.wr_id = post.wr_id;
      wc.status = operation.status;
      wc.opcode = operation.opcode == "rdma_read"    ? IBV_WC_RDMA_READ
                  : operation.opcode == "rdma_write" ? IBV_WC_RDMA_WRITE
                                                     : IBV_WC_SEND;
      wc.qp_num = qp;
      wc.byte_len = static_cast<uint32_t>(operation.bytes);
      wc.batch = 1;
      keep(bytes_of(wc));
    }
    operations.push_back(operation);
  }

  // Every pair exchanges data, a window at a time; then each rank tells all others that it is done.
  uint64_t add_round(uint64_t begin_ns) {
    static constexpr const char* kOpcodes[] = {"rdma_write", "rdma_read", "send"};
    Epoch epoch{UINT64_MAX, 0, 0, {}};
    std::map<uint32_t, uint64_t> arrival;
    uint64_t end = begin_ns;
    for (uint32_t rank = 0; rank < kRanks; ++rank) {
      uint64_t done = begin_ns;
      for (uint32_t peer = 0; peer < kRanks; ++peer) {
        if (peer == rank) continue;
        uint64_t post = begin_ns + between(0, 20'000), complete = 0;
        for (uint32_t i = 0; i < kBulk; ++i) {
          post += between(50, 3000);
          complete = std::max(post, complete) + between(200, 9000);
          add({rank, peer, kOpcodes[random_() % 3], 1024 * between(1, 300), post, complete});
        }
        done = std::max(done, complete);
      }
      arrival[rank] = done + between(1, 40'000);
    }
    for (const auto& [rank, time_ns] : arrival) {
      epoch.first_ns = std::min(epoch.first_ns, time_ns);
      if (time_ns > epoch.last_ns) {
        epoch.last_ns = time_ns;
        epoch.last_rank = rank;
      }
    }
    for (const auto& [rank, time_ns] : arrival) {
      epoch.behind_ns[rank] = time_ns - epoch.first_ns;
      uint64_t post = time_ns;
      for (uint32_t peer = 0; peer < kRanks; ++peer) {
        if (peer == rank) continue;
        const uint64_t complete = post + between(500, 4000);
        add({rank, peer, "rdma_write", 8, post, complete});
        end = std::max(end, complete);
        post += 10;
      }
    }
    epochs.push_back(epoch);
    return std::max(end, epoch.last_ns) + 5000;
  }

  // One time-out, and what it flushes.
  void fail_one(uint64_t now) {
    for (uint32_t i = 0; i < 6; ++i)
      add({3, 1, "send", 2048, now + i * 100, now + 50'000 + i * 100,
           i == 0 ? uint32_t{IBV_WC_RETRY_EXC_ERR} : uint32_t{IBV_WC_WR_FLUSH_ERR}});
  }
  void leave_pending(uint64_t now) {
    for (uint32_t i = 0; i < 4; ++i) add({0, 2, "rdma_write", 65536, now + i * 1000, std::nullopt});
  }

  std::mt19937 random_;
  std::vector<Bytes> records_;
};

}  // namespace sigma::test
