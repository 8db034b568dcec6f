// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Pending: a work request that was posted and has not completed yet.
#pragma once

#include <array>
#include <cstdint>
#include <memory>

#include "bpf/records.h"
#include "session/operation.h"
#include "session/wqe_blocks.h"

namespace sigma {

struct Pending {
  uint64_t time_ns;  // of the post; of a builder's batch, of its commit; the middle of an interval
  uint64_t call_ns;  // with tid: which call posted it
  uint64_t wr_id;
  uint64_t local_addr;
  uint64_t remote_addr;
  uint64_t bytes;
  std::shared_ptr<const Address> peer;  // UD: where its address handle led, if known
  uint32_t pid, tid;
  uint32_t lkey, rkey;
  uint32_t imm;  // as in sigma_post: network order
  uint32_t remote_qpn;
  uint32_t time_error_ns;  // half the interval's width; 0: a point in time
  uint64_t index;   // mlx5, with SIGMA_POST_HAS_INDEX: of this request, not only of its call
  uint16_t blocks;  // mlx5: how far it moves the index on; 0: not known
  uint16_t position;
  uint16_t num_sge;
  uint16_t remote_lid;
  uint16_t post_flags;  // enum sigma_post_flags
  uint8_t opcode;       // enum ibv_wr_opcode
  uint8_t send_flags;   // enum ibv_send_flags
  uint8_t flags;        // OperationFlag
  uint8_t tier;         // SIGMA_TIER_NONE: none
  Source source;
  Initiator initiator;
  uint16_t ring_flags;  // enum sigma_ring_flags; 0 of a probe's post

  bool has_index() const { return post_flags & SIGMA_POST_HAS_INDEX; }
  // It stands at its index for certain; else at it or later.
  bool is_placed() const { return has_index() && !(flags & kConcurrent); }
  // Rings hold entries that move no data (NOP, WAIT, DUMP): they keep the order, no more.
  bool is_operation() const { return opcode < SIGMA_WR_NOP || opcode > SIGMA_WR_WAIT; }
};

inline Pending pending_of(const sigma_post& post, std::shared_ptr<const Address> peer) {
  uint8_t flags = 0;
  if (post.flags & SIGMA_POST_UNVERIFIED) flags |= kUnverified;
  if (post.flags & (SIGMA_POST_SGE_TRUNCATED | SIGMA_POST_UNREADABLE)) flags |= kTruncated;
  return {
      .time_ns = post.h.time_ns,
      .call_ns = post.call_ns,
      .wr_id = post.wr_id,
      .local_addr = post.local_addr,
      .remote_addr = post.remote_addr,
      .bytes = post.bytes,
      .peer = std::move(peer),
      .pid = post.h.pid,
      .tid = post.h.tid,
      .lkey = post.lkey,
      .rkey = post.rkey,
      .imm = post.imm,
      .remote_qpn = post.remote_qpn,
      .time_error_ns = 0,
      .index = post.index,
      .blocks = post.queue == SIGMA_QUEUE_SEND ? mlx5_wqe_blocks(post).value_or(uint16_t{0})
                                               : uint16_t{0},
      .position = post.position,
      .num_sge = post.num_sge,
      .remote_lid = post.remote_lid,
      .post_flags = post.flags,
      .opcode = post.opcode,
      .send_flags = post.send_flags,
      .flags = flags,
      .tier = SIGMA_TIER_NONE,
      .source = Source::probe,
      .initiator = Initiator::cpu,
      .ring_flags = 0,
  };
}

// Of a record's enum sigma_initiator; what a later version may add is not known here.
inline Initiator initiator_of(uint8_t initiator) {
  switch (initiator) {
    case SIGMA_INITIATOR_CPU:
      return Initiator::cpu;
    case SIGMA_INITIATOR_GPU:
      return Initiator::gpu;
    default:
      return Initiator::unknown;
  }
}

// As read from a ring: no wr_id, no poster.
Pending pending_of(const sigma_ring_post& post);

// Evidence that the wr_ids of a queue tell its requests apart, for queues of which we do not know
// what was outstanding when we began to look.
//
// Suppose k requests were outstanding then. A later completion with wr_id W belongs to the pending
// post with W, unless one of the k carried W as well. Nothing seen from outside excludes that for
// programs that give all requests the same few wr_ids (perftest: always the same; a sliding window
// never drains, so counting posts and completions does not tell either). A program whose last
// kDistinct posts all had different wr_ids keys its requests by them, and then two outstanding ones
// do not share one: its matches are taken as certain, all others are marked ambiguous.
class IdEvidence {
 public:
  static constexpr size_t kDistinct = 16;

  // Of each post; a queue in step never asks, so the comparing is left to proven().
  void posted(uint64_t wr_id) { recent_[posts_++ % kDistinct] = wr_id; }
  bool proven() const {
    if (posts_ < kDistinct) return false;
    // From the newest: programs that repeat few wr_ids are told soon.
    for (size_t i = 1; i < kDistinct; ++i)
      for (size_t j = 0; j < i; ++j)
        if (recent_[(posts_ - 1 - i) % kDistinct] == recent_[(posts_ - 1 - j) % kDistinct])
          return false;
    return true;
  }
  void reset() { posts_ = 0; }

 private:
  std::array<uint64_t, kDistinct> recent_{};
  uint64_t posts_ = 0;
};

}  // namespace sigma
