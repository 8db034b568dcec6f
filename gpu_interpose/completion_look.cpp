// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
#include "gpu_interpose/completion_look.h"

#include <infiniband/verbs.h>

namespace sigma::gpu {

bool CompletionLook::begin(const sigma_gpu_queue& queue, uint32_t life, uint8_t tier,
                           RecordBatch& out) {
  *this = CompletionLook{};
  ring_.entries = queue.cq_entries;
  ring_.entry_bytes = queue.cqe_bytes;
  ring_.collapsed = queue.flags & SIGMA_GPU_COLLAPSED;
  if (queue.cq_addr == 0 || !valid(ring_)) return false;
  context_ = queue.context;
  addr_ = queue.cq_addr;
  cqn_ = queue.cqn;
  life_ = life;
  tier_ = tier;
  initiator_ = queue.flags & SIGMA_GPU_INITIATED ? SIGMA_INITIATOR_GPU : SIGMA_INITIATOR_UNKNOWN;
  begun_ = true;
  state(SIGMA_RING_BEGIN, out);
  return true;
}

void CompletionLook::state(uint8_t event, RecordBatch& out) const {
  sigma_ring record{};
  record.context = context_;
  record.ring_addr = addr_;
  record.first = first_;
  record.posted = cursor_.next - first_;
  record.seen = seen_;
  record.missed = missed_;
  record.number = record.cqn = cqn_;
  record.life = life_;
  record.entries = ring_.entries;
  record.flags =
      static_cast<uint16_t>((ring_.collapsed ? SIGMA_RING_COLLAPSED : 0) | SIGMA_RING_OVERRUN);
  record.kind = SIGMA_RING_CQ;
  record.event = event;
  record.origin = SIGMA_RING_BY_LIBRARY;
  record.mode = SIGMA_RING_READ;
  record.initiator = initiator_;
  record.tier = tier_;
  out.add(record, SIGMA_RING);
}

void CompletionLook::end(RecordBatch& out) {
  if (!begun_) return;
  state(SIGMA_RING_END, out);
  begun_ = false;
}

bool CompletionLook::load(const RingBytes& bytes, uint64_t entry,
                          std::byte (&out)[kCqeBytes]) const {
  return bytes.load((entry + 1) * ring_.entry_bytes - kCqeBytes, out);
}

// The last entry read stands behind its successors in the copy, so it is copied with them.
CompletionLook::Wanted CompletionLook::wanted(bool all) const {
  if (ring_.collapsed) return {0, 1};
  if (whole_ring_) return {cursor_.next & ~uint64_t{ring_.entries - 1}, ring_.entries};
  uint64_t first = copy_from(ring_, cursor_);
  if (cursor_.has_anchor && cursor_.next - cursor_.anchor_at < ring_.entries &&
      cursor_.anchor_at < first)
    first = cursor_.anchor_at;
  const uint64_t count = cursor_.next - first + (all ? ring_.entries : expected_);
  return {first, static_cast<uint32_t>(count < ring_.entries ? count : ring_.entries)};
}

bool CompletionLook::is_lapped(const Wanted& wanted, const RingBytes& copy) const {
  std::byte entry[kCqeBytes];
  return cursor_.has_anchor && cursor_.anchor_at >= wanted.first &&
         load(copy, cursor_.anchor_at - wanted.first, entry) && !anchor_stands(cursor_, entry);
}

void CompletionLook::skip_whole(const RingBytes& whole, const LookTimes& times, RecordBatch& out) {
  whole_ring_ = false;
  const uint64_t from = cursor_.next;
  gap(from, skip_to_newest(ring_, cursor_, whole), times, out);
  anchor_newest(whole);
}

// By it the next lap is noticed. One that was being written is found not to stand, which reads as a
// lap: the whole ring is then looked at again.
void CompletionLook::anchor_newest(const RingBytes& whole) {
  std::byte entry[kCqeBytes];
  cursor_.has_anchor = cursor_.next > 0 && load(whole, (cursor_.next - 1) % ring_.entries, entry);
  if (!cursor_.has_anchor) return;
  cursor_.anchor_at = cursor_.next - 1;
  memcpy(cursor_.anchor.data(), entry, sizeof entry);
}

void CompletionLook::gap(uint64_t first, uint64_t count, const LookTimes& times, RecordBatch& out) {
  if (count == 0) return;
  sigma_ring_gap record{};
  record.context = context_;
  record.first = first;
  record.count = count;
  record.begin_ns = times.before_ns;
  record.end_ns = times.after_ns;
  record.number = cqn_;
  record.life = life_;
  record.kind = SIGMA_RING_CQ;
  record.reason = SIGMA_GAP_LAPPED;
  record.initiator = initiator_;
  record.tier = tier_;
  missed_ += count;
  out.add(record, SIGMA_RING_GAP);
}

void CompletionLook::report(const Cqe& cqe, uint64_t position, SendLook* send,
                            const LookTimes& times, RecordBatch& out) {
  const bool requester = is_requester(cqe);
  if (!requester && !is_responder(cqe)) return;
  if (requester && send && !send->on_completion(cqe.wqe_counter) &&
      cqe.kind != CqeKind::requester_error)
    return;
  ++seen_;
  sigma_ring_completion record{};
  record.context = context_;
  record.complete_ns = times.before_ns + (times.after_ns - times.before_ns) / 2;
  const uint64_t half = (times.after_ns - times.before_ns + 1) / 2;
  record.complete_error_ns = static_cast<uint32_t>(half < ~0u ? half : ~0u);
  record.cq_index = position;
  record.number = cqe.qp_num;
  record.life = send ? send->queue().life : ~0u;
  record.cqn = cqn_;
  record.cq_life = life_;
  record.srqn = cqe.srqn_uidx;
  record.bytes = cqe.bytes;
  record.wc_opcode = cqe.wc_opcode;
  record.wqe_counter = cqe.wqe_counter;
  record.status = cqe.status;
  record.vendor_err = cqe.vendor_err;
  record.queue = requester ? SIGMA_QUEUE_SEND : SIGMA_QUEUE_RECV;
  record.initiator = initiator_;
  record.tier = tier_;
  record.raw_opcode = cqe.raw_opcode;
  uint16_t flags = cqe.has_bytes ? 0 : SIGMA_RING_NO_BYTES;
  if (cqe.has_timestamp) {
    flags |= SIGMA_RING_NIC_STAMP;
    record.nic_stamp = cqe.timestamp;
  }
  record.flags = flags;
  if (cqe.has_imm) {
    record.imm = __builtin_bswap32(cqe.imm);
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
  out.add(record, SIGMA_RING_COMPLETION);
}

}  // namespace sigma::gpu
