// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// TraceWriter: records into a trace directory.
//
//   SIGMA_ASSIGN(auto trace, TraceWriter::create("DIR", meta, {}));    // before privileges are
//   dropped for each record: session.on_record(record); trace->on_record(record);    // in this
//   order session asks for a device or a name: trace->note_device(rdev, name);
//   trace->note_comm(pid, name); trace->note_dropped(total);   trace->flush(); // now and then
//   SIGMA_CHECK(trace->finish(info, attacher_counters));
//
// Session comes first so that what it asks while it takes a record stands before the record, where
// a replay needs it.
//
// Records are kept in packets of 256 KiB; each is one write, and a file is cut back to its last
// whole packet where that write falls short. So whatever ends the tracer (kill -9, a full disk),
// everything up to the last whole packet is readable. After the first failure nothing more is
// written: all further records are counted as lost, and error() says why.
//
// With max_size_bytes (flight recorder) each stream is a ring of files, emptied from the oldest on,
// so that the folder's files stay below it; the control plane's records are kept as long as they
// take less than half. What was overwritten is counted by records_overwritten(). All files are
// opened by create(): none need be made or removed later.
//
// Single-threaded.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/fd.h"
#include "base/result.h"
#include "trace/notes.h"
#include "trace/packet.h"
#include "trace/trace_dir.h"
#include "trace/trace_meta.h"

namespace sigma {

inline constexpr uint64_t kMinTraceSize = 4u << 20;

struct TraceWriterOptions {
  uint64_t max_size_bytes = 0;  // 0: without a bound; else at least kMinTraceSize
  unsigned cpus = 0;            // streams to make ready; 0: the machine's CPUs
};

class TraceWriter {
 public:
  // `meta.info` with start_clock and node set; its uuid is made here.
  static Result<std::unique_ptr<TraceWriter>> create(const std::string& path, TraceMeta meta,
                                                     const TraceWriterOptions& options);
  ~TraceWriter();  // flushes
  TraceWriter(const TraceWriter&) = delete;
  TraceWriter& operator=(const TraceWriter&) = delete;

  // One record as Session gets it, in the same order. What is no record is counted by refused().
  void on_record(std::span<const std::byte> record);

  // Notes (notes.h). An answer that was already given is not written again.
  void note_device(uint32_t rdev, std::string_view device);
  void note_comm(uint32_t pid, std::string_view comm);
  void note_fact(uint32_t pid, std::string_view key, std::string_view value);
  void note_mark(MarkReason reason, std::string_view text);
  void note_counter(uint64_t time_ns, std::string_view device, uint32_t port,
                    std::string_view counter, uint64_t value);
  // Records that the ring buffer had no room for, since the beginning; of all CPUs, which share it.
  void note_dropped(uint64_t total) { dropped_ = total; }

  // Writes all packets that hold something. A killed tracer loses what came since.
  void flush();
  // Flushes, writes meta.json with complete = true. `info` is the caller's at the end.
  Status finish(const TraceInfo& info, const Counters& attacher);

  uint64_t records_written() const {
    return written_;
  }                                                // accepted; after flush() they are in the file
  uint64_t records_lost() const { return lost_; }  // that could not be written
  uint64_t records_overwritten() const { return overwritten_; }  // by newer ones (max_size_bytes)
  uint64_t refused() const { return refused_; }
  uint64_t bytes() const { return total_bytes_; }  // of the streams' files now
  const std::optional<Error>& error() const { return error_; }

 private:
  struct Segment {
    Fd fd;
    std::string name;
    uint64_t bytes = 0, events = 0;
    uint64_t first_sequence = 0;
  };
  struct Stream {
    uint32_t id = kStreamCpu;
    uint32_t cpu = 0;
    std::vector<Segment> segments;
    size_t current = 0;
    std::vector<std::byte> packet;  // empty, or a PacketHead and events
    uint64_t begin_ns = 0;          // of the packet
    uint64_t first_sequence = 0;    // likewise
    uint64_t last_ns = 0;           // the newest event
    uint64_t events = 0;            // in the packet
    uint64_t discarded = 0;         // written last
  };

  TraceWriter(TraceDir dir, TraceMeta meta) : dir_(std::move(dir)), meta_(std::move(meta)) {}

  Status open_streams(unsigned cpus);
  Status open_stream(Stream& stream, const std::string& name, size_t segments);
  Stream& stream_of(uint16_t type, uint32_t cpu);
  void add(Stream& stream, std::span<const std::byte> record);
  template <typename Note>
  void add_note(Note& note, NoteType type, uint64_t time_ns);
  void write_packet(Stream& stream);
  void begin_segment(Stream& stream);
  bool write_whole(Stream& stream, std::span<const std::byte> bytes);
  void make_room(uint64_t bytes);
  bool empty(Segment& segment);
  void roll_over(Stream& stream);
  PacketHead head_of(const Stream& stream, uint64_t begin_ns, uint64_t end_ns, size_t bytes,
                     uint64_t events) const;
  void fail(int errnum);

  TraceDir dir_;
  TraceMeta meta_;
  std::vector<Stream> cpus_;  // and, as the last, that of the rings
  Stream control_;
  size_t packet_bytes_ = kPacketBytes;
  uint64_t start_ns_ = 0;
  uint64_t newest_ns_ = 0;  // of any stream
  uint64_t sequence_ = 0;
  uint64_t dropped_ = 0;
  uint64_t written_ = 0;
  uint64_t lost_ = 0;
  uint64_t overwritten_ = 0;
  uint64_t refused_ = 0;
  uint64_t control_omitted_ = 0;
  uint64_t total_bytes_ = 0;
  size_t active_streams_ = 1;
  bool finished_ = false;
  std::unordered_map<uint32_t, std::string> devices_, comms_;
  std::optional<Error> error_;
};

}  // namespace sigma
