// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// The one door. A record is checked for its shape here. What changes objects (control.cpp, objects.cpp)
// is done at once. What is of one queue goes to its correlator (correlate.cpp), once its queue is found:
// at once, or by the thread that has the queue (shards.h).
#include "session/session.h"

#include <algorithm>
#include <cstring>

#include "bpf/records.h"
#include "session/control.h"
#include "session/correlate.h"
#include "session/objects.h"
#include "session/queue_routes.h"
#include "session/shards.h"

namespace sigma {

struct Session::Impl {
  Impl(std::span<OperationSink* const> sinks, SessionOptions session_options);

  void dispatch(std::span<const std::byte> record);
  void on_post(const sigma_post& post);
  void on_post_result(const sigma_post_result& result);
  void on_completion(const sigma_completion& wc);
  void complete_by_cq(const sigma_completion& wc);
  void on_ring(const sigma_ring& ring);
  void begin_next(Qp& qp, const sigma_ring& ring);
  void on_ring_completion(const sigma_ring_completion& cqe);
  void on_ring_gap(const sigma_ring_gap& gap);
  void miss_completions(uint32_t pid);
  void on_process(const sigma_process& record);
  void on_window(const sigma_window& window);

  // Nothing is under way in other threads from here on, until the next hand_over().
  void sync() {
    if (shards) shards->sync();
  }
  template <typename T>
  void hand_over(uint32_t shard, Qp* qp, Srq* srq, const T& record);
  void work(uint32_t shard, std::span<const Shards::Item> items);
  static void match(Correlator& correlator, const Shards::Item& item);

  bool ignored(uint32_t pid) {
    return paused_all || (any_paused && objects.process(pid).paused);
  }
  Correlator& correlator_of(const Qp& qp) { return *correlators[qp.shard.value_or(0)]; }
  Correlator& correlator_of_process(uint32_t pid) { return *correlators[routes.shard_of_process(pid)]; }
  Qp* known(uint32_t pid, uint64_t context, uint32_t qp_num);
  Qp& place(Qp& qp);  // nothing is under way
  Qp& qp_of_post(const sigma_header& h, uint64_t context, uint32_t qp_num, uint64_t queue_ptr);
  template <typename T>
  Qp& qp_of_ring(const T& record);
  template <typename T>
  void deliver_ring(const T& record);

  SessionOptions options;
  SessionLimits shard_limits;
  Counters counters;
  std::vector<std::unique_ptr<Counters>> shard_counters;
  Objects objects;
  Control control;
  QueueRoutes routes;
  std::vector<std::unique_ptr<Correlator>> correlators;
  std::unique_ptr<Shards> shards;  // null: one correlator, at once
  uint64_t record_number = 0;
  bool paused_all = false;
  bool any_paused = false;  // a process has been paused
  std::vector<uint64_t> aligned;  // a copy of a record that was not
  bool finished = false;
};

namespace {

// The record as its struct, if it is long enough to be one.
template <typename T>
const T* as(std::span<const std::byte> record) {
  return record.size() >= sizeof(T) ? reinterpret_cast<const T*>(record.data()) : nullptr;
}

}  // namespace

Session::Impl::Impl(std::span<OperationSink* const> sinks, SessionOptions session_options)
    : options(std::move(session_options)),
      shard_limits(options.limits),
      objects(options, counters),
      control(objects, counters),
      routes(objects, static_cast<uint32_t>(sinks.size())) {
  const bool several = sinks.size() > 1;
  shard_limits.pending = std::max<size_t>(1, options.limits.pending / sinks.size());
  for (uint32_t i = 0; i < sinks.size(); ++i) {
    Counters* own = &counters;
    if (several) own = shard_counters.emplace_back(std::make_unique<Counters>()).get();
    correlators.push_back(std::make_unique<Correlator>(*sinks[i], objects, *own, shard_limits, i));
  }
  // Whatever ends a queue, its outstanding requests are reported first.
  objects.set_on_end({
      .qp =
          [this](Qp& qp, uint64_t) {
            correlator_of(qp).end_life(qp);
            // Its unpolled receives give their slots back in an order of their own (shared_queue.h).
            if (Srq* srq = qp.info->has_srq ? objects.srq_of(qp) : nullptr) srq->queue.forget_slots();
          },
      .srq = [this](Srq& srq, uint64_t) { correlators[srq.shard.value_or(0)]->close(srq); },
  });
  if (several)
    shards = std::make_unique<Shards>(
        static_cast<uint32_t>(sinks.size()),
        [this](uint32_t shard, std::span<const Shards::Item> items) { work(shard, items); },
        [this] {
          if (options.on_round) options.on_round();
        });
}

void Session::Impl::dispatch(std::span<const std::byte> record) {
  const auto* header = as<sigma_header>(record);
  ++record_number;
  if (header == nullptr || header->size > record.size() || header->size < sizeof(*header)) {
    ++counters.records_malformed;
    return;
  }
  record = record.first(header->size);

  const auto deliver = [&]<typename T>(const T* body, auto&& handler) {
    if (body == nullptr)
      ++counters.records_malformed;
    else
      handler(*body);
  };
  // What changes objects finds nobody who looks at them.
  const auto change = [&]<typename T>(const T* body, auto&& handler) {
    sync();
    for (const auto& correlator : correlators) correlator->set_record(record_number);
    deliver(body, handler);
  };
  switch (header->type) {
    case SIGMA_POST:
      return deliver(as<sigma_post>(record), [&](auto& r) { on_post(r); });
    case SIGMA_POST_RESULT:
      return deliver(as<sigma_post_result>(record), [&](auto& r) { on_post_result(r); });
    case SIGMA_COMPLETION:
      return deliver(as<sigma_completion>(record), [&](auto& r) { on_completion(r); });
    case SIGMA_RING_POST:
      return deliver(as<sigma_ring_post>(record), [&](auto& r) { deliver_ring(r); });
    case SIGMA_RING_COMPLETION:
      return deliver(as<sigma_ring_completion>(record), [&](auto& r) { on_ring_completion(r); });
    case SIGMA_RING_GAP:
      return deliver(as<sigma_ring_gap>(record), [&](auto& r) { on_ring_gap(r); });
    case SIGMA_RING:
      return deliver(as<sigma_ring>(record), [&](auto& r) { on_ring(r); });
    case SIGMA_UVERBS:
      return change(header, [&](auto&) { control.on_uverbs(record); });
    case SIGMA_QP_SEEN:
      return change(as<sigma_qp_seen>(record), [&](auto& r) { objects.on_qp_seen(r); });
    case SIGMA_CONTEXT:
      return change(as<sigma_context>(record), [&](auto& r) { objects.on_context(r); });
    case SIGMA_PROCESS:
      return change(as<sigma_process>(record), [&](auto& r) { on_process(r); });
    case SIGMA_MR_SEEN:
      return change(as<sigma_mr_seen>(record), [&](auto& r) { objects.on_mr_seen(r); });
    case SIGMA_QP_PEER:
      return change(as<sigma_qp_peer>(record), [&](auto& r) { objects.on_qp_peer(r); });
    case SIGMA_WINDOW:
      return change(as<sigma_window>(record), [&](auto& r) { on_window(r); });
    case SIGMA_CLOCK_SAMPLE:
      return change(as<sigma_clock_sample>(record), [&](auto& r) { objects.on_clock_sample(r); });
    default:
      ++counters.records_malformed;
  }
}

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
void Session::Impl::hand_over(uint32_t shard, Qp* qp, Srq* srq, const T& record) {
  Shards::Item item{qp, srq, record_number, &record.h};
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
void Session::Impl::deliver_ring(const T& record) {
  Qp& qp = qp_of_ring(record);
  hand_over(qp.shard.value_or(0), &qp, nullptr, record);
}

void Session::Impl::on_ring(const sigma_ring& ring) {
  if (ring.kind == SIGMA_RING_CQ) {
    sync();
    objects.set_observed(ring);
    if (ring.event == SIGMA_RING_END) counters.ring_completions_missed += ring.missed;
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
  deliver_ring(gap);
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
  deliver_ring(cqe);
}

// ---- processes and pauses -----------------------------------------------------------------------

void Session::Impl::on_process(const sigma_process& record) {
  if (record.kind == SIGMA_PROCESS_EXEC || record.kind == SIGMA_PROCESS_EXIT || record.kind == SIGMA_PROCESS_LEFT)
    for (const auto& correlator : correlators) correlator->drop_batches(record.h.pid);
  objects.on_process(record);
}

void Session::Impl::on_window(const sigma_window& window) {
  const uint32_t pid = window.h.pid;
  const bool pause = window.kind == SIGMA_WINDOW_PAUSE;
  if (!pause && window.kind != SIGMA_WINDOW_RESUME) {
    ++counters.records_malformed;
    return;
  }
  if (pid == 0) {
    paused_all = pause;
  } else {
    objects.process(pid).paused = pause;
    any_paused = true;
  }
  objects.for_each_qp([&](Qp& qp) {
    if (pid == 0 || qp.info->pid == pid) correlator_of(qp).interrupt(qp);
  });
  objects.for_each_srq([&](Srq& srq) {
    if (pid == 0 || srq.pid == pid) correlators[srq.shard.value_or(0)]->interrupt(srq);
  });
  for (const auto& correlator : correlators) correlator->drop_batches(pid);
}

Session::Session(OperationSink& sink, SessionOptions options) {
  OperationSink* const only = &sink;
  impl_ = std::make_unique<Impl>(std::span(&only, 1), std::move(options));
}

Session::Session(std::span<OperationSink* const> sinks, SessionOptions options)
    : impl_(std::make_unique<Impl>(sinks, std::move(options))) {}

Session::~Session() = default;

void Session::on_record(std::span<const std::byte> record) {
  if (impl_->finished) return;
  if (reinterpret_cast<uintptr_t>(record.data()) % alignof(uint64_t) != 0) {
    impl_->aligned.resize((record.size() + sizeof(uint64_t) - 1) / sizeof(uint64_t));
    std::memcpy(impl_->aligned.data(), record.data(), record.size());
    record = std::as_bytes(std::span(impl_->aligned)).first(record.size());
  }
  impl_->dispatch(record);
}

void Session::wait() {
  impl_->sync();
}

void Session::finish(uint64_t) {
  Impl& impl = *impl_;
  if (impl.finished) return;
  impl.finished = true;
  impl.sync();
  for (const auto& correlator : impl.correlators) {
    correlator->set_record(impl.record_number + 1);
    correlator->drop_batches(0);
  }
  impl.objects.for_each_qp([&](Qp& qp) { impl.correlator_of(qp).end_life(qp); });
  impl.objects.for_each_srq([&](Srq& srq) { impl.correlators[srq.shard.value_or(0)]->close(srq); });
  if (!impl.shards) return;
  for (const auto& correlator : impl.correlators) correlator->sink().end_round();
  if (impl.options.on_round) impl.options.on_round();
  for (const auto& own : impl.shard_counters)
    for (const CounterInfo& counter : kCounters) impl.counters.*counter.value += (*own).*counter.value;
}

Counters& Session::counters() {
  return impl_->counters;
}

std::vector<StalledQueue> Session::stalled_queues(uint64_t before_ns) const {
  std::vector<StalledQueue> stalled;
  impl_->sync();
  impl_->objects.for_each_qp([&](const Qp& qp) {
    if (qp.send_moved_ns >= before_ns) return;
    for (size_t i = 0; i < qp.send.size(); ++i) {
      if (!qp.send.signalled(qp.send[i]).value_or(false)) continue;
      const uint64_t post_ns = qp.send[i].time_ns;
      if (post_ns < before_ns)
        stalled.push_back({qp.info, post_ns, std::max(post_ns, qp.send_moved_ns), qp.send.size()});
      return;
    }
  });
  return stalled;
}

std::vector<std::shared_ptr<const QueuePair>> Session::queue_pairs() const {
  return impl_->objects.queue_pairs();
}
std::vector<MemoryRegion> Session::memory_regions() const {
  return impl_->objects.memory_regions();
}
const RegistrationTotals& Session::registrations() const {
  return impl_->objects.registrations();
}
std::vector<CompletionQueue> Session::completion_queues() const {
  return impl_->objects.completion_queues();
}
std::vector<Process> Session::processes() const {
  return impl_->objects.processes();
}

}  // namespace sigma
