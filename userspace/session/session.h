// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Session: from records to operations. The one door for live records and replayed ones.
//
//   Session session(sink, {});
//   session.on_record(bytes);   // in order of time; see attach/reorder.h
//   session.finish(now_ns);     // closes what is pending as unfinished
//
// Single-threaded. Owns all queue, memory-region and process state; memory is bounded (Limits).
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/counters.h"
#include "session/operation.h"

namespace sigma {

struct MemoryRegion {
  std::string device;
  uint32_t pid = 0;
  uint64_t addr = 0, length = 0;
  std::optional<uint32_t> handle, lkey, rkey;
  std::optional<uint64_t> created_ns, destroyed_ns;
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
};

class Session {
 public:
  Session(OperationSink& sink, SessionOptions options);
  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  // One record (bpf/records.h), whole. Malformed ones are counted, never trusted.
  void on_record(std::span<const std::byte> record);

  // Closes everything pending as unfinished. Idempotent.
  void finish(uint64_t now_ns);

  // Counters that the session keeps; the attacher's are added by the caller.
  Counters& counters();

  std::vector<std::shared_ptr<const QueuePair>> queue_pairs() const;
  std::vector<MemoryRegion> memory_regions() const;
  std::vector<CompletionQueue> completion_queues() const;
  std::vector<Process> processes() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace sigma
