// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Operations as a Perfetto trace (native protobuf), for ui.perfetto.dev and trace_processor.
//
//   SIGMA_ASSIGN(auto sink, PerfettoSink::create("trace.pftrace", {node, clock}));   // or "-"
//   ... on_operation, on_counter ...; sink->finish();
//
// A process has a track; under it each queue pair has one for its posts (instants), lanes of slices
// from post to completion (operations of one queue overlap, slices of one track must not), and a
// counter of the bytes in flight. A flow leads from a post to its slice. Counters of ports, and
// times that were not traced in full, have tracks of their own.
//
// Each track's events are written in order of time, slices balanced; memory is bounded by what is
// in flight at once. Times are CLOCK_MONOTONIC, tied to UTC by a clock snapshot. A file always
// holds whole packets. Single-threaded.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <unordered_map>
#include <vector>

#include "base/clock.h"
#include "base/fd.h"
#include "base/result.h"
#include "session/operation.h"

namespace sigma {

struct PerfettoOptions {
  std::string node;
  ClockPair clock;
};

class PerfettoSink final : public OperationSink {
 public:
  static Result<std::unique_ptr<PerfettoSink>> create(const std::string& path,
                                                      const PerfettoOptions& options);

  void on_operation(const Operation& operation) override;
  // A sample of a port's counter, in order of time.
  void on_counter(uint64_t time_ns, std::string_view device, uint32_t port,
                  std::string_view counter, uint64_t value);
  // After all operations, each in order of time: times that were not traced in full, records that
  // were dropped until `time_ns`, marks.
  void on_gap(uint64_t begin_ns, uint64_t end_ns, std::string_view kind, uint64_t records);
  void on_drops(uint64_t time_ns, uint64_t total);
  void on_mark(uint64_t time_ns, std::string_view reason, std::string_view text);

  void finish();

  uint64_t packets() const { return packets_; }
  const std::optional<Error>& error() const { return error_; }

  static constexpr size_t kLanes = 64;  // of a queue; what overlaps more shows as its post only

 private:
  // What happens to a queue's tracks, put in order before it is written.
  struct Change {
    uint64_t time_ns;
    bool ends;
    uint64_t bytes;
    uint64_t order;  // of changes at the same time
    bool operator>(const Change& other) const {
      return std::tie(time_ns, order) > std::tie(other.time_ns, other.order);
    }
  };
  struct Queue {
    uint64_t parent = 0, posts = 0, in_flight = 0;  // tracks; 0: not made
    std::string name;
    struct Lane {
      uint64_t track = 0, busy_until_ns = 0;
    };
    std::vector<Lane> lanes;
    std::vector<Change> changes;  // a heap: the earliest on top
    uint64_t bytes_in_flight = 0;
    uint64_t last_post_ns = 0, last_instant_ns = 0, last_change_ns = 0;
  };
  using QueueKey = std::tuple<std::string, uint32_t, uint32_t, uint32_t, bool>;

  PerfettoSink(Fd fd, std::string name, const PerfettoOptions& options);

  void begin();
  Queue& queue_of(const Operation& operation);
  uint64_t process_track(uint32_t pid, std::string_view comm);
  uint64_t make_track(uint64_t parent, std::string_view name, std::string_view extra = {});
  uint64_t make_counter(uint64_t parent, std::string_view name, uint64_t unit);
  void write_changes(Queue& queue, uint64_t until_ns);
  // A track event in event_; add_* put into it, write_event() takes it.
  void begin_event(uint64_t track, uint64_t type, std::string_view name);
  void annotate(std::string_view name, std::string_view text);
  void annotate(std::string_view name, uint64_t value, bool pointer = false);
  void describe(const Operation& operation, bool completed);
  void write_event(uint64_t time_ns);
  void write_count(uint64_t track, uint64_t time_ns, uint64_t value);
  uint64_t intern(uint32_t kind, std::string_view text);
  void write_packet(std::string_view packet);
  void flush();

  Fd fd_;
  std::string name_;
  PerfettoOptions options_;
  std::string buffer_, event_, interned_, scratch_;
  std::array<std::unordered_map<std::string, uint64_t>, 4> iids_;  // by the field of InternedData
  uint64_t next_track_ = 1, next_flow_ = 1, next_order_ = 0;
  uint64_t packets_ = 0, written_bytes_ = 0;
  std::map<QueueKey, Queue> queues_;
  std::unordered_map<const QueuePair*, std::array<Queue*, 2>> by_description_;
  std::vector<std::shared_ptr<const QueuePair>> kept_;
  std::unordered_map<uint32_t, uint64_t> processes_;
  std::map<std::string, uint64_t> counters_;
  uint64_t gaps_track_ = 0, gaps_end_ns_ = 0, drops_track_ = 0, marks_track_ = 0;
  bool finished_ = false;
  std::optional<Error> error_;
};

}  // namespace sigma
