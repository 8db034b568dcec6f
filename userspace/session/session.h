// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Session: from records to operations. The one door for live records and replayed ones.
//
//   Session session(sink, {});
//   session.on_record(bytes);   // in order of time; see attach/reorder.h
//   session.finish(now_ns);     // closes what is pending as unfinished
//
// Owns all queue, memory-region and process state; memory is bounded (Limits). With one sink it is
// single-threaded. With several, each has a thread of its own that matches the posts and completions of
// some of the queue pairs; everything else is done by the caller's thread, while those wait. Each sink
// then gets the operations that the only one would get of these queue pairs, in the same order, and
// Operation::record puts those of all into one. (But for limits: each takes its share of them.)
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/counters.h"
#include "base/histogram.h"
#include "session/operation.h"

namespace sigma {

struct MemoryRegion {
  std::string device;
  uint32_t pid = 0;
  uint64_t addr = 0, length = 0;
  std::optional<uint32_t> handle, lkey, rkey;
  std::optional<uint64_t> created_ns, destroyed_ns;
  std::optional<uint64_t> register_ns;  // how long the command took; then it counts as registered
};

// Of all registrations that were seen, also of regions that are no longer remembered
// (SessionLimits); regions made before the attach are no part of it.
struct RegistrationTotals {
  uint64_t registrations = 0, failed = 0, deregistrations = 0;
  uint64_t bytes = 0;                         // summed over the registrations
  uint64_t bytes_now = 0, bytes_at_once = 0;  // registered now, and at most
  uint64_t total_ns = 0;                      // spent in the commands
  Histogram register_ns;                      // of each

  void registered(uint64_t length, uint64_t took_ns) {
    ++registrations;
    bytes += length;
    bytes_now += length;
    if (bytes_now > bytes_at_once) bytes_at_once = bytes_now;
    total_ns += took_ns;
    register_ns.add(took_ns);
  }
  void deregistered(uint64_t length) {
    ++deregistrations;
    bytes_now -= length;
  }
  void resized(uint64_t from, uint64_t to) { bytes_now = bytes_now - from + to; }
  // Of another machine: at once means on each.
  void add(const RegistrationTotals& other) {
    registrations += other.registrations;
    failed += other.failed;
    deregistrations += other.deregistrations;
    bytes += other.bytes;
    bytes_now += other.bytes_now;
    bytes_at_once += other.bytes_at_once;
    total_ns += other.total_ns;
    register_ns.add(other.register_ns);
  }
};

struct CompletionQueue {
  std::string device;
  uint32_t pid = 0;
  std::optional<uint32_t> handle, cqn, entries;
  std::optional<uint64_t> created_ns, destroyed_ns;
};

struct Process {
  uint32_t pid = 0;
  std::string comm;
  std::optional<uint64_t> exit_ns;
  std::optional<int> exit_code;
};

struct SessionLimits {
  size_t pending_per_queue = 1 << 16;
  size_t pending = 1 << 22;
  size_t closed_objects = 1 << 16;  // QPs, MRs... kept for the side file after their end
};

struct SessionOptions {
  SessionLimits limits;
  // Names the RDMA device behind a uverbs node (major << 20 | minor); "" when unknown.
  // Live: through sysfs. Replay: from the trace.
  std::function<std::string(uint32_t rdev)> device_of_node;
  // A process's command name when its records did not say it (already running at the attach).
  std::function<std::string(uint32_t pid)> comm_of;
  // With several sinks. Now and then, and at the end: every sink has been called with end_round once more
  // since the last time, and has by then got all the operations of records up to the same one. By the
  // caller's thread; the sinks may be getting operations of later rounds meanwhile.
  std::function<void()> on_round;
};

// A send queue that should have moved: a signalled request is posted, and nothing has completed
// since `since_ns` (the post, or the last completion after it).
struct StalledQueue {
  std::shared_ptr<const QueuePair> qp;
  uint64_t post_ns = 0;  // of the oldest signalled request
  uint64_t since_ns = 0;
  size_t pending = 0;
};

class Session {
 public:
  Session(OperationSink& sink, SessionOptions options);
  // `sinks` must not be empty.
  Session(std::span<OperationSink* const> sinks, SessionOptions options);
  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  // One record (bpf/records.h), whole. Malformed ones are counted, never trusted.
  void on_record(std::span<const std::byte> record);

  // With several sinks: all that the records so far finish has been given to them. What the callbacks of
  // SessionOptions read may then be changed.
  void wait();

  // Closes everything pending as unfinished. Idempotent.
  void finish(uint64_t now_ns);

  // Counters that the session keeps; the attacher's are added by the caller. With several sinks whole
  // after finish().
  Counters& counters();

  // Those that have not moved since before `before_ns`. Looks at every queue pair.
  std::vector<StalledQueue> stalled_queues(uint64_t before_ns) const;

  std::vector<std::shared_ptr<const QueuePair>> queue_pairs() const;
  std::vector<MemoryRegion> memory_regions() const;
  const RegistrationTotals& registrations() const;
  std::vector<CompletionQueue> completion_queues() const;
  std::vector<Process> processes() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace sigma
