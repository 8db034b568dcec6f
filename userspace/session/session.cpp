// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// The one door. A record is checked for its shape here. What changes objects (control.cpp, objects.cpp)
// is done at once. What is of one queue goes to its correlator (correlate.cpp), once its queue is found:
// at once, or by the thread that has the queue (delivery.cpp).
#include "session/session.h"

#include <algorithm>
#include <cstring>

#include "session/session_impl.h"

namespace sigma {
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
      return deliver(as<sigma_ring_post>(record), [&](auto& r) { on_ring_post(r); });
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
