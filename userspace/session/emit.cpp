// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Building operations: what was posted, what the completion says, and nothing that neither did.
#include <arpa/inet.h>
#include <infiniband/verbs.h>

#include <memory>

#include "session/correlate.h"

namespace sigma {
namespace {

void describe_send(Operation& operation, const Pending& pending) {
  const WrTraits traits = traits_of_wr(pending.opcode);
  // Of a request that could not be read, zeros are not values.
  const bool unreadable = pending.post_flags & SIGMA_POST_UNREADABLE;
  operation.opcode = unreadable && pending.opcode == 0 ? Opcode::unknown : traits.opcode;
  if (!unreadable || pending.bytes != 0) operation.bytes = pending.bytes;
  if (pending.ring_flags & SIGMA_RING_NO_BYTES) operation.bytes.reset();
  operation.is_inline = (pending.send_flags & IBV_SEND_INLINE) != 0;
  if (traits.remote && !(unreadable && pending.remote_addr == 0) &&
      !(pending.ring_flags & SIGMA_RING_NO_REMOTE)) {
    operation.remote_addr = pending.remote_addr;
    operation.rkey = pending.rkey;
  }
  if (traits.inv) operation.rkey = pending.rkey;
  if (traits.imm) operation.imm = ntohl(pending.imm);
  if (pending.post_flags & SIGMA_POST_HAS_AH) {
    operation.peer_qp_num = pending.remote_qpn;
    operation.peer = pending.peer ? *pending.peer : Address{};
    if (pending.post_flags & SIGMA_POST_HAS_LID) operation.peer.lid = pending.remote_lid;
  }
  // Of two calls at once, the second one's index is where the first one's requests went.
  if (pending.is_placed()) operation.index = pending.index;
}

}  // namespace

std::string_view Correlator::comm(uint32_t pid) {
  if (last_comm_.generation != objects_.generation() || last_comm_.pid != pid)
    last_comm_ = {objects_.generation(), pid, objects_.comm(pid)};
  return last_comm_.comm;
}

Operation& Correlator::begin(Qp* qp, Queue side, uint32_t pid) {
  // Made anew in place; operations of one queue pair come in runs, and its reference stays.
  std::shared_ptr<const QueuePair> same = std::move(operation_.qp);
  std::destroy_at(&operation_);
  std::construct_at(&operation_);
  operation_.pid = pid;
  operation_.comm = comm(pid);
  operation_.record = record_;
  operation_.queue = side;
  if (qp != nullptr) {
    if (same != qp->info) same = qp->info;
    operation_.qp = std::move(same);
    operation_.peer_qp_num = qp->info->peer_qp_num;
    operation_.peer = qp->info->peer;
  }
  return operation_;
}

Operation& Correlator::begin(Qp* qp, Queue side, const Pending& pending, const WorkQueue* queue) {
  Operation& operation = begin(qp, side, pending.pid);
  if (qp != nullptr && pending.source == Source::ring && pending.initiator == Initiator::unknown)
    ++qp->ring.unsaid;
  operation.tid = pending.tid;
  operation.source = pending.source;
  operation.initiator = pending.initiator;
  if (pending.tier != SIGMA_TIER_NONE) operation.tier = pending.tier;
  if (pending.time_ns != 0) operation.time_ns = pending.time_ns;
  if (pending.source == Source::probe)
    operation.wr_id = pending.wr_id;
  else if (operation.time_ns)
    operation.time_error_ns = pending.time_error_ns;
  operation.flags = pending.flags;
  operation.sge_count = pending.num_sge;
  if (pending.num_sge != 0) {
    operation.local_addr = pending.local_addr;
    if (!(pending.send_flags & IBV_SEND_INLINE)) operation.lkey = pending.lkey;
  }
  if (side == Queue::send) {
    describe_send(operation, pending);
    if (queue != nullptr) operation.signaled = queue->signalled(pending);
  } else {
    operation.opcode = Opcode::recv;  // until the completion says more; bytes are those received
  }
  return operation;
}

void Correlator::apply(Operation& operation, const sigma_completion& wc, bool ambiguous) {
  // A stamp before the post is not of this request's completion.
  if (completed_.source == CompleteSource::nic && operation.time_ns && !ambiguous &&
      completed_.ns + completed_.error_ns.value_or(0) < *operation.time_ns)
    completed_ = times_.refuse(wc);
  operation.complete_ns = completed_.ns;
  operation.complete_error_ns = completed_.error_ns;
  operation.complete_source = completed_.source;
  operation.wr_id = wc.wr_id;
  operation.status = wc.status;
  if (wc.status != IBV_WC_SUCCESS && !(wc.unknown & SIGMA_WC_NO_VENDOR_ERR))
    operation.vendor_err = wc.vendor_err;
  if (ambiguous)
    operation.flags |= kAmbiguous;
  else if (operation.time_ns && *operation.time_ns <= completed_.ns)
    operation.latency_ns = completed_.ns - *operation.time_ns;

  if (operation.queue != Queue::recv || wc.status != IBV_WC_SUCCESS) return;
  const bool has_opcode = !(wc.unknown & SIGMA_WC_NO_OPCODE);
  const WcTraits traits = traits_of_wc(wc.opcode);
  operation.opcode = has_opcode ? traits.opcode : Opcode::unknown;
  if ((traits.bytes || !has_opcode) && !(wc.unknown & SIGMA_WC_NO_BYTES))
    operation.bytes = wc.byte_len;
  if (wc.wc_flags & IBV_WC_WITH_IMM)
    operation.imm = ntohl(wc.imm);
  else if (wc.wc_flags & IBV_WC_WITH_INV)
    operation.rkey = wc.imm;
  if (operation.qp != nullptr && operation.qp->type == IBV_QPT_UD) {
    if (wc.unknown & SIGMA_WC_NO_SOURCE) {
      operation.peer_qp_num.reset();
      operation.peer = Address{};
      return;
    }
    operation.peer_qp_num = wc.src_qp;
    operation.peer = Address{};
    if (wc.slid != 0) operation.peer.lid = wc.slid;  // 0 on RoCE
  }
}

// A completion of a request whose post was not seen. Its opcode and length are the completion's
// own.
void Correlator::complete_unseen(Qp* qp, const sigma_completion& wc) {
  if (qp != nullptr) ++counters_.completions_without_post;
  const WcTraits traits = traits_of_wc(wc.opcode);
  const bool success = wc.status == IBV_WC_SUCCESS && !(wc.unknown & SIGMA_WC_NO_OPCODE);
  Queue side = Queue::send;
  if (success ? traits.side != WcSide::send
              : qp != nullptr && qp->recv_cq_ptr == wc.cq_ptr && qp->send_cq_ptr != wc.cq_ptr)
    side = Queue::recv;
  Operation& operation = begin(qp, side, wc.h.pid);
  if (success && side == Queue::send) {
    operation.opcode = traits.opcode;
    if (traits.bytes && !(wc.unknown & SIGMA_WC_NO_BYTES)) operation.bytes = wc.byte_len;
  }
  apply(operation, wc, false);
  emit(operation);
}

void Correlator::emit(Operation& operation) {
  ++counters_.operations;
  if (operation.complete_source == CompleteSource::none)
    ++counters_.unfinished;
  else
    ++counters_.completed;
  if (operation.complete_source == CompleteSource::inferred) ++counters_.inferred;
  if (operation.flags & kAmbiguous) ++counters_.ambiguous;
  if (operation.queue == Queue::send && operation.qp != nullptr &&
      operation.qp->type == IBV_QPT_UD && !operation.peer.gid && !operation.peer.lid)
    ++counters_.datagram_peers_unknown;
  sink_.on_operation(operation);
}

void Correlator::emit_unfinished(Qp* qp, Queue side, const Pending& pending,
                                 const WorkQueue* queue) {
  if (pending.is_operation()) emit(begin(qp, side, pending, queue));
}

}  // namespace sigma
