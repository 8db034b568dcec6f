// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// TraceReader: a trace directory's records, as they were given to TraceWriter.
//
//   SIGMA_ASSIGN(auto reader, TraceReader::open("DIR"));
//   reader->replay(visitor);      // in the order of the recording; as often as wanted
//   reader->damage();             // what could not be read, whole after a replay
//
// Files are mapped, never copied; memory does not grow with the trace. Their content is hostile:
// everything is checked before it is used, and what is torn or damaged is skipped, counted and
// described. Where records are missing (damage, or a flight recorder's overwritten part), the
// visitor is told of the hole before the record behind it.
//
// A trace that is still being written can be read up to now, unless it is a flight recorder's,
// whose files are cut while it runs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "trace/notes.h"
#include "trace/stream_index.h"
#include "trace/trace_meta.h"

namespace sigma {

class TraceVisitor {
 public:
  virtual ~TraceVisitor() = default;
  // One record of bpf/records.h, aligned to 8 bytes, valid during the call.
  virtual void on_record(std::span<const std::byte> record) = 0;
  // One record of trace/notes.h, likewise.
  virtual void on_note(std::span<const std::byte> /*note*/) {}
  virtual void on_hole(uint64_t /*begin_ns*/, uint64_t /*end_ns*/, uint64_t /*records*/) {}
};

// A hole as records of its own: to a session, nothing was traced there.
template <typename F>
void tell_hole(uint64_t begin_ns, uint64_t end_ns, F&& on_record) {
  sigma_window window{};
  window.h.type = SIGMA_WINDOW;
  window.h.size = sizeof window;
  for (const uint32_t kind : {SIGMA_WINDOW_PAUSE, SIGMA_WINDOW_RESUME}) {
    window.kind = kind;
    window.h.time_ns = kind == SIGMA_WINDOW_PAUSE ? begin_ns : end_ns;
    on_record(std::as_bytes(std::span(&window, 1)));
  }
}

struct TraceDamage {
  uint64_t missing = 0;        // records that were written or accepted, and are not there
  uint64_t overwritten = 0;    // by a flight recorder
  uint64_t discarded = 0;      // that the ring buffer had no room for
  uint64_t skipped_bytes = 0;  // of packets that are torn or damaged
  std::vector<std::string> descriptions;  // for people, one for each damaged place, at most 16
};

class TraceReader {
 public:
  static Result<std::unique_ptr<TraceReader>> open(const std::string& path);
  ~TraceReader();
  TraceReader(const TraceReader&) = delete;
  TraceReader& operator=(const TraceReader&) = delete;

  const TraceMeta& meta() const { return meta_; }
  // With `threads` others decode ahead of the caller, who calls the visitor either way.
  void replay(TraceVisitor& visitor, unsigned threads = 0);
  const TraceDamage& damage() const { return damage_; }
  const std::vector<Discard>& discards() const { return discards_; }

  uint64_t bytes() const;                  // of all streams
  unsigned cpus() const { return cpus_; }  // the highest one with a stream, plus 1; at least 1
  uint64_t first_ns() const { return first_ns_; }  // of the packets; 0 without any
  uint64_t last_ns() const { return last_ns_; }

 private:
  struct File {
    std::string name;
    std::span<const std::byte> bytes;               // mapped
    std::vector<std::span<const std::byte>> sound;  // of these, whole packets
  };
  class Cursor;

  TraceReader() = default;
  Status open_files(const std::string& folder);
  void index(File& file);
  void damaged(const File& file, uint64_t bytes, std::string_view what);

  TraceMeta meta_;
  std::vector<File> files_;
  TraceDamage indexed_;  // found by open()
  TraceDamage damage_;
  std::vector<Discard> discards_;
  uint64_t first_ns_ = 0, last_ns_ = 0;
  unsigned cpus_ = 1;
};

}  // namespace sigma
