// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// From records to queues and back out. The building of operations is in emit.cpp.
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

// ---- routes -------------------------------------------------------------------------------------

bool Correlator::ignored(uint32_t pid) {
  if (paused_all_) return true;
  return any_paused_ && objects_.process(pid).paused;
}

Qp* Correlator::route(uint32_t pid, uint64_t context, uint32_t qp_num) {
  const uint64_t hash = mix64(context ^ (uint64_t{pid} << 32 | qp_num));
  Route& route = routes_[hash % routes_.size()];
  if (route.generation == objects_.generation() && route.context == context && route.pid == pid &&
      route.qp_num == qp_num)
    return route.qp;
  return nullptr;
}

Qp& Correlator::qp_of_post(const sigma_header& h, uint64_t context, uint32_t qp_num,
                           uint64_t queue_ptr) {
  if (Qp* qp = route(h.pid, context, qp_num)) return *qp;
  UserContext& user = objects_.user_context(h.pid, context);
  Qp* qp = objects_.find_qp(user, qp_num, queue_ptr);
  if (qp == nullptr) qp = &objects_.older_qp(user, qp_num, h.time_ns);
  if (qp->info->qp_ptr == 0) qp->info->qp_ptr = queue_ptr;
  const uint64_t hash = mix64(context ^ (uint64_t{h.pid} << 32 | qp_num));
  routes_[hash % routes_.size()] = {objects_.generation(), context, h.pid, qp_num, qp};
  return *qp;
}

Srq& Correlator::srq_of_post(const sigma_header& h, uint64_t context, uint64_t queue_ptr) {
  if (Srq* srq = objects_.find_srq(h.pid, queue_ptr)) return *srq;
  return objects_.older_srq(objects_.user_context(h.pid, context), queue_ptr);
}

// ---- posts --------------------------------------------------------------------------------------

void Correlator::on_post(const sigma_post& post) {
  if (ignored(post.h.pid)) return;
  if (post.flags & SIGMA_POST_UNVERIFIED) ++counters_.unverified;
  if (post.flags & (SIGMA_POST_SGE_TRUNCATED | SIGMA_POST_UNREADABLE)) ++counters_.truncated;
  if (post.flags & SIGMA_POST_STAGED) return stage(post);

  const bool omits = post.flags & SIGMA_POST_LIST_TRUNCATED && post.omitted != 0;
  if (post.queue == SIGMA_QUEUE_SRQ) {
    Srq& srq = srq_of_post(post.h, post.context, post.queue_ptr);
    enqueue(srq, pending_of(post, nullptr));
    if (omits) srq.queue.set_out_of_step();
    return;
  }

  Qp& qp = qp_of_post(post.h, post.context, post.qp_num, post.queue_ptr);
  if (!qp.info->type && post.qp_type != 0xff) qp.info->type = post.qp_type;
  const Queue side = post.queue == SIGMA_QUEUE_RECV ? Queue::recv : Queue::send;
  WorkQueue& queue = side == Queue::send ? qp.send : qp.recv;
  // mlx5 numbers requests from 0 in each life: the first of all. (Or the 65,536th, exactly.)
  if (!queue.in_step() && !qp.has_operations && post.flags & SIGMA_POST_HAS_INDEX &&
      post.index == 0 && post.position == 0 && side == Queue::send)
    queue.set_in_step();
  qp.has_operations = true;

  std::shared_ptr<const Address> peer;
  if (post.flags & SIGMA_POST_HAS_AH)
    if (const Ah* ah = objects_.find_ah(qp, post.h.pid, post.ah_handle)) peer = ah->peer;
  enqueue(qp, side, pending_of(post, std::move(peer)));
  if (omits) queue.set_out_of_step();
}

void Correlator::enqueue(Qp& qp, Queue side, Pending&& pending) {
  WorkQueue& queue = side == Queue::send ? qp.send : qp.recv;
  // Two threads in the queue at once show when another's request stands inside one call.
  if (pending.position > 0 && !queue.empty()) {
    Pending& last = queue[queue.size() - 1];
    if (last.tid != pending.tid && last.time_ns >= pending.call_ns) {
      last.flags |= kConcurrent;
      pending.flags |= kConcurrent;
    }
  }
  make_room(queue.size(), &qp, side, nullptr);
  queue.push(std::move(pending));
  ++pending_;
}

void Correlator::enqueue(Srq& srq, Pending&& pending) {
  make_room(srq.queue.size(), nullptr, Queue::recv, &srq);
  srq.queue.push(std::move(pending));
  ++pending_;
}

// ---- limits -------------------------------------------------------------------------------------

void Correlator::make_room(size_t size_of_queue, Qp* qp, Queue side, Srq* srq) {
  if (size_of_queue >= limits_.pending_per_queue && size_of_queue > 0) {
    ++counters_.operations_evicted;
    --pending_;
    if (srq != nullptr) {
      emit_unfinished(nullptr, Queue::recv, srq->queue.front(), nullptr);
      srq->queue.evict_front();
    } else {
      WorkQueue& queue = side == Queue::send ? qp->send : qp->recv;
      emit_unfinished(qp, side, queue[0], &queue);
      queue.evict_front();
    }
  }
  if (pending_ >= limits_.pending) evict_oldest();
}

// From the queue with the oldest request; several at once, for finding it looks at all queues.
void Correlator::evict_oldest() {
  uint64_t oldest_ns = ~uint64_t{0};
  Qp* qp = nullptr;
  Srq* srq = nullptr;
  Queue side = Queue::send;
  objects_.for_each_qp([&](Qp& candidate) {
    for (const Queue s : {Queue::send, Queue::recv}) {
      const WorkQueue& queue = s == Queue::send ? candidate.send : candidate.recv;
      if (queue.empty() || queue[0].time_ns >= oldest_ns) continue;
      oldest_ns = queue[0].time_ns;
      qp = &candidate;
      side = s;
    }
  });
  objects_.for_each_srq([&](Srq& candidate) {
    if (candidate.queue.empty() || candidate.queue.front().time_ns >= oldest_ns) return;
    oldest_ns = candidate.queue.front().time_ns;
    srq = &candidate;
  });
  const size_t batch = std::max<size_t>(1, limits_.pending / 64);
  for (size_t i = 0; i < batch; ++i) {
    if (srq != nullptr) {
      if (srq->queue.empty()) return;
      emit_unfinished(nullptr, Queue::recv, srq->queue.front(), nullptr);
      srq->queue.evict_front();
    } else {
      if (qp == nullptr) return;
      WorkQueue& queue = side == Queue::send ? qp->send : qp->recv;
      if (queue.empty()) return;
      emit_unfinished(qp, side, queue[0], &queue);
      queue.evict_front();
    }
    --pending_;
    ++counters_.operations_evicted;
  }
}

// ---- batches and results ------------------------------------------------------------------------

Correlator::Batch* Correlator::find_batch(uint32_t tid, uint64_t call_ns) {
  if (active_batches_ == 0) return nullptr;
  for (Batch& batch : batches_)
    if (batch.active && batch.tid == tid && batch.call_ns == call_ns) return &batch;
  return nullptr;
}

void Correlator::stage(const sigma_post& post) {
  Batch* batch = find_batch(post.h.tid, post.call_ns);
  if (batch == nullptr) {
    Batch* oldest = nullptr;
    for (Batch& candidate : batches_) {
      if (!candidate.active) {
        if (batch == nullptr) batch = &candidate;
        continue;
      }
      // The thread starts anew on this queue: the end of its batch before was not seen.
      if (candidate.tid == post.h.tid && candidate.queue_ptr == post.queue_ptr) {
        drop(candidate, &Counters::staged_unresolved);
        batch = &candidate;
        continue;
      }
      if (oldest == nullptr || candidate.call_ns < oldest->call_ns) oldest = &candidate;
    }
    if (batch == nullptr && batches_.size() < kMaxBatches) batch = &batches_.emplace_back();
    if (batch == nullptr) {
      drop(*oldest, &Counters::staged_unresolved);
      batch = oldest;
    }
    batch->active = true;
    batch->pid = post.h.pid;
    batch->tid = post.h.tid;
    batch->call_ns = post.call_ns;
    batch->context = post.context;
    batch->queue_ptr = post.queue_ptr;
    batch->qp_num = post.qp_num;
    ++active_batches_;
  }
  if (batch->requests.size() >= limits_.pending_per_queue) {
    ++counters_.staged_unresolved;
    return;
  }
  Qp& qp = qp_of_post(post.h, post.context, post.qp_num, post.queue_ptr);
  if (!qp.info->type && post.qp_type != 0xff) qp.info->type = post.qp_type;
  std::shared_ptr<const Address> peer;
  if (post.flags & SIGMA_POST_HAS_AH)
    if (const Ah* ah = objects_.find_ah(qp, post.h.pid, post.ah_handle)) peer = ah->peer;
  batch->requests.push_back(pending_of(post, std::move(peer)));
}

void Correlator::commit(Batch& batch, uint64_t now_ns) {
  const sigma_header h{.time_ns = now_ns, .pid = batch.pid, .tid = batch.tid};
  Qp& qp = qp_of_post(h, batch.context, batch.qp_num, batch.queue_ptr);
  qp.has_operations = true;
  // Another thread posted between this batch's start and its commit.
  WorkQueue& queue = qp.send;
  bool concurrent = false;
  for (size_t i = queue.size(); i > 0 && queue[i - 1].time_ns > batch.call_ns; --i) {
    if (queue[i - 1].tid == batch.tid) continue;
    queue[i - 1].flags |= kConcurrent;
    concurrent = true;
  }
  for (Pending& pending : batch.requests) {
    pending.time_ns = now_ns;
    if (concurrent) pending.flags |= kConcurrent;
    make_room(queue.size(), &qp, Queue::send, nullptr);
    queue.push(std::move(pending));
    ++pending_;
  }
  batch.requests.clear();
  batch.active = false;
  --active_batches_;
}

void Correlator::drop(Batch& batch, uint64_t Counters::*counter) {
  counters_.*counter += batch.requests.size();
  batch.requests.clear();
  batch.active = false;
  --active_batches_;
}

void Correlator::drop_batches(uint32_t pid) {
  for (Batch& batch : batches_)
    if (batch.active && batch.pid == pid) drop(batch, &Counters::staged_unresolved);
}

void Correlator::drop_all_batches() {
  for (Batch& batch : batches_)
    if (batch.active) drop(batch, &Counters::staged_unresolved);
}

void Correlator::on_post_result(const sigma_post_result& result) {
  if (ignored(result.h.pid)) return;
  Batch* batch = find_batch(result.h.tid, result.call_ns);
  switch (result.outcome) {
    case SIGMA_OUTCOME_COMMITTED:
      if (batch != nullptr) commit(*batch, result.h.time_ns);
      break;
    case SIGMA_OUTCOME_ABORTED:
      if (batch != nullptr) drop(*batch, &Counters::aborted);
      break;
    case SIGMA_OUTCOME_REFUSED: {
      size_t removed = 0;
      if (batch != nullptr) {
        drop(*batch, &Counters::refused);
      } else if (result.queue == SIGMA_QUEUE_SRQ) {
        if (Srq* srq = objects_.find_srq(result.h.pid, result.queue_ptr))
          removed = srq->queue.remove_call(result.h.tid, result.call_ns, result.accepted);
        pending_ -= removed;
      } else {
        UserContext& user = objects_.user_context(result.h.pid, result.context);
        if (Qp* qp = objects_.find_qp(user, result.qp_num, result.queue_ptr)) {
          WorkQueue& queue = result.queue == SIGMA_QUEUE_RECV ? qp->recv : qp->send;
          removed = queue.remove_call(result.h.tid, result.call_ns, result.accepted);
          pending_ -= removed;
        }
      }
      counters_.refused += removed;
      break;
    }
    default:
      ++counters_.records_malformed;
  }
}

// ---- completions --------------------------------------------------------------------------------

void Correlator::on_completion(const sigma_completion& wc) {
  if (ignored(wc.h.pid)) return;
  if (wc.status == IBV_WC_WR_FLUSH_ERR)
    ++counters_.errors_flushed;
  else if (wc.status != IBV_WC_SUCCESS)
    ++counters_.errors_first;

  Qp* qp = route(wc.h.pid, wc.context, wc.qp_num);
  if (qp == nullptr) {
    UserContext& user = objects_.user_context(wc.h.pid, wc.context);
    qp = objects_.find_qp_of_completion(user, wc.qp_num, wc.cq_ptr);
    if (qp == nullptr) {
      // A straggler of a queue pair that has ended, or one that nobody posted to since the attach.
      if (objects_.had_life(user, wc.qp_num)) {
        ++counters_.completions_unmatched;
        return complete_unseen(nullptr, wc);
      }
      qp = &objects_.older_qp(user, wc.qp_num, wc.h.time_ns);
    }
    const uint64_t hash = mix64(wc.context ^ (uint64_t{wc.h.pid} << 32 | wc.qp_num));
    routes_[hash % routes_.size()] = {objects_.generation(), wc.context, wc.h.pid, wc.qp_num, qp};
  }
  qp->has_operations = true;

  if (wc.status != IBV_WC_SUCCESS) return complete_error(*qp, wc);
  switch (traits_of_wc(wc.opcode).side) {
    case WcSide::send:
      return complete_send(*qp, wc);
    case WcSide::recv:
      return complete_recv(*qp, wc);
    case WcSide::tag_matching:
      return complete_unseen(qp, wc);
  }
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
  match.ambiguous |= both;
  complete_queued(qp, *side, match, wc);
}

// The matched request completes, and all that were posted before it.
void Correlator::complete_queued(Qp& qp, Queue side, WorkQueue::Match match,
                                 const sigma_completion& wc) {
  if (match.kind == WorkQueue::Match::evicted) return;
  if (match.kind == WorkQueue::Match::none) return complete_unseen(&qp, wc);

  WorkQueue& queue = side == Queue::send ? qp.send : qp.recv;
  for (size_t i = 0; i < match.index; ++i) {
    const Pending& passed = queue[0];
    // One that should have had a completion of its own: that record was lost, and its outcome with
    // it.
    const bool own = queue.signalled(passed).value_or(false) || queue.in_error_state();
    Operation& operation = begin(&qp, side, passed, &queue);
    operation.complete_ns = wc.h.time_ns;
    operation.complete_source = CompleteSource::inferred;
    if (!own || wc.status == IBV_WC_SUCCESS) operation.status = IBV_WC_SUCCESS;
    if (own || match.ambiguous) operation.flags |= kAmbiguous;
    emit(operation);
    queue.pop_front();
    --pending_;
  }
  Operation& operation = begin(&qp, side, queue[0], &queue);
  apply(operation, wc, match.ambiguous);
  emit(operation);
  queue.pop_front();
  --pending_;
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
  for (const Queue side : {Queue::send, Queue::recv}) {
    WorkQueue& queue = side == Queue::send ? qp.send : qp.recv;
    while (!queue.empty()) {
      emit_unfinished(&qp, side, queue[0], &queue);
      queue.pop_front();
      --pending_;
    }
  }
}

void Correlator::end_life(Qp& qp) {
  close(qp);
  if (qp.has_operations && connected(*qp.info) && !qp.info->peer_qp_num)
    ++counters_.qps_peer_unknown;
  qp.has_operations = false;
}

void Correlator::close(Srq& srq) {
  while (!srq.queue.empty()) {
    emit_unfinished(nullptr, Queue::recv, srq.queue.front(), nullptr);
    srq.queue.pop_front();
    --pending_;
  }
}

void Correlator::on_window(const sigma_window& window) {
  const uint32_t pid = window.h.pid;
  const bool pause = window.kind == SIGMA_WINDOW_PAUSE;
  if (!pause && window.kind != SIGMA_WINDOW_RESUME) {
    ++counters_.records_malformed;
    return;
  }
  if (pid == 0) {
    paused_all_ = pause;
  } else {
    objects_.process(pid).paused = pause;
    any_paused_ = true;
  }
  objects_.for_each_qp([&](Qp& qp) {
    if (pid != 0 && qp.info->pid != pid) return;
    close(qp);
    qp.send.set_out_of_step();
    qp.recv.set_out_of_step();
  });
  objects_.for_each_srq([&](Srq& srq) {
    if (pid != 0 && srq.pid != pid) return;
    close(srq);
    srq.queue.set_out_of_step();
  });
  for (Batch& batch : batches_)
    if (batch.active && (pid == 0 || batch.pid == pid)) drop(batch, &Counters::staged_unresolved);
}

}  // namespace sigma
