// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Completions find their requests; and what ends without one. Posts: posts.cpp; operations:
// emit.cpp.
#include "session/correlate.h"

#include <infiniband/verbs.h>

#include <algorithm>

namespace sigma {
namespace {

// Which side of a queue pair a CQ belongs to; only where the two sides are known to have different
// ones.
std::optional<Queue> side_of_cq(const Qp& qp, uint64_t cq_ptr) {
  if (qp.send_cq_ptr == 0 || qp.recv_cq_ptr == 0 || qp.send_cq_ptr == qp.recv_cq_ptr)
    return std::nullopt;
  if (cq_ptr == qp.send_cq_ptr) return Queue::send;
  if (cq_ptr == qp.recv_cq_ptr) return Queue::recv;
  return std::nullopt;
}

bool connected(const QueuePair& info) {
  return info.type == IBV_QPT_RC || info.type == IBV_QPT_UC || info.type == IBV_QPT_XRC_SEND;
}

}  // namespace

// ---- completions --------------------------------------------------------------------------------

void Correlator::count(const sigma_completion& wc) {
  if (wc.status == IBV_WC_WR_FLUSH_ERR)
    ++counters_.errors_flushed;
  else if (wc.status != IBV_WC_SUCCESS)
    ++counters_.errors_first;

  completed_ = {.ns = wc.h.time_ns};
  // Of an error the rest means nothing.
  const uint16_t meant = wc.status == IBV_WC_SUCCESS
                             ? uint16_t{0xffff}
                             : uint16_t{SIGMA_WC_NO_QP_NUM | SIGMA_WC_NO_VENDOR_ERR};
  if (wc.unknown & meant) ++counters_.completions_fields_unknown;
}

void Correlator::on_completion(Qp* qp, const sigma_completion& wc) {
  count(wc);
  if (qp == nullptr) {
    ++counters_.completions_unmatched;
    return complete_unseen(nullptr, wc);
  }
  qp->has_operations = true;
  completed_ = times_.of(*qp->device, wc);

  if (wc.status != IBV_WC_SUCCESS) return complete_error(*qp, wc);
  if (wc.unknown & SIGMA_WC_NO_OPCODE) return complete_somewhere(*qp, wc);
  switch (traits_of_wc(wc.opcode).side) {
    case WcSide::send:
      return complete_send(*qp, wc);
    case WcSide::recv:
      return complete_recv(*qp, wc);
    case WcSide::tag_matching:
      return complete_unseen(qp, wc);
  }
}

void Correlator::on_completion_of(Qp* qp, Queue side, bool several, const sigma_completion& wc) {
  count(wc);
  if (qp == nullptr) {
    ++counters_.completions_unmatched;
    return complete_unseen(nullptr, wc);
  }
  qp->has_operations = true;
  completed_ = times_.of(*qp->device, wc);
  WorkQueue& queue = side == Queue::send ? qp->send : qp->recv;
  WorkQueue::Match match =
      wc.status == IBV_WC_SUCCESS ? queue.match_success(wc.wr_id) : queue.match_error(wc.wr_id);
  match.ambiguous |= several;
  complete_queued(*qp, side, match, wc);
}

// A success of this queue pair whose opcode is not told: the CQ says the side, or the wr_id does.
void Correlator::complete_somewhere(Qp& qp, const sigma_completion& wc) {
  std::optional<Queue> side = side_of_cq(qp, wc.cq_ptr);
  if (!side) {
    const bool send = qp.send.contains(wc.wr_id);
    Srq* srq = qp.info->has_srq ? objects_.srq_of(qp) : nullptr;
    const bool recv = qp.info->has_srq ? srq != nullptr && srq->queue.contains(wc.wr_id)
                                       : qp.recv.contains(wc.wr_id);
    if (send == recv) return complete_unseen(&qp, wc);
    side = send ? Queue::send : Queue::recv;
  }
  if (*side == Queue::send)
    complete_send(qp, wc);
  else
    complete_recv(qp, wc);
}

void Correlator::complete_send(Qp& qp, const sigma_completion& wc) {
  if (qp.send_cq_ptr == 0) qp.send_cq_ptr = wc.cq_ptr;
  complete_queued(qp, Queue::send, qp.send.match_success(wc.wr_id), wc);
  if (!qp.info->sq_sig_all && qp.send.in_step()) qp.info->sq_sig_all = qp.send.sq_sig_all();
}

void Correlator::complete_recv(Qp& qp, const sigma_completion& wc) {
  if (qp.recv_cq_ptr == 0) qp.recv_cq_ptr = wc.cq_ptr;
  if (qp.info->has_srq) return complete_shared(qp, objects_.srq_of(qp), wc, 0);
  complete_queued(qp, Queue::recv, qp.recv.match_success(wc.wr_id), wc);
}

void Correlator::complete_error(Qp& qp, const sigma_completion& wc) {
  Srq* srq = qp.info->has_srq ? objects_.srq_of(qp) : nullptr;
  const auto in_recv = [&] {
    if (qp.info->has_srq) return srq != nullptr && srq->queue.contains(wc.wr_id);
    return qp.recv.contains(wc.wr_id);
  };

  std::optional<Queue> side = side_of_cq(qp, wc.cq_ptr);
  bool both = false;
  if (!side) {
    const bool send = qp.send.contains(wc.wr_id);
    const bool recv = in_recv();
    if (!send && !recv) return complete_unseen(&qp, wc);
    side = send ? Queue::send : Queue::recv;
    both = send && recv;
  }
  if (*side == Queue::recv && qp.info->has_srq)
    return complete_shared(qp, srq, wc, both ? kAmbiguous : 0);

  WorkQueue& queue = *side == Queue::send ? qp.send : qp.recv;
  WorkQueue::Match match = queue.match_error(wc.wr_id);
  if (both) {
    match.ambiguous = true;
    qp.send.set_doubtful();
    qp.recv.set_doubtful();
  }
  complete_queued(qp, *side, match, wc);
}

// The matched request completes, and where the queue completes in order all before it.
void Correlator::complete_queued(Qp& qp, Queue side, WorkQueue::Match match,
                                 const sigma_completion& wc) {
  if (match.kind == WorkQueue::Match::evicted) return;
  if (match.kind == WorkQueue::Match::none) return complete_unseen(&qp, wc);

  if (side == Queue::send) qp.send_moved_ns = wc.h.time_ns;
  WorkQueue& queue = side == Queue::send ? qp.send : qp.recv;
  if (match.alone) {
    queue.bring_forward(match.index);
    match.index = 0;
  }
  for (size_t i = 0; i < match.index; ++i) {
    const Pending& passed = queue[0];
    if (!passed.is_operation()) {
      pop(qp, side);
      continue;
    }
    // One that should have had a completion of its own: that record was lost, and its outcome with
    // it.
    const bool own = match.in_error || queue.signalled(passed).value_or(false);
    Operation& operation = begin(&qp, side, passed, &queue);
    operation.complete_ns = completed_.ns;
    operation.complete_error_ns = completed_.error_ns;
    operation.complete_source = CompleteSource::inferred;
    if (!own || wc.status == IBV_WC_SUCCESS) operation.status = IBV_WC_SUCCESS;
    if (own || match.ambiguous) operation.flags |= kAmbiguous;
    emit(operation);
    pop(qp, side);
  }
  if (!queue[0].is_operation()) return pop(qp, side);
  Operation& operation = begin(&qp, side, queue[0], &queue);
  apply(operation, wc, match.ambiguous);
  emit(operation);
  pop(qp, side);
}

void Correlator::complete_shared(Qp& qp, Srq* srq, const sigma_completion& wc, uint8_t flags) {
  using Match = SharedQueue::Match;
  const Match match = srq != nullptr ? srq->queue.take(wc.wr_id) : Match{};
  if (match.kind == Match::evicted) return;
  if (match.kind == Match::none) return complete_unseen(&qp, wc);
  --pending_;
  Operation& operation = match.kind == Match::found
                             ? begin(&qp, Queue::recv, match.pending, nullptr)
                             : begin(&qp, Queue::recv, wc.h.pid);
  operation.flags |= flags;
  apply(operation, wc, match.kind == Match::ambiguous || flags != 0);
  emit(operation);
}

// ---- ends ---------------------------------------------------------------------------------------

void Correlator::close(Qp& qp) {
  give_up_waiting(qp);
  close_pick_ups(qp);
  for (const Queue side : {Queue::send, Queue::recv}) {
    WorkQueue& queue = side == Queue::send ? qp.send : qp.recv;
    while (!queue.empty()) {
      emit_unfinished(&qp, side, queue[0], &queue);
      pop(qp, side);
    }
  }
}

void Correlator::end_life(Qp& qp) {
  for (Batch& batch : batches_)
    if (batch.active && batch.qp == &qp) drop(batch, &Counters::staged_unresolved);
  close(qp);
  if (qp.info->destroyed_ns) miss_end(qp);
  if (qp.has_operations && connected(*qp.info) && !qp.info->peer_qp_num)
    ++counters_.qps_peer_unknown;
  qp.has_operations = false;
}

// The preloaded library tells each queue's end, unless the job ended before its reader came to it.
void Correlator::miss_end(Qp& qp) {
  if (!qp.ring.active || qp.ring.reader != RingReader::library || qp.ring.ended) return;
  qp.ring.ended = true;
  if (!qp.info->observed) qp.info->observed.emplace();
  Observed& observed = *qp.info->observed;
  observed.end_unseen = true;
  observed.posted = std::max(observed.posted, observed.seen + observed.missed);
  ++counters_.ring_ends_unseen;
}

void Correlator::close(Srq& srq) {
  while (!srq.queue.empty()) {
    emit_unfinished(nullptr, Queue::recv, srq.queue.front(), nullptr);
    srq.queue.pop_front();
    --pending_;
  }
}

void Correlator::interrupt(Qp& qp) {
  close(qp);
  qp.send.set_out_of_step();
  qp.recv.set_out_of_step();
  qp.last_call = {};
}

void Correlator::interrupt(Srq& srq) {
  close(srq);
  srq.queue.set_out_of_step();
}

}  // namespace sigma
