// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// The records of one queue: its queue is found, and its correlator gets them, at once or in the thread
// that has the queue (shards.h).
#include <infiniband/verbs.h>

#include <algorithm>

#include "session/session_impl.h"

namespace sigma {

// ---- by the thread that has the queue -----------------------------------------------------------

void Session::Impl::match(Correlator& correlator, const Shards::Item& item) {
  correlator.set_record(item.number);
  const auto body = [&]<typename T>(const T*) -> const T& {
    return *reinterpret_cast<const T*>(item.record);
  };
  switch (item.record->type) {
    case SIGMA_POST: {
      const sigma_post& post = body(static_cast<const sigma_post*>(nullptr));
      return item.srq != nullptr ? correlator.on_post(*item.srq, post) : correlator.on_post(*item.qp, post);
    }
    case SIGMA_POST_RESULT:
      return correlator.on_post_result(item.qp, item.srq, body(static_cast<const sigma_post_result*>(nullptr)));
    case SIGMA_COMPLETION:
      if (item.is_pick_up) return correlator.on_pick_up(*item.qp, body(static_cast<const sigma_completion*>(nullptr)));
      return correlator.on_completion(item.qp, body(static_cast<const sigma_completion*>(nullptr)));
    case SIGMA_RING:
      return correlator.on_ring(*item.qp, body(static_cast<const sigma_ring*>(nullptr)));
    case SIGMA_RING_POST:
      return correlator.on_ring_post(*item.qp, body(static_cast<const sigma_ring_post*>(nullptr)));
    case SIGMA_RING_COMPLETION:
      return correlator.on_ring_completion(*item.qp, body(static_cast<const sigma_ring_completion*>(nullptr)));
    case SIGMA_RING_GAP:
      return correlator.on_ring_gap(*item.qp, body(static_cast<const sigma_ring_gap*>(nullptr)));
    default:
      return;
  }
}

void Session::Impl::work(uint32_t shard, std::span<const Shards::Item> items) {
  Correlator& correlator = *correlators[shard];
  for (const Shards::Item& item : items) match(correlator, item);
  correlator.sink().end_round();
}

template <typename T>
void Session::Impl::hand_over(uint32_t shard, Qp* qp, Srq* srq, const T& record, bool is_pick_up) {
  Shards::Item item{qp, srq, record_number, &record.h, is_pick_up};
  if (shards) return shards->push(shard, item, std::as_bytes(std::span(&record, 1)));
  match(*correlators[0], item);
}

// ---- finding the queue --------------------------------------------------------------------------

// Found without a change of anything that others look at.
Qp* Session::Impl::known(uint32_t pid, uint64_t context, uint32_t qp_num) {
  if (Qp* qp = routes.find(pid, context, qp_num)) return qp;
  Qp* qp = objects.known_qp(pid, context, qp_num);
  if (qp == nullptr) return nullptr;
  const uint32_t shard = routes.shard_for(*qp);
  if (qp->shard.value_or(shard) != shard) return nullptr;
  qp->shard.set(shard);
  return &routes.add(pid, context, qp_num, *qp);
}

// Which shard has it may have changed: with a shared receive queue it goes where that is.
Qp& Session::Impl::place(Qp& qp) {
  const uint32_t shard = routes.shard_for(qp), before = qp.shard.value_or(shard);
  if (before != shard) correlators[shard]->take_over(*correlators[before], qp);
  qp.shard.set(shard);
  return qp;
}

Qp& Session::Impl::qp_of_post(const sigma_header& h, uint64_t context, uint32_t qp_num, uint64_t queue_ptr) {
  if (Qp* qp = known(h.pid, context, qp_num)) return *qp;
  sync();
  UserContext& user = objects.user_context(h.pid, context);
  Qp* qp = objects.find_qp(user, qp_num, queue_ptr);
  if (qp == nullptr) qp = &objects.older_qp(user, qp_num, h.time_ns);
  if (qp->info->qp_ptr == 0) qp->info->qp_ptr = queue_ptr;
  return routes.add(h.pid, context, qp_num, place(*qp));
}

void Session::Impl::on_post(const sigma_post& post) {
  if (ignored(post.h.pid)) return;
  if (post.queue != SIGMA_QUEUE_SRQ || post.flags & SIGMA_POST_STAGED) {
    Qp& qp = qp_of_post(post.h, post.context, post.qp_num, post.queue_ptr);
    return hand_over(qp.shard.value_or(0), &qp, nullptr, post);
  }
  Srq* srq = objects.find_srq(post.h.pid, post.queue_ptr);
  if (srq == nullptr) {
    sync();
    srq = &objects.older_srq(objects.user_context(post.h.pid, post.context), post.queue_ptr);
  }
  routes.place(*srq);
  hand_over(srq->shard.value_or(0), nullptr, srq, post);
}

void Session::Impl::on_post_result(const sigma_post_result& result) {
  if (ignored(result.h.pid)) return;
  if (result.queue == SIGMA_QUEUE_SRQ) {
    Srq* srq = objects.find_srq(result.h.pid, result.queue_ptr);
    if (srq == nullptr) return;
    routes.place(*srq);
    return hand_over(srq->shard.value_or(0), nullptr, srq, result);
  }
  Qp* qp = known(result.h.pid, result.context, result.qp_num);
  if (qp == nullptr) {
    sync();
    qp = objects.find_qp(objects.user_context(result.h.pid, result.context), result.qp_num, result.queue_ptr);
    if (qp != nullptr) routes.add(result.h.pid, result.context, result.qp_num, place(*qp));
  }
  if (qp != nullptr) return hand_over(qp->shard.value_or(0), qp, nullptr, result);
  // Of a queue pair that is gone there may still be a batch.
  const auto has_it = std::ranges::find_if(correlators, [&](const auto& each) { return each->has_batch(result); });
  (has_it == correlators.end() ? *correlators[0] : **has_it).on_post_result(nullptr, nullptr, result);
}

void Session::Impl::on_completion(const sigma_completion& wc) {
  if (ignored(wc.h.pid)) return;
  if (objects.is_observed_cq(wc.h.pid, wc.cq_ptr)) {
    ++counters.polls_known;
    if (objects.tells_pick_ups()) on_pick_up(wc);
    return;
  }
  if (wc.unknown & SIGMA_WC_NO_QP_NUM) return complete_by_cq(wc);
  Qp* qp = known(wc.h.pid, wc.context, wc.qp_num);
  if (qp == nullptr) {
    sync();
    UserContext& user = objects.user_context(wc.h.pid, wc.context);
    qp = objects.find_qp_of_completion(user, wc.qp_num, wc.cq_ptr);
    if (qp == nullptr) {
      if (objects.had_life(user, wc.qp_num))
        return hand_over(routes.shard_of_process(wc.h.pid), nullptr, nullptr, wc);
      // One that nobody posted to since the attach.
      qp = &objects.older_qp(user, wc.qp_num, wc.h.time_ns);
    }
    routes.add(wc.h.pid, wc.context, wc.qp_num, place(*qp));
  }
  hand_over(qp->shard.value_or(0), qp, nullptr, wc);
}

// The operation is the ring's to tell. An error's fields do not say of which side it is, and nobody waits for it.
void Session::Impl::on_pick_up(const sigma_completion& wc) {
  if (wc.status != IBV_WC_SUCCESS) return;
  Qp* qp = nullptr;
  if (!(wc.unknown & (SIGMA_WC_NO_QP_NUM | SIGMA_WC_NO_OPCODE))) {
    qp = known(wc.h.pid, wc.context, wc.qp_num);
    if (qp == nullptr) {
      sync();
      qp = objects.find_qp_of_completion(objects.user_context(wc.h.pid, wc.context), wc.qp_num, wc.cq_ptr);
      if (qp != nullptr) routes.add(wc.h.pid, wc.context, wc.qp_num, place(*qp));
    }
  }
  if (qp == nullptr) {
    ++counters.pick_ups_untold;
    return;
  }
  hand_over(qp->shard.value_or(0), qp, nullptr, wc, true);
}

// Neither the queue pair nor the side is told: it can only be of a queue that completes in this CQ
// and has such a request. Of several such queues none is chosen.
void Session::Impl::complete_by_cq(const sigma_completion& wc) {
  sync();
  const auto queues = objects.queues_of_cq(wc.h.pid, wc.cq_ptr);
  const Objects::QueueRef* found = nullptr;
  bool one = true;
  for (const Objects::QueueRef& queue : queues) {
    const WorkQueue& side = queue.side == Queue::send ? queue.qp->send : queue.qp->recv;
    if (queues.size() > 1 && !side.contains(wc.wr_id)) continue;
    one = found == nullptr;
    found = &queue;
    if (!one) break;
  }
  if (found == nullptr || !one) {
    Correlator& correlator = correlator_of_process(wc.h.pid);
    correlator.set_record(record_number);
    return correlator.on_completion_of(nullptr, Queue::send, true, wc);
  }
  Correlator& correlator = correlator_of(place(*found->qp));
  correlator.set_record(record_number);
  correlator.on_completion_of(found->qp, found->side, queues.size() > 1, wc);
}

template <typename T>
Qp& Session::Impl::qp_of_ring(const T& record) {
  if (Qp* qp = known(record.h.pid, record.context, record.number)) return *qp;
  sync();
  Qp& qp = objects.qp_of_ring(record.h.pid, record.context, record.flags & SIGMA_RING_BY_FILE, record.number);
  return routes.add(record.h.pid, record.context, record.number, place(qp));
}

template <typename T>
void Session::Impl::hand_over_ring(const T& record) {
  Qp& qp = qp_of_ring(record);
  hand_over(qp.shard.value_or(0), &qp, nullptr, record);
}

void Session::Impl::on_ring(const sigma_ring& ring) {
  if (ring.kind == SIGMA_RING_CQ) {
    sync();
    objects.set_observed(ring);
    if (ring.event != SIGMA_RING_END) return;
    counters.ring_completions_missed += ring.missed;
    counters.ring_completions_modulo += (ring.flags & SIGMA_RING_MODULO) != 0;
    return;
  }
  if (ring.kind != SIGMA_RING_SEND || ring.event == 0 || ring.event > SIGMA_RING_END) {
    ++counters.records_malformed;
    return;
  }
  const bool by_library = ring.origin == SIGMA_RING_BY_LIBRARY;
  if (by_library && ring.event != SIGMA_RING_BEGIN &&
      known(ring.h.pid, ring.context, ring.number) == nullptr) {
    sync();
    // The last word of a queue pair whose end was told otherwise, by the end of its process.
    if (objects.has_ended(ring.h.pid, ring.context, ring.flags & SIGMA_RING_BY_FILE, ring.number)) {
      ++counters.ring_records_stale;
      return;
    }
  }
  Qp& qp = qp_of_ring(ring);
  if (qp.next && by_library && ring.event == SIGMA_RING_BEGIN) begin_next(qp, ring);
  hand_over(qp.shard.value_or(0), &qp, nullptr, ring);
  if (!by_library || ring.event != SIGMA_RING_END) return;
  if (qp.next) return begin_next(qp, ring);
  if (!qp.info->destroyed_ns) return;
  sync();
  for (const auto& correlator : correlators) correlator->set_record(record_number);
  objects.end_qp(qp, ring.h.time_ns);
}

void Session::Impl::on_ring_post(const sigma_ring_post& post) {
  hand_over_ring(post);
}

// A queue pair that was reset: the library has told the end of the life before, or that was lost and it
// tells of the one after.
void Session::Impl::begin_next(Qp& qp, const sigma_ring& ring) {
  sync();
  const bool over = ring.event == SIGMA_RING_BEGIN ? ring.life > qp.ring.life : qp.ring.ended;
  if (!over) return;
  for (const auto& correlator : correlators) correlator->set_record(record_number);
  objects.begin_next(qp, ring.h.time_ns);
}

void Session::Impl::on_ring_gap(const sigma_ring_gap& gap) {
  if (gap.kind == SIGMA_RING_CQ) return miss_completions(gap.h.pid);
  if (gap.kind != SIGMA_RING_SEND) {
    ++counters.records_malformed;
    return;
  }
  hand_over_ring(gap);
}

// How many is told by the reader's totals as well: on_ring.
void Session::Impl::miss_completions(uint32_t pid) {
  bool any = false;
  objects.for_each_srq([&](const Srq& srq) { any |= srq.pid == pid; });
  if (!any) return;
  sync();
  objects.for_each_srq([&](Srq& srq) {
    if (srq.pid == pid) srq.queue.forget_slots();
  });
}

void Session::Impl::on_ring_completion(const sigma_ring_completion& cqe) {
  if (known(cqe.h.pid, cqe.context, cqe.number) == nullptr) {
    sync();
    // Written while its queue pair was being destroyed: the library takes it out again.
    if (objects.has_ended(cqe.h.pid, cqe.context, cqe.flags & SIGMA_RING_BY_FILE, cqe.number)) {
      ++counters.ring_completions;
      ++counters.ring_records_stale;
      return;
    }
  }
  hand_over_ring(cqe);
}

}  // namespace sigma
