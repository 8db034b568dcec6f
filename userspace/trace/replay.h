// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Replay: a trace's records through Session, as attach sent them: the same operations, the same
// objects, the same counters.
//
//   Replay replay(*reader, sink);
//   replay.run();
//   TraceInfo info = replay.info();    // as attach had it at its end
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "output/meta.h"
#include "session/session.h"
#include "trace/trace_reader.h"

namespace sigma {

// A time that was not traced in full.
struct TraceGap {
  enum class Kind : uint8_t {
    paused,       // by the governor
    dropped,      // records found no room in the ring buffer
    missing,      // records are not in the trace, which is cut off or damaged
    overwritten,  // by newer ones: flight recorder
    ring,         // entries of a queue's ring were not read, or not for certain
  } kind = Kind::paused;
  uint64_t begin_ns = 0, end_ns = 0;
  uint32_t pid = 0;      // 0: every process
  uint64_t records = 0;  // 0 where that cannot be known
  // Of a ring: `entries` from index `first` on, WQEBBs of a send ring, else CQEs.
  struct Ring {
    uint8_t kind = 0;    // enum sigma_ring_kind; 0: of no ring
    uint8_t reason = 0;  // enum sigma_gap_reason
    uint32_t number = 0;  // QP or CQ
    uint64_t first = 0, entries = 0;
    bool modulo = false;  // known modulo 65,536 only
  } ring;
};
std::string_view to_string(TraceGap::Kind kind);

class Replay final : public TraceVisitor {
 public:
  using OnCounter = std::function<void(const NoteCounter&)>;

  Replay(TraceReader& reader, OperationSink& sink);
  // Matched by a thread for each sink: see Session. `on_round`: as in SessionOptions.
  Replay(TraceReader& reader, std::span<OperationSink* const> sinks, std::function<void()> on_round);

  // Called with each sample of a port's counter, in order of time.
  void set_on_counter(OnCounter on_counter) { on_counter_ = std::move(on_counter); }

  void run(unsigned threads = 0);  // once; see TraceReader::replay

  // After run().
  TraceInfo info() const;
  const std::vector<TraceGap>& gaps() const { return gaps_; }  // by begin; at most kMaxGaps
  // What note_fact said of a process.
  using Facts = std::map<std::string, std::string>;
  const std::map<uint32_t, Facts>& facts() const { return facts_; }
  const std::vector<NoteMark>& marks() const { return marks_; }  // the first kMaxMarks
  Session& session() { return session_; }

  void on_record(std::span<const std::byte> record) override;
  void on_note(std::span<const std::byte> note) override;
  void on_hole(uint64_t begin_ns, uint64_t end_ns, uint64_t records) override;

  static constexpr size_t kMaxGaps = 1 << 20;
  static constexpr size_t kMaxMarks = 1 << 12;
  static constexpr size_t kMaxNames = 1 << 20;

 private:
  SessionOptions options(std::function<void()> on_round);
  void add_gap(const TraceGap& gap);
  void on_window(const sigma_window& window);
  void on_ring_gap(const sigma_ring_gap& gap);

  TraceReader& reader_;
  std::unordered_map<uint32_t, std::string> devices_, comms_;
  std::map<uint32_t, Facts> facts_;
  std::vector<NoteMark> marks_;
  std::vector<TraceGap> gaps_;
  std::map<uint32_t, uint64_t> paused_;  // pid to the pause's begin
  OnCounter on_counter_;
  Session session_;
};

}  // namespace sigma
