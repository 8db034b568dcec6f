// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// A session that is told of one queue pair whose rings are read from memory, by the observer or by the
// preloaded library.
#pragma once

#include "session_rig.h"

struct RingRig : Rig {
  static constexpr uint32_t kQp = 17;

  explicit RingRig(uint64_t first = 0) {
    context("mlx5_0");
    create_qp(kQp, {});
    ring(SIGMA_RING_BEGIN, 0, first);
  }

  sigma_ring_origin origin = SIGMA_RING_BY_COMMAND;
  uint8_t tier = SIGMA_TIER_NONE;
  std::string reason;  // of the SIGMA_RINGs that follow
  uint8_t mode = SIGMA_RING_READ;

  // The records that follow are another reader's: the preloaded library reads a GPU's memory (tier 2).
  void read_by_library() { origin = SIGMA_RING_BY_LIBRARY, tier = 2; }
  void read_by_observer() { origin = SIGMA_RING_BY_COMMAND, tier = SIGMA_TIER_NONE; }

  void ring(sigma_ring_event event, uint32_t life, uint64_t first = 0, uint64_t posted = 0,
            sigma_initiator initiator = SIGMA_INITIATOR_UNKNOWN) {
    auto record = of_queue_pair<sigma_ring>();
    record.first = first;
    record.posted = posted;
    record.life = life;
    record.entries = 64;
    record.kind = SIGMA_RING_SEND;
    record.event = static_cast<uint8_t>(event);
    record.origin = static_cast<uint8_t>(origin);
    record.mode = mode;
    reason.copy(record.reason, sizeof record.reason - 1);
    record.initiator = static_cast<uint8_t>(initiator);
    record.tier = initiator == SIGMA_INITIATOR_GPU ? uint8_t{1} : tier;
    send(record, SIGMA_RING, kPid);
  }
  static sigma_ring_post written(uint64_t index, bool signaled = true) {
    auto record = of_queue_pair<sigma_ring_post>();
    record.post_ns = 1000;
    record.post_error_ns = 10;
    record.index = index;
    record.bytes = 64;
    record.blocks = 1;
    record.num_sge = 1;
    record.flags = SIGMA_RING_MARGIN;
    if (signaled) record.flags |= SIGMA_RING_SIGNALED;
    record.opcode = IBV_WR_RDMA_WRITE;
    record.qp_type = IBV_QPT_RC;
    return record;
  }
  void ring_post(const sigma_ring_post& record) { send_read(record, SIGMA_RING_POST); }
  static sigma_ring_completion cqe(uint16_t counter, uint8_t status = IBV_WC_SUCCESS) {
    auto record = of_queue_pair<sigma_ring_completion>();
    record.complete_ns = 5000;
    record.complete_error_ns = 10;
    record.wqe_counter = counter;
    record.status = status;
    record.wc_opcode = IBV_WC_RDMA_WRITE;
    record.queue = SIGMA_QUEUE_SEND;
    return record;
  }
  void ring_completion(const sigma_ring_completion& record) { send_read(record, SIGMA_RING_COMPLETION); }
  void ring_gap(uint64_t first, uint64_t count) {
    auto record = of_queue_pair<sigma_ring_gap>();
    record.first = first;
    record.count = count;
    record.kind = SIGMA_RING_SEND;
    record.reason = SIGMA_GAP_LAPPED;
    send_read(record, SIGMA_RING_GAP);
  }
  void probe_post(uint64_t wr_id, uint32_t index, uint8_t flags = IBV_SEND_SIGNALED,
                  uint32_t tid = 0) {
    sigma_post record = post(kQp, wr_id, flags);
    record.flags = SIGMA_POST_HAS_INDEX;
    record.index = index;
    record.qp_type = IBV_QPT_RC;
    send_post(record, kPid, tid);
  }

 private:
  template <typename Record>
  static Record of_queue_pair() {
    Record record{};
    record.context = kContext;
    record.number = kQp;
    record.tier = SIGMA_TIER_NONE;
    return record;
  }
  // By the present reader.
  template <typename Record>
  void send_read(Record record, sigma_record_type type) {
    record.tier = tier;
    send(record, type, kPid);
  }
};
