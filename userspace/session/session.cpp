// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// The one door. A record is checked for its shape here, and handed to the part that knows what it
// means: control.cpp (uverbs commands), objects.cpp (contexts, processes, what was seen),
// correlate.cpp (posts and completions).
#include "session/session.h"

#include <cstring>

#include "bpf/records.h"
#include "session/control.h"
#include "session/correlate.h"
#include "session/objects.h"

namespace sigma {

struct Session::Impl {
  Impl(OperationSink& sink, SessionOptions session_options)
      : options(std::move(session_options)),
        objects(options, counters),
        control(objects, counters),
        correlator(sink, objects, counters, options.limits) {
    // Whatever ends a queue, its outstanding requests are reported first.
    objects.set_on_end({
        .qp = [this](Qp& qp, uint64_t) { correlator.end_life(qp); },
        .srq = [this](Srq& srq, uint64_t) { correlator.close(srq); },
    });
  }

  void dispatch(std::span<const std::byte> record);
  void on_process(const sigma_process& record);

  SessionOptions options;
  Counters counters;
  Objects objects;
  Control control;
  Correlator correlator;
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

void Session::Impl::dispatch(std::span<const std::byte> record) {
  const auto* header = as<sigma_header>(record);
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
  switch (header->type) {
    case SIGMA_POST:
      return deliver(as<sigma_post>(record), [&](auto& r) { correlator.on_post(r); });
    case SIGMA_POST_RESULT:
      return deliver(as<sigma_post_result>(record), [&](auto& r) { correlator.on_post_result(r); });
    case SIGMA_COMPLETION:
      return deliver(as<sigma_completion>(record), [&](auto& r) { correlator.on_completion(r); });
    case SIGMA_UVERBS:
      return control.on_uverbs(record);
    case SIGMA_QP_SEEN:
      return deliver(as<sigma_qp_seen>(record), [&](auto& r) { objects.on_qp_seen(r); });
    case SIGMA_CONTEXT:
      return deliver(as<sigma_context>(record), [&](auto& r) { objects.on_context(r); });
    case SIGMA_PROCESS:
      return deliver(as<sigma_process>(record), [&](auto& r) { on_process(r); });
    case SIGMA_MR_SEEN:
      return deliver(as<sigma_mr_seen>(record), [&](auto& r) { objects.on_mr_seen(r); });
    case SIGMA_QP_PEER:
      return deliver(as<sigma_qp_peer>(record), [&](auto& r) { objects.on_qp_peer(r); });
    case SIGMA_WINDOW:
      return deliver(as<sigma_window>(record), [&](auto& r) { correlator.on_window(r); });
    case SIGMA_CLOCK_SAMPLE:
      return deliver(as<sigma_clock_sample>(record), [&](auto& r) { objects.on_clock_sample(r); });
    case SIGMA_RING:
      return deliver(as<sigma_ring>(record), [&](auto& r) { correlator.on_ring(r); });
    case SIGMA_RING_POST:
      return deliver(as<sigma_ring_post>(record), [&](auto& r) { correlator.on_ring_post(r); });
    case SIGMA_RING_COMPLETION:
      return deliver(as<sigma_ring_completion>(record),
                     [&](auto& r) { correlator.on_ring_completion(r); });
    case SIGMA_RING_GAP:
      return deliver(as<sigma_ring_gap>(record), [&](auto& r) { correlator.on_ring_gap(r); });
    default:
      ++counters.records_malformed;
  }
}

void Session::Impl::on_process(const sigma_process& record) {
  if (record.kind == SIGMA_PROCESS_EXEC || record.kind == SIGMA_PROCESS_EXIT || record.kind == SIGMA_PROCESS_LEFT)
    correlator.drop_batches(record.h.pid);
  objects.on_process(record);
}

Session::Session(OperationSink& sink, SessionOptions options)
    : impl_(std::make_unique<Impl>(sink, std::move(options))) {}

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

void Session::finish(uint64_t) {
  if (impl_->finished) return;
  impl_->finished = true;
  impl_->correlator.drop_all_batches();
  impl_->objects.for_each_qp([&](Qp& qp) { impl_->correlator.end_life(qp); });
  impl_->objects.for_each_srq([&](Srq& srq) { impl_->correlator.close(srq); });
}

Counters& Session::counters() {
  return impl_->counters;
}

std::vector<StalledQueue> Session::stalled_queues(uint64_t before_ns) const {
  std::vector<StalledQueue> stalled;
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
