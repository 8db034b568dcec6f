// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// The side file: x.csv.meta.json beside x.csv. What a reader of the rows must know to trust them:
// machine, clocks, processes, queues with all attributes, and the coverage statement.
//
//   SIGMA_ASSIGN(MetaFile meta, MetaFile::create("ops.csv", info));   // says "complete": false
//   ... info.end_clock = sample_clocks(); info.complete = true; ...
//   SIGMA_CHECK(meta.write(info));
//
// The file that stands there is always a whole document: each writing replaces it at once. A tracer
// that was killed leaves the first one, so `complete` tells whether the trace was ended in order.
//
// Times are UTC nanoseconds as in the CSV, addresses and keys "0x..." strings, unknown values null.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/counters.h"
#include "base/fd.h"
#include "base/result.h"
#include "session/session.h"

namespace sigma {

inline constexpr int kMetaSchemaVersion = 1;

struct ProbeInfo {
  std::string function;     // "post_send"
  std::string route;        // how it was found: "ops_table"
  std::string instruction;  // at which it stands: "push rbp"
  std::string link;         // "multi", "perf", ...
  uint64_t file_offset = 0;
  uint32_t expected_ns = 0;  // of one hit
  bool at_return = false;    // its return is seen as well
};

struct UncoveredFunction {
  std::string function;
  std::string reason;
};

struct LibraryInfo {
  std::string name, path, build_id;
  std::vector<ProbeInfo> probes;
  std::vector<UncoveredFunction> uncovered;
};

struct NodeInfo {
  std::string node;     // host name
  std::string boot_id;  // of /proc/sys/kernel/random/boot_id: monotonic times compare within one
  std::string kernel;   // release

  static NodeInfo read();
};

struct TraceInfo {
  std::string tool_version;
  std::vector<std::string> command_line;
  NodeInfo node;
  bool complete = false;
  std::string end_reason;  // "interrupted", "targets ended", "duration", "output failed: ..."
  ClockPair start_clock;   // the one that the CSV's times are made with
  std::optional<ClockPair> end_clock;
  std::vector<Process> processes;
  std::map<uint32_t, std::map<std::string, std::string>> facts;  // by pid; see process_facts.h
  std::vector<std::shared_ptr<const QueuePair>> queue_pairs;
  std::vector<CompletionQueue> completion_queues;
  std::vector<MemoryRegion> memory_regions;
  std::vector<LibraryInfo> libraries;
  Counters counters;
  std::vector<std::string> remarks;  // see coverage_statement
};

std::string meta_json(const TraceInfo& info);

class MetaFile {
 public:
  static std::string path_for(const std::string& csv_path) { return csv_path + ".meta.json"; }

  static Result<MetaFile> create(const std::string& csv_path, const TraceInfo& info);
  // Also after privileges were dropped: where the file cannot be replaced any more, it is rewritten
  // through the descriptor that create() opened.
  Status write(const TraceInfo& info);

 private:
  MetaFile(std::string path, Fd fd) : path_(std::move(path)), fd_(std::move(fd)) {}
  std::string path_;
  Fd fd_;
};

}  // namespace sigma
