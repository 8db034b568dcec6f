// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
#include "cli/trace_notes.h"

#include <fmt/format.h>

#include <utility>

#include "base/human.h"
#include "output/names.h"

namespace sigma {
namespace {

std::string name_of(const QueuePair& qp) {
  std::string name = fmt::format(
      "{} qp {}", qp.device.empty() ? "unknown device" : printable(qp.device), qp.qp_num);
  if (const auto peer = address_text(qp.peer); !peer.empty()) name += " -> " + peer;
  return name;
}

}  // namespace

TraceNotes::TraceNotes(TraceWriter& writer, TraceNotesOptions options)
    : writer_(writer), options_(std::move(options)) {}

void TraceNotes::on_operation(const Operation& operation) {
  const uint32_t status = operation.status.value_or(kStatusSuccess);
  if (status == kStatusSuccess || status == kStatusFlushed || !operation.qp) return;
  if (marks_ >= kMaxMarks || !failed_.insert(operation.qp.get()).second) return;
  kept_.push_back(operation.qp);
  mark(kMarkError, fmt::format("{} on {}", status_text(status), name_of(*operation.qp)));
}

void TraceNotes::look(const Session& session, uint64_t now_ns) {
  write_counters();
  if (options_.hang_ns == 0 || now_ns < options_.hang_ns) return;
  std::map<const QueuePair*, uint64_t> hanging;
  for (const StalledQueue& stalled : session.stalled_queues(now_ns - options_.hang_ns)) {
    hanging[stalled.qp.get()] = stalled.post_ns;
    const auto known = hanging_.find(stalled.qp.get());
    if (known != hanging_.end() && known->second == stalled.post_ns) continue;
    mark(kMarkHang,
         fmt::format("{}: {} posted, none complete for {}", name_of(*stalled.qp),
                     human_count(stalled.pending), human_duration(now_ns - stalled.since_ns)));
  }
  hanging_ = std::move(hanging);
}

void TraceNotes::mark_by_user() {
  mark(kMarkUser, "SIGUSR1");
}

void TraceNotes::mark(MarkReason reason, const std::string& text) {
  if (marks_ == kMaxMarks) return;
  ++marks_;
  writer_.note_mark(reason, text);
  if (options_.say) options_.say("marked: " + text);
}

void TraceNotes::write_counters() {
  if (!counters_) return;
  for (const CounterSample& sample : counters_->take())
    writer_.note_counter(sample.time_ns, sample.device, sample.port, sample.counter, sample.value);
}

void TraceNotes::finish() {
  if (counters_) counters_->stop();
  write_counters();
}

}  // namespace sigma
