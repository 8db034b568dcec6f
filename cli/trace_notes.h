// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// TraceNotes: what a trace directory gets beside records: facts of the processes, counters of the
// ports, and marks, "look here", at errors, hangs and the user's wish.
//
// A sink among the session's: give it each operation. An error marks the trace once for a life of a
// queue pair (not its flushes); a queue that holds a signalled request and has not moved for
// `hang_ns` once until it moves again. At most kMaxMarks.
//
// Owned and called by the thread that traces.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

#include "attach/port_counters.h"
#include "session/operation.h"
#include "session/session.h"
#include "trace/trace_writer.h"

namespace sigma {

struct TraceNotesOptions {
  uint64_t hang_ns = 10'000'000'000;  // 0: hangs are not looked for
  std::function<void(std::string_view line)> say;
};

class TraceNotes final : public OperationSink {
 public:
  TraceNotes(TraceWriter& writer, TraceNotesOptions options);

  // Begins to read ports' counters, by a thread that needs no privilege: call it without.
  void start() { counters_.emplace(kCountersEvery); }
  void on_operation(const Operation& operation) override;

  // Now and then; a second apart is enough.
  void look(const Session& session, uint64_t now_ns);
  void mark_by_user();
  // Takes the ports' last samples.
  void finish();

 private:
  void mark(MarkReason reason, const std::string& text);
  void write_counters();

  static constexpr size_t kMaxMarks = 1 << 12;
  static constexpr std::chrono::seconds kCountersEvery{1};

  TraceWriter& writer_;
  TraceNotesOptions options_;
  std::optional<PortCounters> counters_;
  size_t marks_ = 0;
  std::unordered_set<const QueuePair*> failed_;
  std::vector<std::shared_ptr<const QueuePair>> kept_;  // so that an address stays its own
  std::map<const QueuePair*, uint64_t> hanging_;        // to the post that hangs
};

}  // namespace sigma
