// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
#include "trace/replay.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "base/text_field.h"
#include "output/coverage.h"

namespace sigma {
namespace {

std::string find_or_empty(const std::unordered_map<uint32_t, std::string>& names, uint32_t key) {
  const auto found = names.find(key);
  return found == names.end() ? std::string() : found->second;
}

// The reader checked type and size against the schema.
template <typename Note>
Note as(std::span<const std::byte> bytes) {
  Note note;
  std::memcpy(&note, bytes.data(), sizeof note);
  return note;
}

}  // namespace

std::string_view to_string(TraceGap::Kind kind) {
  switch (kind) {
    case TraceGap::Kind::paused:
      return "paused";
    case TraceGap::Kind::dropped:
      return "dropped";
    case TraceGap::Kind::missing:
      return "missing";
    case TraceGap::Kind::overwritten:
      return "overwritten";
    case TraceGap::Kind::ring:
      return "ring";
  }
  return "";
}

Replay::Replay(TraceReader& reader, OperationSink& sink)
    : reader_(reader), session_(sink, options(nullptr)) {}

Replay::Replay(TraceReader& reader, std::span<OperationSink* const> sinks, std::function<void()> on_round)
    : reader_(reader), session_(sinks, options(std::move(on_round))) {}

SessionOptions Replay::options(std::function<void()> on_round) {
  return {.limits = {},
          .device_of_node = [this](uint32_t rdev) { return find_or_empty(devices_, rdev); },
          .comm_of = [this](uint32_t pid) { return find_or_empty(comms_, pid); },
          .on_round = std::move(on_round)};
}

void Replay::run(unsigned threads) {
  reader_.replay(*this, threads);
  session_.finish(reader_.last_ns());
  for (const auto& [pid, begin_ns] : paused_)
    add_gap({TraceGap::Kind::paused, begin_ns, reader_.last_ns(), pid, 0, {}});
  for (const Discard& discard : reader_.discards())
    add_gap({TraceGap::Kind::dropped, discard.begin_ns, discard.end_ns, 0, discard.records, {}});
  std::stable_sort(gaps_.begin(), gaps_.end(),
                   [](const TraceGap& a, const TraceGap& b) { return a.begin_ns < b.begin_ns; });
}

void Replay::on_record(std::span<const std::byte> record) {
  const uint16_t type = as<sigma_header>(record).type;
  if (type == SIGMA_WINDOW) on_window(as<sigma_window>(record));
  if (type == SIGMA_RING_GAP) on_ring_gap(as<sigma_ring_gap>(record));
  session_.on_record(record);
}

void Replay::on_window(const sigma_window& window) {
  if (window.kind == SIGMA_WINDOW_PAUSE && paused_.size() < kMaxNames) {
    paused_.emplace(window.h.pid, window.h.time_ns);
  } else if (window.kind == SIGMA_WINDOW_RESUME) {
    const auto begun = paused_.find(window.h.pid);
    if (begun == paused_.end()) return;
    add_gap({TraceGap::Kind::paused, begun->second, window.h.time_ns, window.h.pid, 0, {}});
    paused_.erase(begun);
  }
}

void Replay::on_ring_gap(const sigma_ring_gap& gap) {
  add_gap({.kind = TraceGap::Kind::ring,
           .begin_ns = std::min(gap.begin_ns, gap.end_ns),
           .end_ns = gap.end_ns,
           .pid = gap.h.pid,
           .records = 0,
           .ring = {.kind = gap.kind,
                    .reason = gap.reason,
                    .number = gap.number,
                    .first = gap.first,
                    .entries = gap.count,
                    .modulo = (gap.flags & SIGMA_RING_MODULO) != 0}});
}

// Session must not trust the order across a hole.
void Replay::on_hole(uint64_t begin_ns, uint64_t end_ns, uint64_t records) {
  add_gap({reader_.meta().max_size_bytes ? TraceGap::Kind::overwritten : TraceGap::Kind::missing,
           begin_ns, end_ns, 0, records, {}});
  tell_hole(begin_ns, end_ns, [&](std::span<const std::byte> record) { session_.on_record(record); });
}

void Replay::on_note(std::span<const std::byte> bytes) {
  switch (as<sigma_header>(bytes).type) {
    case kNoteDevice: {
      const auto note = as<NoteDevice>(bytes);
      if (devices_.size() < kMaxNames) devices_[note.rdev] = std::string(text_of(note.device));
      return;
    }
    case kNoteComm: {
      const auto note = as<NoteComm>(bytes);
      session_.wait();  // who asked before has asked
      if (comms_.size() < kMaxNames) comms_[note.of_pid] = std::string(text_of(note.comm));
      return;
    }
    case kNoteFact: {
      const auto note = as<NoteFact>(bytes);
      if (facts_.size() < kMaxNames)
        facts_[note.of_pid][std::string(text_of(note.key))] = std::string(text_of(note.value));
      return;
    }
    case kNoteMark:
      if (marks_.size() < kMaxMarks) marks_.push_back(as<NoteMark>(bytes));
      return;
    case kNoteCounter:
      if (on_counter_) on_counter_(as<NoteCounter>(bytes));
      return;
    default:
      return;
  }
}

void Replay::add_gap(const TraceGap& gap) {
  if (gaps_.size() < kMaxGaps) gaps_.push_back(gap);
}

TraceInfo Replay::info() const {
  auto& session = const_cast<Session&>(session_);  // its counters are only read
  TraceInfo info = reader_.meta().info;
  info.processes = session.processes();
  info.facts = facts_;
  info.queue_pairs = session.queue_pairs();
  info.completion_queues = session.completion_queues();
  info.memory_regions = session.memory_regions();
  info.counters = session.counters();
  const TraceMeta& meta = reader_.meta();
  for (const CounterInfo& counter : kCounters)
    info.counters.*counter.value += meta.attacher.*counter.value;
  const TraceDamage& damage = reader_.damage();
  // A tracer that was killed told of losses in its packets only.
  info.counters.records_dropped = std::max(info.counters.records_dropped, damage.discarded);
  info.counters.trace_missing += damage.missing;
  info.counters.trace_overwritten += damage.overwritten;
  for (const std::string& description : damage.descriptions)
    info.remarks.push_back("the trace is damaged: " + description);
  if (!meta.info.complete) {
    for (std::string& line : ring_statements(info.queue_pairs)) info.remarks.push_back(std::move(line));
    info.remarks.emplace_back(
        "the tracer did not end in order: what it knew beyond the records is not in the trace");
  }
  return info;
}

}  // namespace sigma
