// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Completions that were read from rings: without wr_id but with the index of their request.
//
// A send completion of index c belongs to the request at c and completes all before it (IBA 10.8.3.1;
// the reader delivers a ring's posts before their completions). Where nobody has told of the request at
// c, it waits as long as the ring may still do so. Receive queues complete in order; shared ones by the
// slot (shared_queue.h).
#include <arpa/inet.h>
#include <infiniband/verbs.h>

#include <algorithm>
#include <bit>

#include "session/correlate.h"

namespace sigma {
namespace {

constexpr size_t kMaxWaiting = 1 << 16;

}  // namespace

void Correlator::on_ring_completion(Qp& qp, const sigma_ring_completion& cqe) {
  const RingReader reader = ring_reader(cqe.tier);
  RingReader& teller = qp.ring.completions_by[cqe.queue == SIGMA_QUEUE_SEND ? 0 : 1];
  if (teller != RingReader::none && teller != reader) {
    ++counters_.ring_records_refused;
    return;
  }
  if (cqe.status == IBV_WC_WR_FLUSH_ERR)
    ++counters_.errors_flushed;
  else if (cqe.status != IBV_WC_SUCCESS)
    ++counters_.errors_first;
  ++counters_.ring_completions;
  if (cqe.life != ~0u && !is_of_life(qp, reader, cqe.life)) return;
  teller = reader;
  qp.has_operations = true;
  qp.ring.completions = true;
  told_.reset();
  if (cqe.queue == SIGMA_QUEUE_SEND)
    complete_ring_send(qp, cqe);
  else
    complete_ring_recv(qp, cqe);
  if (objects_.tells_pick_ups() && reader == RingReader::observer) note_told(qp, cqe);
}

void Correlator::complete_ring_send(Qp& qp, const sigma_ring_completion& cqe) {
  ObservedRing& ring = qp.ring;
  const uint64_t index = ring.extend(cqe.wqe_counter);
  if (take_ring_send(qp, cqe, index)) return;
  if (!ring.active || index < ring.read_until) return complete_ring_unseen(qp, Queue::send, cqe);
  if (ring.waiting.size() >= kMaxWaiting) {
    const sigma_ring_completion oldest = ring.waiting.front();
    ring.waiting.pop_front();
    complete_ring_unseen(qp, Queue::send, oldest);
  }
  ring.waiting.push_back(cqe);
}

// Completes the request at `index`, and all before it. False: no such request is pending.
bool Correlator::take_ring_send(Qp& qp, const sigma_ring_completion& cqe, uint64_t index) {
  WorkQueue& queue = qp.send;
  size_t before = 0;  // so many stand before `index` for certain
  std::optional<size_t> exact, maybe;
  for (size_t i = 0; i < queue.size() && !exact; ++i) {
    const Pending& pending = queue[i];
    if (pending.has_index() || pending.position > 0) {
      if (pending.index > index) break;
      if (pending.is_placed()) {
        before = i + 1;
        maybe.reset();
        if (pending.index == index) exact = i;
        continue;
      }
    }
    // Of those whose index is not certain the oldest that asked for a completion.
    if (!maybe && queue.signalled(pending).value_or(true)) maybe = i;
  }
  const std::optional<size_t> found = exact ? exact : maybe;
  const bool reported = found && queue[*found].is_operation();
  completed_ = reported ? times_.of(*qp.device, cqe) : CompletionTimes::interval_of(cqe);
  if (found || before > 0) qp.send_moved_ns = std::max<uint64_t>(qp.send_moved_ns, cqe.h.time_ns);
  infer_until(qp, found.value_or(before), cqe);
  if (!found) return false;
  if (!reported) {
    pop(qp, Queue::send);
    // Of a request that moves no data. On a collapsed completion queue it may be all that is left
    // of what went wrong before it.
    if (cqe.status != IBV_WC_SUCCESS) tell_completion_alone(qp, Queue::send, cqe);
    return true;
  }
  Operation& operation = begin(&qp, Queue::send, queue[0], &queue);
  apply(operation, cqe);
  emit(operation);
  pop(qp, Queue::send);
  return true;
}

// The first `end` requests completed without a completion of their own, or with one that was
// missed.
void Correlator::infer_until(Qp& qp, size_t end, const sigma_ring_completion& cqe) {
  const bool in_error = cqe.status != IBV_WC_SUCCESS && qp.send.set_error();
  for (size_t i = 0; i < end; ++i) {
    const Pending& passed = qp.send[0];
    if (!passed.is_operation()) {
      pop(qp, Queue::send);
      continue;
    }
    // In the error state each has its own, and what it said is not known; nor where a flush is the
    // first that is seen: what it follows from is one of these.
    const bool own = in_error || cqe.status == IBV_WC_WR_FLUSH_ERR ||
                     (cqe.status != IBV_WC_SUCCESS && qp.send.signalled(passed).value_or(false));
    Operation& operation = begin(&qp, Queue::send, passed, &qp.send);
    stamp(operation);
    operation.complete_source = CompleteSource::inferred;
    if (own)
      operation.flags |= kAmbiguous;
    else
      operation.status = IBV_WC_SUCCESS;
    if (qp.send.signalled(passed).value_or(false)) ++counters_.ring_completions_passed;
    emit(operation);
    pop(qp, Queue::send);
  }
}

void Correlator::complete_ring_recv(Qp& qp, const sigma_ring_completion& cqe) {
  if (qp.info->has_srq || cqe.queue == SIGMA_QUEUE_SRQ) {
    Srq* srq = objects_.srq_of(qp);
    if (srq == nullptr || cqe.flags & SIGMA_RING_NO_COUNTER)
      return complete_ring_unseen(qp, Queue::recv, cqe);
    const auto match = srq->queue.take_slot(cqe.wqe_counter);
    if (match.kind == SharedQueue::Match::ambiguous) --pending_;
    if (match.kind != SharedQueue::Match::found) return complete_ring_unseen(qp, Queue::recv, cqe);
    --pending_;
    completed_ = times_.of(*qp.device, cqe);
    Operation& operation = begin(&qp, Queue::recv, match.pending, nullptr);
    apply(operation, cqe);
    return emit(operation);
  }
  // The queue's own counter, which may be cut to the size of the ring.
  WorkQueue& queue = qp.recv;
  size_t at = 0;
  if (!queue.empty() && queue[0].has_index() && !(cqe.flags & SIGMA_RING_NO_COUNTER)) {
    const uint32_t entries = std::has_single_bit(qp.rq_entries) ? qp.rq_entries : 1u << 16;
    at = (cqe.wqe_counter - static_cast<uint32_t>(queue[0].index)) & (entries - 1);
  } else if (!queue.in_step()) {
    return complete_ring_unseen(qp, Queue::recv, cqe);
  }
  if (at >= queue.size()) return complete_ring_unseen(qp, Queue::recv, cqe);
  completed_ = times_.of(*qp.device, cqe);
  // Completed, and missed: as what is not known.
  for (size_t i = 0; i < at; ++i) {
    Operation& operation = begin(&qp, Queue::recv, queue[0], &queue);
    stamp(operation);
    operation.complete_source = CompleteSource::inferred;
    operation.flags |= kAmbiguous;
    if (cqe.status == IBV_WC_SUCCESS) operation.status = IBV_WC_SUCCESS;
    emit(operation);
    pop(qp, Queue::recv);
  }
  Operation& operation = begin(&qp, Queue::recv, queue[0], &queue);
  apply(operation, cqe);
  emit(operation);
  pop(qp, Queue::recv);
}

// Nobody told of the request. A send that was missed stands in a gap already, and is no second
// operation; but an error is news.
void Correlator::complete_ring_unseen(Qp& qp, Queue side, const sigma_ring_completion& cqe) {
  if (side == Queue::send) {
    ++counters_.completions_without_post;
    if (cqe.status == IBV_WC_SUCCESS) return;
  } else {
    ++counters_.receives_without_post;
  }
  tell_completion_alone(qp, side, cqe);
}

// Nothing is known of the request but its place.
void Correlator::tell_completion_alone(Qp& qp, Queue side, const sigma_ring_completion& cqe) {
  completed_ = times_.of(*qp.device, cqe);
  Operation& operation = begin(&qp, side, cqe.h.pid);
  operation.source = Source::ring;
  if (cqe.tier != SIGMA_TIER_NONE) operation.tier = cqe.tier;
  operation.initiator = Initiator::unknown;
  if (side == Queue::recv) operation.opcode = Opcode::recv;  // until the completion says more
  if (side == Queue::send && !(cqe.flags & SIGMA_RING_NO_COUNTER))
    operation.index = qp.ring.extend(cqe.wqe_counter);
  apply(operation, cqe);
  emit(operation);
}

void Correlator::settle_waiting(Qp& qp) {
  ObservedRing& ring = qp.ring;
  while (!ring.waiting.empty()) {
    const uint64_t index = ring.extend(ring.waiting.front().wqe_counter);
    if (index >= ring.read_until) return;
    const sigma_ring_completion cqe = ring.waiting.front();
    ring.waiting.pop_front();
    if (!take_ring_send(qp, cqe, index)) complete_ring_unseen(qp, Queue::send, cqe);
  }
}

void Correlator::give_up_waiting(Qp& qp) {
  while (!qp.ring.waiting.empty()) {
    const sigma_ring_completion cqe = qp.ring.waiting.front();
    qp.ring.waiting.pop_front();
    complete_ring_unseen(qp, Queue::send, cqe);
  }
}

// ---- picked up by a poll ------------------------------------------------------------------------

// In the order of the ring, also where its request is still to come.
void Correlator::note_told(Qp& qp, const sigma_ring_completion& cqe) {
  if (cqe.status != IBV_WC_SUCCESS) return;
  if (!told_) {
    const CompletionTime time = times_.peek(*qp.device, cqe);
    told_ = {time.ns, time.error_ns.value_or(0), std::nullopt, std::nullopt};
  }
  const Queue side = cqe.queue == SIGMA_QUEUE_SEND ? Queue::send : Queue::recv;
  if (side == Queue::recv && traits_of_wc(cqe.wc_opcode).bytes && !(cqe.flags & SIGMA_RING_NO_BYTES))
    told_->bytes = cqe.bytes;
  auto& pick_ups = qp.pick_ups[static_cast<size_t>(side)];
  if (!pick_ups) pick_ups = std::make_unique<PickUps>();
  tell(qp, side, cqe.h.pid, pick_ups->on_told(*told_, counters_));
}

void Correlator::on_pick_up(Qp& qp, const sigma_completion& wc) {
  const WcTraits traits = traits_of_wc(wc.opcode);
  if (traits.side == WcSide::tag_matching) return;
  const Queue side = traits.side == WcSide::send ? Queue::send : Queue::recv;
  PickUps::Poll poll{wc.h.time_ns, wc.h.tid, wc.wr_id, std::nullopt};
  if (side == Queue::recv && traits.bytes && !(wc.unknown & SIGMA_WC_NO_BYTES)) poll.bytes = wc.byte_len;
  auto& pick_ups = qp.pick_ups[static_cast<size_t>(side)];
  if (!pick_ups) pick_ups = std::make_unique<PickUps>();
  tell(qp, side, wc.h.pid, pick_ups->on_poll(poll, counters_));
}

void Correlator::tell(Qp& qp, Queue side, uint32_t pid, const std::optional<PickUps::Delay>& delay) {
  if (delay) sink_.on_pick_up({qp.info, pid, side, delay->ns, delay->error_ns});
}

void Correlator::close_pick_ups(Qp& qp) {
  for (auto& pick_ups : qp.pick_ups)
    if (pick_ups) pick_ups->close(counters_);
}

// ---- what a completion says ---------------------------------------------------------------------

// When, by completed_. A request cannot have been posted after it completed: that narrows its
// interval.
void Correlator::stamp(Operation& operation) {
  operation.complete_ns = completed_.ns;
  operation.complete_error_ns = completed_.error_ns;
  operation.complete_source = completed_.source;
  if (!operation.time_ns || !operation.time_error_ns) return;
  const uint64_t begin = *operation.time_ns - *operation.time_error_ns;
  const uint64_t end = *operation.time_ns + *operation.time_error_ns;
  const uint64_t latest = completed_.ns + completed_.error_ns.value_or(0);
  if (latest >= end || latest < begin) return;
  operation.time_error_ns = (latest - begin) / 2;
  operation.time_ns = begin + *operation.time_error_ns;
}

void Correlator::apply(Operation& operation, const sigma_ring_completion& cqe) {
  // A stamp before the post is not of this request's completion.
  if (completed_.source == CompleteSource::nic && operation.time_ns &&
      completed_.ns + completed_.error_ns.value_or(0) <
          *operation.time_ns - operation.time_error_ns.value_or(0))
    completed_ = times_.refuse(cqe);
  stamp(operation);
  told_ = {completed_.ns, completed_.error_ns.value_or(0), operation.wr_id, std::nullopt};
  operation.status = cqe.status;
  if (cqe.status != IBV_WC_SUCCESS) operation.vendor_err = cqe.vendor_err;
  if (operation.time_ns && *operation.time_ns <= *operation.complete_ns)
    operation.latency_ns = *operation.complete_ns - *operation.time_ns;

  if (operation.queue != Queue::recv || cqe.status != IBV_WC_SUCCESS) return;
  const WcTraits traits = traits_of_wc(cqe.wc_opcode);
  operation.opcode = traits.opcode;
  if (traits.bytes && !(cqe.flags & SIGMA_RING_NO_BYTES)) operation.bytes = cqe.bytes;
  if (cqe.wc_flags & IBV_WC_WITH_IMM)
    operation.imm = ntohl(cqe.imm);
  else if (cqe.wc_flags & IBV_WC_WITH_INV)
    operation.rkey = cqe.imm;
  if (operation.qp != nullptr && operation.qp->type == IBV_QPT_UD) {
    operation.peer_qp_num = cqe.src_qp;
    operation.peer = Address{};
    if (cqe.slid != 0) operation.peer.lid = cqe.slid;  // 0 on RoCE
  }
}

}  // namespace sigma
