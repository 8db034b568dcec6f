// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Posts find their queues: at once, or when their batch is committed; and leave them when refused.
#include "session/correlate.h"

#include <infiniband/verbs.h>

#include <algorithm>

namespace sigma {

// ---- posts --------------------------------------------------------------------------------------

namespace {

bool omits_some(const sigma_post& post) {
  return post.flags & SIGMA_POST_LIST_TRUNCATED && post.omitted != 0;
}

}  // namespace

void Correlator::count(const sigma_post& post) {
  if (post.flags & SIGMA_POST_UNVERIFIED) ++counters_.unverified;
  if (post.flags & (SIGMA_POST_SGE_TRUNCATED | SIGMA_POST_UNREADABLE)) ++counters_.truncated;
}

void Correlator::on_post(Srq& srq, const sigma_post& post) {
  count(post);
  enqueue(srq, pending_of(post, nullptr));
  if (omits_some(post)) srq.queue.set_out_of_step();
}

void Correlator::on_post(Qp& qp, const sigma_post& post) {
  count(post);
  if (post.flags & SIGMA_POST_STAGED) return stage(qp, post);
  const bool omits = omits_some(post);
  if (!qp.info->type && post.qp_type != 0xff) qp.info->type = post.qp_type;
  const Queue side = post.queue == SIGMA_QUEUE_RECV ? Queue::recv : Queue::send;
  WorkQueue& queue = side == Queue::send ? qp.send : qp.recv;
  // mlx5 numbers requests from 0 in each life: the first of all. (Or the 65,536th, exactly.)
  if (!queue.in_step() && !qp.has_operations && post.flags & SIGMA_POST_HAS_INDEX &&
      post.index == 0 && post.position == 0 && side == Queue::send)
    queue.set_in_step();
  qp.has_operations = true;

  std::shared_ptr<const Address> peer;
  if ((post.flags & (SIGMA_POST_HAS_AH | SIGMA_POST_HAS_LID)) == SIGMA_POST_HAS_AH)
    if (const Ah* ah = objects_.find_ah(qp, post.h.pid, post.ah_handle)) peer = ah->peer;
  Pending pending = pending_of(post, std::move(peer));
  if (side == Queue::send) {
    if (!qp.info->posts_probed) qp.info->posts_probed = true;
    if (post.position == 0) begin_call(qp, pending);
    count_in(qp, pending, omits);
  } else {
    pending.index += pending.position;  // each takes one entry of the receive ring
  }
  enqueue(qp, side, std::move(pending));
  if (omits) queue.set_out_of_step();
}

// ---- mlx5's indices -----------------------------------------------------------------------------
//
// A call's index, read as it begins, is where the calls before it have brought the queue. `next` is
// where they bring it if all take effect. Equal: all did. Behind, and the last call was this
// thread's own: it is over, and what it did not get in was refused. Behind, with other threads
// about: theirs may still be on their way, or were refused; that cannot be told apart, and all of
// them are marked concurrent until the index has caught up. Ahead: requests that we did not see.

namespace {

// As indices go, 16 bits wide.
int16_t distance(uint16_t from, uint16_t to) {
  return static_cast<int16_t>(static_cast<uint16_t>(to - from));
}

}  // namespace

void Correlator::begin_call(Qp& qp, const Pending& first) {
  Qp::Call& last = qp.last_call;
  Qp::Call call{.known = first.has_index(),
                .sized = true,
                .tid = first.tid,
                .index = static_cast<uint16_t>(first.index),
                .next = static_cast<uint16_t>(first.index),
                .call_ns = first.call_ns};
  const int ahead =
      last.sized ? distance(last.next, call.index) : distance(last.index, call.index) - 1;
  if (call.known && last.known && ahead < 0) {
    if (last.tid == call.tid && !last.concurrent) {
      if (distance(last.index, call.index) >= 0) refuse_from(qp, call.index);
    } else {
      call.concurrent = true;
      call.sized = last.sized;
      call.next = last.next;
      for (size_t i = qp.send.size(); i > 0 && qp.send[i - 1].time_ns >= last.call_ns; --i)
        if (qp.send[i - 1].tid == last.tid) qp.send[i - 1].flags |= kConcurrent;
    }
  }
  last = call;
}

// The last call's requests that stand at `index` or behind it are not in the queue.
void Correlator::refuse_from(Qp& qp, uint16_t index) {
  const Qp::Call& call = qp.last_call;
  std::optional<uint32_t> accepted;
  if (call.index == index) accepted = 0;
  for (size_t i = qp.send.size(); i > 0 && !accepted; --i) {
    const Pending& pending = qp.send[i - 1];
    if (pending.time_ns < call.call_ns) break;
    if (pending.tid != call.tid || pending.call_ns != call.call_ns) continue;
    if (!pending.has_index()) continue;
    // The first one that is in the queue.
    if (distance(static_cast<uint16_t>(pending.index), index) > 0) accepted = pending.position + 1u;
  }
  // None of them is pending any more: those that are were not among the accepted ones.
  const size_t removed = qp.send.remove_call(call.tid, call.call_ns, accepted.value_or(0));
  pending_ -= static_cast<int64_t>(removed);
  counters_.refused += removed;
}

// Gives the request its index, if that of its call and the sizes of those before it are known.
void Correlator::count_in(Qp& qp, Pending& pending, bool omits) {
  if (!pending.has_index()) return;
  Qp::Call& call = qp.last_call;
  const bool ours = call.known && call.tid == pending.tid && call.call_ns == pending.call_ns;
  if (ours && call.sized && !call.concurrent)
    pending.index = call.next;
  else if (pending.position > 0)
    pending.post_flags &= static_cast<uint16_t>(~SIGMA_POST_HAS_INDEX);
  if (ours && call.concurrent) pending.flags |= kConcurrent;
  if (qp.ring.active) {
    pending.index = qp.ring.extend(static_cast<uint16_t>(pending.index));
    if (pending.has_index()) qp.ring.latest = std::max(qp.ring.latest, pending.index);
  }
  call.next = static_cast<uint16_t>(call.next + pending.blocks);
  if (pending.blocks == 0 || omits) call.sized = false;
}

// A call's requests from `accepted` on will not be in the queue after all.
void Correlator::count_out(Qp& qp, uint32_t tid, uint64_t call_ns, uint32_t accepted) {
  for (size_t i = qp.send.size(); i > 0 && qp.send[i - 1].time_ns >= call_ns; --i) {
    const Pending& pending = qp.send[i - 1];
    if (pending.tid == tid && pending.call_ns == call_ns && pending.position >= accepted)
      qp.last_call.next = static_cast<uint16_t>(qp.last_call.next - pending.blocks);
  }
}

// ---- into the queues ----------------------------------------------------------------------------

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
      if (side == Queue::send) note_reported(*qp, queue[0]);
      queue.evict_front();
    }
  }
  if (pending_ >= static_cast<int64_t>(limits_.pending)) evict_oldest();
}

// From the queue of ours with the oldest request; several at once, for finding it looks at all queues.
void Correlator::evict_oldest() {
  uint64_t oldest_ns = ~uint64_t{0};
  Qp* qp = nullptr;
  Srq* srq = nullptr;
  Queue side = Queue::send;
  objects_.for_each_qp([&](Qp& candidate) {
    if (candidate.shard.value_or(0) != shard_) return;
    for (const Queue s : {Queue::send, Queue::recv}) {
      const WorkQueue& queue = s == Queue::send ? candidate.send : candidate.recv;
      if (queue.empty() || queue[0].time_ns >= oldest_ns) continue;
      oldest_ns = queue[0].time_ns;
      qp = &candidate;
      side = s;
    }
  });
  objects_.for_each_srq([&](Srq& candidate) {
    if (candidate.shard.value_or(0) != shard_) return;
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
      if (side == Queue::send) note_reported(*qp, queue[0]);
      queue.evict_front();
    }
    --pending_;
    ++counters_.operations_evicted;
  }
}

// ---- batches and results ------------------------------------------------------------------------

template <typename T>
Correlator::Batch* Correlator::find_batch(const T& record) {
  if (active_batches_ == 0) return nullptr;
  for (Batch& batch : batches_)
    if (batch.active && batch.tid == record.h.tid && batch.call_ns == record.call_ns &&
        batch.qp_num == record.qp_num && batch.context == record.context && batch.pid == record.h.pid)
      return &batch;
  return nullptr;
}

bool Correlator::has_batch(const sigma_post_result& result) {
  return find_batch(result) != nullptr;
}

void Correlator::stage(Qp& qp, const sigma_post& post) {
  Batch* batch = find_batch(post);
  if (batch == nullptr) {
    Batch* oldest = nullptr;
    for (Batch& candidate : batches_) {
      if (!candidate.active) {
        if (batch == nullptr) batch = &candidate;
        continue;
      }
      // The thread starts anew on this queue: the end of its batch before was not seen.
      if (candidate.tid == post.h.tid && candidate.queue_ptr == post.queue_ptr &&
          candidate.qp == &qp) {
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
    batch->qp = &qp;
    ++active_batches_;
  }
  if (batch->requests.size() >= limits_.pending_per_queue) {
    ++counters_.staged_unresolved;
    return;
  }
  if (!qp.info->type && post.qp_type != 0xff) qp.info->type = post.qp_type;
  std::shared_ptr<const Address> peer;
  if ((post.flags & (SIGMA_POST_HAS_AH | SIGMA_POST_HAS_LID)) == SIGMA_POST_HAS_AH)
    if (const Ah* ah = objects_.find_ah(qp, post.h.pid, post.ah_handle)) peer = ah->peer;
  batch->requests.push_back(pending_of(post, std::move(peer)));
}

void Correlator::commit(Batch& batch, Qp& qp, uint64_t now_ns) {
  qp.has_operations = true;
  qp.info->posts_probed = true;
  // Another thread posted between this batch's start and its commit.
  WorkQueue& queue = qp.send;
  if (!batch.requests.empty()) begin_call(qp, batch.requests.front());
  bool concurrent = qp.last_call.concurrent;
  for (size_t i = queue.size(); i > 0 && queue[i - 1].time_ns > batch.call_ns; --i) {
    if (queue[i - 1].tid == batch.tid) continue;
    queue[i - 1].flags |= kConcurrent;
    concurrent = true;
  }
  for (Pending& pending : batch.requests) {
    pending.time_ns = now_ns;
    count_in(qp, pending, false);
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
    if (batch.active && (pid == 0 || batch.pid == pid)) drop(batch, &Counters::staged_unresolved);
}

void Correlator::take_over(Correlator& from, const Qp& qp) {
  const auto size = static_cast<int64_t>(qp.send.size() + qp.recv.size());
  from.pending_ -= size;
  pending_ += size;
  for (Batch& batch : from.batches_) {
    if (!batch.active || batch.qp != &qp) continue;
    Batch* room = nullptr;
    for (Batch& candidate : batches_)
      if (!candidate.active) room = &candidate;
    if (room == nullptr) room = &batches_.emplace_back();
    std::swap(*room, batch);
    ++active_batches_;
    --from.active_batches_;
  }
}

void Correlator::on_post_result(Qp* qp, Srq* srq, const sigma_post_result& result) {
  Batch* batch = find_batch(result);
  switch (result.outcome) {
    case SIGMA_OUTCOME_COMMITTED:
      if (batch != nullptr && qp != nullptr)
        commit(*batch, *qp, result.h.time_ns);
      else if (batch != nullptr)
        drop(*batch, &Counters::staged_unresolved);
      break;
    case SIGMA_OUTCOME_ABORTED:
      if (batch != nullptr) drop(*batch, &Counters::aborted);
      break;
    case SIGMA_OUTCOME_REFUSED: {
      size_t removed = 0;
      if (batch != nullptr) {
        drop(*batch, &Counters::refused);
      } else if (result.queue == SIGMA_QUEUE_SRQ) {
        if (srq != nullptr)
          removed = srq->queue.remove_call(result.h.tid, result.call_ns, result.accepted);
      } else if (qp != nullptr) {
        WorkQueue& queue = result.queue == SIGMA_QUEUE_RECV ? qp->recv : qp->send;
        if (result.queue == SIGMA_QUEUE_SEND)
          count_out(*qp, result.h.tid, result.call_ns, result.accepted);
        removed = queue.remove_call(result.h.tid, result.call_ns, result.accepted);
      }
      pending_ -= static_cast<int64_t>(removed);
      counters_.refused += removed;
      break;
    }
    default:
      ++counters_.records_malformed;
  }
}

}  // namespace sigma
