// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
#include "decode/ring_records.h"

#include <infiniband/verbs.h>

#include <cstring>

#include "base/be.h"

namespace sigma {
namespace {

constexpr uint64_t kMost32 = ~uint32_t{0};

constexpr uint32_t saturated(uint64_t value) {
  return static_cast<uint32_t>(value < kMost32 ? value : kMost32);
}

// Rounded up, so that middle and half hold the whole interval.
constexpr uint64_t half_of(const LookTimes& times) {
  return (times.after_ns - times.before_ns + 1) / 2;
}
constexpr uint64_t middle_of(const LookTimes& times) {
  return times.before_ns + (times.after_ns - times.before_ns) / 2;
}

constexpr uint16_t flags_of(const RingName& ring) {
  return ring.by_file ? SIGMA_RING_BY_FILE : 0;
}

}  // namespace

sigma_ring_post post_record(const RingName& ring, const Wqe& wqe, uint64_t position,
                            const LookTimes& times) {
  sigma_ring_post post{};
  post.context = ring.context;
  post.number = ring.number;
  post.life = ring.life;
  post.initiator = ring.initiator;
  post.tier = ring.tier;
  const uint64_t half_ns = half_of(times);
  if (times.before_ns != 0 && half_ns <= kMost32) {
    post.post_ns = middle_of(times);
    post.post_error_ns = static_cast<uint32_t>(half_ns);
  }
  post.index = position;
  post.blocks = wqe.blocks;
  post.opcode = wqe.wr_opcode;
  post.raw_opcode = wqe.raw_opcode;
  uint16_t flags = flags_of(ring);
  if (wqe.signaled) flags |= SIGMA_RING_SIGNALED;
  if (wqe.is_inline) flags |= SIGMA_RING_INLINE;
  if (wqe.malformed) flags |= SIGMA_RING_TRUNCATED;
  if (wqe.has_bytes) {
    post.bytes = saturated(wqe.bytes);
    post.num_sge = static_cast<uint8_t>(wqe.num_sge < 255 ? wqe.num_sge : 255);
  } else {
    flags |= SIGMA_RING_NO_BYTES;
  }
  if (wqe.has_local) {
    post.local_addr = wqe.local_addr;
    post.lkey = wqe.lkey;
  }
  if (wqe.has_remote) {
    post.remote_addr = wqe.remote_addr;
    post.rkey = wqe.rkey;
  } else {
    flags |= SIGMA_RING_NO_REMOTE;
  }
  if (wqe.has_invalidate) post.rkey = wqe.rkey;
  if (wqe.has_imm) post.imm = be_to_host(wqe.imm);  // in network order, as ibv_send_wr has it
  if (wqe.has_peer) {
    flags |= SIGMA_RING_HAS_QPN;
    post.remote_qpn = wqe.peer.qp_num;
    if (wqe.peer.has_lid) post.lid = wqe.peer.lid;
    if (wqe.peer.has_gid) {
      flags |= SIGMA_RING_HAS_GID;
      std::memcpy(&post.gid_prefix, wqe.peer.gid.data(), 8);
      std::memcpy(&post.gid_interface, wqe.peer.gid.data() + 8, 8);
    }
  }
  post.flags = flags;
  return post;
}

sigma_ring_completion completion_record(const RingName& cq, const RingName* send, const Cqe& cqe,
                                        uint64_t position, const LookTimes& times) {
  const RingName& of = send != nullptr ? *send : cq;
  sigma_ring_completion record{};
  record.context = cq.context;
  record.cqn = cq.number;
  record.cq_life = cq.life;
  record.number = cqe.qp_num;
  record.life = send != nullptr ? send->life : ~0u;
  record.initiator = of.initiator;
  record.tier = of.tier;
  record.complete_ns = middle_of(times);
  record.complete_error_ns = saturated(half_of(times));
  record.cq_index = position;
  record.srqn = cqe.srqn_uidx;
  record.bytes = cqe.bytes;
  record.wc_opcode = cqe.wc_opcode;
  record.wqe_counter = cqe.wqe_counter;
  record.status = cqe.status;
  record.vendor_err = cqe.vendor_err;
  record.queue = is_requester(cqe) ? SIGMA_QUEUE_SEND : SIGMA_QUEUE_RECV;
  record.raw_opcode = cqe.raw_opcode;
  uint16_t flags = flags_of(cq);
  if (!cqe.has_bytes) flags |= SIGMA_RING_NO_BYTES;
  if (cqe.has_timestamp) {
    flags |= SIGMA_RING_NIC_STAMP;
    record.nic_stamp = cqe.timestamp;
  }
  record.flags = flags;
  if (cqe.has_imm) {
    record.imm = be_to_host(cqe.imm);
    record.wc_flags |= IBV_WC_WITH_IMM;
  } else if (cqe.has_invalidate) {
    record.imm = cqe.imm;
    record.wc_flags |= IBV_WC_WITH_INV;
  }
  if (cqe.grh) record.wc_flags |= IBV_WC_GRH;
  if (cqe.has_source) {
    record.src_qp = cqe.source_qp;
    record.slid = cqe.source_lid;
  }
  return record;
}

sigma_ring_gap gap_record(const RingName& ring, sigma_ring_kind kind, uint64_t first,
                          uint64_t count, uint8_t reason, const LookTimes& times) {
  sigma_ring_gap record{};
  record.context = ring.context;
  record.first = first;
  record.count = count;
  record.begin_ns = times.before_ns;
  record.end_ns = times.after_ns;
  record.number = ring.number;
  record.life = ring.life;
  record.flags = flags_of(ring);
  record.kind = static_cast<uint8_t>(kind);
  record.reason = reason;
  record.initiator = ring.initiator;
  record.tier = ring.tier;
  return record;
}

sigma_ring ring_record(const RingName& ring, sigma_ring_kind kind, uint8_t event) {
  sigma_ring record{};
  record.context = ring.context;
  record.number = ring.number;
  record.life = ring.life;
  record.flags = flags_of(ring);
  record.kind = static_cast<uint8_t>(kind);
  record.event = event;
  record.initiator = ring.initiator;
  record.tier = ring.tier;
  return record;
}

}  // namespace sigma
