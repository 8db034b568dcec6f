// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// What was read from rings: posts without wr_id but with an index, completions without wr_id but
// with the index of their request.
//
// Posts. A request may be told by a probe and by the ring; the index is the key, the probe's word
// (a point in time, the wr_id) stands. Of calls that ran at once the probe knows the content only;
// then the content is the key, and the ring tells the index.
//
// Completions. A send completion of index c belongs to the request at c and completes all before it
// (IBA 10.8.3.1; the reader delivers a ring's posts before their completions). Where nobody has
// told of the request at c, it waits as long as the ring may still do so. Receive queues complete
// in order; shared ones by the slot (shared_queue.h).
#include <arpa/inet.h>
#include <infiniband/verbs.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

#include "session/correlate.h"

namespace sigma {
namespace {

constexpr size_t kMaxWaiting = 1 << 16;

bool has_index(const Pending& pending) {
  return pending.post_flags & SIGMA_POST_HAS_INDEX;
}
// The request stands at its index for certain; else at it or later.
bool certain(const Pending& pending) {
  return has_index(pending) && !(pending.flags & kConcurrent);
}

bool same_content(const Pending& probed, const sigma_ring_post& post) {
  if (probed.source != Source::probe || probed.opcode != post.opcode) return false;
  const bool is_inline = probed.send_flags & IBV_SEND_INLINE;
  if (!(post.flags & SIGMA_RING_NO_BYTES) && probed.bytes != post.bytes) return false;
  if (!is_inline && probed.num_sge != 0 && probed.local_addr != post.local_addr) return false;
  const WrTraits traits = traits_of_wr(probed.opcode);
  return !traits.remote || (probed.remote_addr == post.remote_addr && probed.rkey == post.rkey);
}

std::shared_ptr<const Address> peer_of(const sigma_ring_post& post) {
  if (!(post.flags & SIGMA_RING_HAS_QPN)) return nullptr;
  Address address;
  if (post.flags & SIGMA_RING_HAS_GID) {
    address.gid.emplace();
    std::memcpy(address.gid->data(), &post.gid_prefix, 8);
    std::memcpy(address.gid->data() + 8, &post.gid_interface, 8);
  }
  if (post.lid != 0) address.lid = post.lid;
  return std::make_shared<const Address>(address);
}

Initiator initiator_of(uint8_t initiator) {
  switch (initiator) {
    case SIGMA_INITIATOR_CPU:
      return Initiator::cpu;
    case SIGMA_INITIATOR_GPU:
      return Initiator::gpu;
    default:
      return Initiator::unknown;
  }
}

}  // namespace

Pending pending_of(const sigma_ring_post& post) {
  uint16_t post_flags = SIGMA_POST_HAS_INDEX;
  if (post.flags & SIGMA_RING_HAS_QPN) post_flags |= SIGMA_POST_HAS_AH;
  uint8_t send_flags = 0;
  if (post.flags & SIGMA_RING_SIGNALED) send_flags |= IBV_SEND_SIGNALED;
  if (post.flags & SIGMA_RING_INLINE) send_flags |= IBV_SEND_INLINE;
  uint8_t flags = 0;
  if (post.flags & SIGMA_RING_TRUNCATED) flags |= kTruncated;
  if (post.flags & SIGMA_RING_MODULO) flags |= kModulo;
  return {
      .time_ns = post.post_ns,
      .call_ns = 0,
      .wr_id = 0,
      .local_addr = post.local_addr,
      .remote_addr = post.remote_addr,
      .bytes = post.bytes,
      .peer = peer_of(post),
      .pid = post.h.pid,
      .tid = 0,
      .lkey = post.lkey,
      .rkey = post.rkey,
      .imm = post.imm,
      .remote_qpn = post.remote_qpn,
      .time_error_ns = post.post_error_ns,
      .index = post.index,
      .blocks = post.blocks,
      .position = 0,
      .num_sge = post.num_sge,
      .post_flags = post_flags,
      .opcode = post.opcode,
      .send_flags = send_flags,
      .flags = flags,
      .tier = post.tier,
      .source = post.tier == SIGMA_TIER_NONE || post.tier == 1 ? Source::ring : Source::gpu,
      .initiator = initiator_of(post.initiator),
      .ring_flags = post.flags,
  };
}

// ---- rings --------------------------------------------------------------------------------------

void Correlator::on_ring(Qp& qp, const sigma_ring& ring) {
  const RingReader reader =
      ring.origin == SIGMA_RING_BY_LIBRARY ? RingReader::library : RingReader::observer;
  if (is_past(qp, reader, ring.life)) return;
  const bool begins = ring.event == SIGMA_RING_BEGIN;
  // One that has told nothing, or no more does, makes room for another; but the library that reads it, not
  // for the observer, to whom a device's memory may look like any other.
  const bool inside = qp.ring.reader == RingReader::library && reader == RingReader::observer &&
                      qp.info->observed && qp.info->observed->mode != SIGMA_RING_SETUP;
  const bool free = !qp.ring.active || (!qp.ring.told && !inside) || qp.ring.ended;
  if (begins && (qp.ring.reader == reader || free) &&
      (!qp.ring.active || qp.ring.reader != reader || qp.ring.life != ring.life)) {
    give_up_waiting(qp);
    qp.ring = {};
    qp.ring.active = true;
    qp.ring.reader = reader;
    qp.ring.life = ring.life;
    qp.ring.latest = qp.ring.read_until = ring.first;
    qp.ring.posted_before = qp.info->observed ? qp.info->observed->posted : 0;
    // Posts that probes told of before have 16 bits of their index.
    for (size_t i = 0; i < qp.send.size(); ++i)
      if (has_index(qp.send[i]))
        qp.send[i].index = qp.ring.extend(static_cast<uint16_t>(qp.send[i].index));
    ++counters_.rings_observed;
  }
  if (!is_of_life(qp, reader, ring.life)) return;
  if (!qp.info->observed) qp.info->observed.emplace();
  Observed& observed = *qp.info->observed;
  observed.origin = ring.origin;
  observed.mode = ring.mode;
  if (initiator_of(ring.initiator) == Initiator::gpu && observed.initiator == Initiator::unknown)
    tell_initiator(qp, ring);
  observed.initiator = initiator_of(ring.initiator);
  if (ring.tier != SIGMA_TIER_NONE) observed.tier = ring.tier;
  take_reason(observed, ring);
  if (begins) return;
  observed.posted = qp.ring.posted_before + ring.posted;
  observed.modulo |= (ring.flags & SIGMA_RING_MODULO) != 0;
  if (ring.event == SIGMA_RING_END) qp.ring.ended = true;
}

// What is said of the ring itself takes the place of nothing: a queue that hung as its job was killed
// has hung, and its end was not seen.
void Correlator::take_reason(Observed& observed, const sigma_ring& ring) {
  const std::string_view reason(ring.reason, strnlen(ring.reason, sizeof(ring.reason)));
  if (ring.event == SIGMA_RING_END && reason == SIGMA_RING_END_UNSEEN) {
    observed.end_unseen = true;
    ++counters_.ring_ends_unseen;
    return;
  }
  // Who does not read it any more does not know of it either.
  if (ring.mode != SIGMA_RING_SETUP) observed.hung = reason == SIGMA_RING_HUNG;
  if (reason != SIGMA_RING_HUNG && reason != SIGMA_RING_MOVES) observed.reason = reason;
}

// A queue in host memory may be read before the preloaded library has said that a GPU posts to it.
void Correlator::tell_initiator(Qp& qp, const sigma_ring& ring) {
  counters_.initiators_late += std::exchange(qp.ring.unsaid, 0);
  for (size_t i = 0; i < qp.send.size(); ++i) {
    Pending& pending = qp.send[i];
    if (pending.source == Source::probe || pending.initiator != Initiator::unknown) continue;
    pending.initiator = Initiator::gpu;
    pending.tier = ring.tier;
  }
}

// Of a life that ended with a reset; counted.
bool Correlator::is_past(const Qp& qp, RingReader reader, uint32_t life) {
  if (reader != RingReader::library || !qp.ring.before || life > *qp.ring.before) return false;
  ++counters_.ring_records_stale;
  return true;
}

// False: of a life that has ended, or by another reader than the life's; counted.
bool Correlator::is_of_life(Qp& qp, RingReader reader, uint32_t life) {
  if (is_past(qp, reader, life)) return false;
  if (!qp.ring.active) {  // the record of its begin was lost
    qp.ring.active = true;
    qp.ring.reader = reader;
    qp.ring.life = life;
  }
  if (qp.ring.reader != reader) {
    ++counters_.ring_records_refused;
    return false;
  }
  if (qp.ring.life == life) return true;
  ++counters_.ring_records_stale;
  return false;
}

// ---- posts --------------------------------------------------------------------------------------

void Correlator::on_ring_post(Qp& qp, const sigma_ring_post& post) {
  if (!is_of_life(qp, ring_reader(post.tier), post.life)) return;
  qp.ring.told = true;
  ++counters_.ring_posts;
  qp.has_operations = true;
  if (!qp.info->type && post.qp_type != 0xff) qp.info->type = post.qp_type;
  if (!qp.info->observed) qp.info->observed.emplace();
  Observed& observed = *qp.info->observed;
  observed.seen += post.blocks;
  observed.by_margin += (post.flags & SIGMA_RING_MARGIN) != 0;
  observed.by_posterior += (post.flags & SIGMA_RING_POSTERIOR) != 0;

  ObservedRing& ring = qp.ring;
  ring.latest = std::max<uint64_t>(ring.latest, post.index);
  ring.read_until = std::max<uint64_t>(ring.read_until, post.index + post.blocks);
  if (merge(qp, post)) {
    ++counters_.ring_posts_merged;
  } else {
    if (post.flags & SIGMA_RING_TRUNCATED) ++counters_.truncated;
    make_room(qp.send.size(), &qp, Queue::send, nullptr);
    // Behind all that stand before it: a probe tells of its post at once, the ring later.
    size_t at = qp.send.size();
    while (at > 0 && certain(qp.send[at - 1]) && qp.send[at - 1].index > post.index) --at;
    qp.send.insert(at, pending_of(post));
    ++pending_;
  }
  settle_waiting(qp);
}

// A probe has told of this request.
bool Correlator::merge(Qp& qp, const sigma_ring_post& post) {
  const auto confirm = [](Pending& probed) { probed.flags &= static_cast<uint8_t>(~kUnverified); };
  Pending* alike = nullptr;
  for (size_t i = qp.send.size(); i > 0; --i) {
    Pending& pending = qp.send[i - 1];
    if (certain(pending)) {
      if (pending.index == post.index) return confirm(pending), true;
      if (pending.index < post.index) break;
    } else if (pending.index <= post.index && same_content(pending, post)) {
      alike = &pending;
    }
  }
  if (qp.ring.probed.contains(post.index)) return true;
  if (alike != nullptr) {
    alike->index = post.index;
    alike->blocks = post.blocks;
    alike->post_flags |= SIGMA_POST_HAS_INDEX;
    alike->flags &= static_cast<uint8_t>(~kConcurrent);
    return confirm(*alike), true;
  }
  if (qp.ring.uncertain == 0) return false;
  --qp.ring.uncertain;
  return true;
}

// A send request has been reported: its ring may tell of it again.
void Correlator::note_reported(Qp& qp, const Pending& pending) {
  if (!qp.ring.active || pending.source != Source::probe) return;
  if (certain(pending))
    qp.ring.probed.add(pending.index, std::max<uint64_t>(pending.blocks, 1));
  else
    ++qp.ring.uncertain;
}

// The oldest request has been reported.
void Correlator::pop(Qp& qp, Queue side) {
  if (side == Queue::send) note_reported(qp, qp.send[0]);
  (side == Queue::send ? qp.send : qp.recv).pop_front();
  --pending_;
}

void Correlator::on_ring_gap(Qp& qp, const sigma_ring_gap& gap) {
  if (!is_of_life(qp, ring_reader(gap.tier), gap.life)) return;
  qp.ring.told = true;
  qp.ring.latest = std::max<uint64_t>(qp.ring.latest, gap.first + gap.count);
  qp.ring.read_until = std::max<uint64_t>(qp.ring.read_until, gap.first + gap.count);
  if (!qp.info->observed) qp.info->observed.emplace();
  qp.info->observed->missed += gap.count;
  ++qp.info->observed->gaps;
  qp.info->observed->modulo |= (gap.flags & SIGMA_RING_MODULO) != 0;
  ++counters_.ring_gaps;
  counters_.ring_blocks_missed += gap.count;
  settle_waiting(qp);
}

// ---- completions --------------------------------------------------------------------------------

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
  if (cqe.queue == SIGMA_QUEUE_SEND)
    complete_ring_send(qp, cqe);
  else
    complete_ring_recv(qp, cqe);
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
    if (has_index(pending) || pending.position > 0) {
      if (pending.index > index) break;
      if (certain(pending)) {
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
  if (!queue.empty() && has_index(queue[0]) && !(cqe.flags & SIGMA_RING_NO_COUNTER)) {
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
