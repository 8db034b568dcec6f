// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
#include "trace/trace_writer.h"

#include <fmt/format.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/private_file.h"
#include "trace/codec.h"
#include "trace/schema.h"
#include "trace/tsdl.h"

namespace sigma {
namespace {

// Of a flight recorder's stream. A busy one keeps between 7/8 and all of its share.
constexpr size_t kSegments = 8;

Uuid make_uuid() {
  Uuid uuid{};
  if (getrandom(uuid.data(), uuid.size(), 0) != static_cast<ssize_t>(uuid.size())) {
    const uint64_t now = monotonic_now_ns();
    std::memcpy(uuid.data(), &now, sizeof now);
  }
  uuid[6] = static_cast<uint8_t>((uuid[6] & 0x0f) | 0x40);  // version 4, RFC 9562
  uuid[8] = static_cast<uint8_t>((uuid[8] & 0x3f) | 0x80);
  return uuid;
}

void copy_text(std::span<char> field, std::string_view text) {
  const size_t size = std::min(text.size(), field.size() - 1);
  std::memcpy(field.data(), text.data(), size);
}

// Streams of many CPUs are many files: the usual soft limit is 1024, the hard one far more.
void allow_open_files(size_t wanted) {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= wanted) return;
  limit.rlim_cur = std::min<rlim_t>(wanted, limit.rlim_max);
  setrlimit(RLIMIT_NOFILE, &limit);
}

}  // namespace

Result<std::unique_ptr<TraceWriter>> TraceWriter::create(const std::string& path, TraceMeta meta,
                                                         const TraceWriterOptions& options) {
  if (options.max_size_bytes && options.max_size_bytes < kMinTraceSize)
    return Error{fmt::format("a trace of at most {} bytes is too small", options.max_size_bytes),
                 fmt::format("--max-size {}M or more", kMinTraceSize >> 20)};
  SIGMA_ASSIGN(TraceDir dir, TraceDir::create(path));
  meta.uuid = make_uuid();
  meta.max_size_bytes = options.max_size_bytes;
  std::unique_ptr<TraceWriter> writer(new TraceWriter(std::move(dir), std::move(meta)));
  const TraceInfo& info = writer->meta_.info;
  writer->start_ns_ = writer->newest_ns_ = info.start_clock.monotonic_ns;
  if (options.max_size_bytes)
    writer->packet_bytes_ =
        std::clamp<size_t>(options.max_size_bytes / 128, 16 * 1024, kPacketBytes);

  SIGMA_ASSIGN(const Fd metadata, writer->dir_.create_stream("metadata"));
  const std::string text = tsdl({.uuid = writer->meta_.uuid,
                                 .node = info.node.node,
                                 .kernel = info.node.kernel,
                                 .tool_version = info.tool_version,
                                 .clock = info.start_clock});
  int errnum = 0;
  write_all(metadata.get(), text, &errnum);
  if (errnum) return Error{fmt::format("cannot write the trace {}: {}", path, errno_text(errnum))};
  const long configured = sysconf(_SC_NPROCESSORS_CONF);
  SIGMA_CHECK(writer->open_streams(options.cpus ? options.cpus
                                                : static_cast<unsigned>(std::max(configured, 1L))));
  SIGMA_CHECK(writer->dir_.write_meta(trace_meta_json(writer->meta_)));
  return writer;
}

TraceWriter::~TraceWriter() {
  if (!finished_) flush();
}

Status TraceWriter::open_streams(unsigned cpus) {
  const size_t segments = meta_.max_size_bytes ? kSegments : 1;
  allow_open_files((cpus + 1) * segments + 256);
  control_.id = kStreamControl;
  SIGMA_CHECK(open_stream(control_, "control", 1));
  cpus_.resize(cpus + 1);
  for (uint32_t cpu = 0; cpu < cpus; ++cpu) {
    cpus_[cpu].cpu = cpu;
    SIGMA_CHECK(open_stream(cpus_[cpu], fmt::format("cpu{}", cpu), segments));
  }
  cpus_.back().id = kStreamRings;
  SIGMA_CHECK(open_stream(cpus_.back(), "rings", segments));
  // At once, so that a folder that cannot be written is noticed at the start.
  begin_segment(control_);
  if (error_) return *error_;
  return {};
}

Status TraceWriter::open_stream(Stream& stream, const std::string& name, size_t segments) {
  stream.last_ns = start_ns_;
  for (size_t i = 0; i < segments; ++i) {
    Segment segment;
    segment.name = segments == 1 ? name : fmt::format("{}.{}", name, i);
    SIGMA_ASSIGN(segment.fd, dir_.create_stream(segment.name));
    stream.segments.push_back(std::move(segment));
  }
  return {};
}

void TraceWriter::on_record(std::span<const std::byte> record) {
  const auto bytes = record_bytes(record);
  if (!bytes) {
    ++refused_;
    return;
  }
  sigma_header header;
  std::memcpy(&header, record.data(), sizeof header);
  add(stream_of(header.type, header.cpu), record.first(*bytes));
}

TraceWriter::Stream& TraceWriter::stream_of(uint16_t type, uint32_t cpu) {
  const uint32_t id = schema_of(type)->stream;
  if (id == kStreamRings) return cpus_.back();
  return id == kStreamCpu && cpu + 1 < cpus_.size() ? cpus_[cpu] : control_;
}

void TraceWriter::add(Stream& stream, std::span<const std::byte> record) {
  const uint64_t sequence = sequence_++;
  if (error_) {
    ++lost_;
    return;
  }
  // Files of a flight recorder stay bounded, also when the control plane alone would fill them.
  if (meta_.max_size_bytes && stream.id == kStreamControl &&
      stream.segments[0].bytes + stream.packet.size() + record.size() >
          meta_.max_size_bytes / 2 - packet_bytes_) {
    ++control_omitted_;
    return;
  }
  sigma_header header;
  std::memcpy(&header, record.data(), sizeof header);
  // A stream must not go back in time; a late record keeps its own time beside the stream's.
  const uint64_t timestamp_ns = std::max<uint64_t>(header.time_ns, stream.last_ns);
  if (stream.packet.empty()) {
    stream.packet.reserve(packet_bytes_ + sizeof(EventHead) + sizeof(sigma_post));
    stream.packet.resize(sizeof(PacketHead));
    stream.begin_ns = timestamp_ns;
    stream.first_sequence = sequence;
  }
  append_event(stream.packet, record, timestamp_ns, sequence);
  stream.last_ns = timestamp_ns;
  newest_ns_ = std::max(newest_ns_, timestamp_ns);
  ++stream.events;
  ++written_;
  if (stream.packet.size() >= packet_bytes_) write_packet(stream);
}

PacketHead TraceWriter::head_of(const Stream& stream, uint64_t begin_ns, uint64_t end_ns,
                                size_t bytes, uint64_t events) const {
  return {.magic = kCtfMagic,
          .uuid = meta_.uuid,
          .stream_id = stream.id,
          .stream_instance_id = stream.cpu,
          .timestamp_begin = begin_ns,
          .timestamp_end = end_ns,
          .content_bits = bytes * 8,
          .packet_bits = bytes * 8,
          .events_discarded = stream.discarded,
          .events = events,
          .cpu_id = stream.cpu};
}

void TraceWriter::write_packet(Stream& stream) {
  const bool grew = stream.id == kStreamControl && stream.discarded != dropped_ + control_omitted_;
  if (stream.packet.empty() && !grew) return;
  if (stream.packet.empty()) {  // no events, but a discarded count to tell
    stream.packet.resize(sizeof(PacketHead));
    stream.begin_ns = stream.last_ns;
  }
  if (!error_) {
    if (meta_.max_size_bytes) {
      roll_over(stream);
      make_room(stream.packet.size() + sizeof(PacketHead));
    }
    Segment& segment = stream.segments[stream.current];
    if (segment.bytes == 0) {
      segment.first_sequence = stream.first_sequence;
      // Segments of one stream are merged by time, and babeltrace2 2.0 takes two packets that begin
      // at once in any order; a CPU's stream has no discarded events to tell anyway.
      if (stream.segments.size() == 1) begin_segment(stream);
    }
  }
  if (grew) {
    stream.discarded = dropped_ + control_omitted_;
    stream.last_ns = std::max(stream.last_ns, newest_ns_);
  }
  const PacketHead head =
      head_of(stream, stream.begin_ns, stream.last_ns, stream.packet.size(), stream.events);
  std::memcpy(stream.packet.data(), &head, sizeof head);
  if (error_ || !write_whole(stream, stream.packet)) {
    lost_ += stream.events;
    written_ -= stream.events;
  } else {
    stream.segments[stream.current].events += stream.events;
  }
  stream.packet.clear();
  stream.events = 0;
}

// A packet without events, so that readers know where the discarded count began.
void TraceWriter::begin_segment(Stream& stream) {
  const uint64_t begin_ns = stream.packet.empty() ? stream.last_ns : stream.begin_ns;
  const PacketHead head = head_of(stream, begin_ns, begin_ns, sizeof(PacketHead), 0);
  write_whole(stream, std::as_bytes(std::span(&head, 1)));
}

bool TraceWriter::write_whole(Stream& stream, std::span<const std::byte> bytes) {
  Segment& segment = stream.segments[stream.current];
  int errnum = 0;
  write_all(segment.fd.get(), {reinterpret_cast<const char*>(bytes.data()), bytes.size()}, &errnum);
  if (errnum) {
    // Back to the last whole packet: babeltrace2 refuses a trace with a torn one.
    if (ftruncate(segment.fd.get(), static_cast<off_t>(segment.bytes)) == 0)
      lseek(segment.fd.get(), static_cast<off_t>(segment.bytes), SEEK_SET);
    fail(errnum);
    return false;
  }
  segment.bytes += bytes.size();
  total_bytes_ += bytes.size();
  return true;
}

// Empties the oldest segments until `bytes` more fit; those that streams are writing to come last.
void TraceWriter::make_room(uint64_t bytes) {
  while (total_bytes_ + bytes > meta_.max_size_bytes) {
    Segment* oldest = nullptr;
    bool oldest_is_open = false;
    for (Stream& stream : cpus_)
      for (size_t i = 0; i < stream.segments.size(); ++i) {
        Segment& segment = stream.segments[i];
        if (segment.bytes == 0) continue;
        const bool open = i == stream.current;
        // Open ones only where there is nothing else.
        if (oldest && (open > oldest_is_open || (open == oldest_is_open &&
                                                 segment.first_sequence >= oldest->first_sequence)))
          continue;
        oldest = &segment;
        oldest_is_open = open;
      }
    if (!oldest || !empty(*oldest)) return;
  }
}

bool TraceWriter::empty(Segment& segment) {
  if (ftruncate(segment.fd.get(), 0) != 0 || lseek(segment.fd.get(), 0, SEEK_SET) != 0) {
    fail(errno);
    return false;
  }
  total_bytes_ -= std::exchange(segment.bytes, 0);
  overwritten_ += std::exchange(segment.events, 0);
  return true;
}

// On to the stream's next segment, when this one has had its share of the bound.
void TraceWriter::roll_over(Stream& stream) {
  if (stream.segments.size() == 1) return;
  if (stream.segments[stream.current].bytes == 0) {
    active_streams_ =
        static_cast<size_t>(std::count_if(cpus_.begin(), cpus_.end(), [](const Stream& s) {
          return std::any_of(s.segments.begin(), s.segments.end(),
                             [](const Segment& segment) { return segment.bytes > 0; });
        }));
    active_streams_ = std::max<size_t>(active_streams_, 1);
  }
  const uint64_t share = meta_.max_size_bytes / (kSegments * active_streams_);
  if (stream.segments[stream.current].bytes + stream.packet.size() <=
      std::max<uint64_t>(share, packet_bytes_))
    return;
  stream.current = (stream.current + 1) % stream.segments.size();
  Segment& next = stream.segments[stream.current];
  if (next.bytes > 0) empty(next);
}

template <typename Note>
void TraceWriter::add_note(Note& note, NoteType type, uint64_t time_ns) {
  note.h.time_ns = time_ns;
  note.h.type = type;
  note.h.size = sizeof note;
  note.h.pid = static_cast<uint32_t>(getpid());
  add(stream_of(type, 0), std::as_bytes(std::span(&note, 1)));
}

void TraceWriter::note_device(uint32_t rdev, std::string_view device) {
  const auto [known, is_new] = devices_.try_emplace(rdev, device);
  if (!is_new && known->second == device) return;
  known->second = device;
  NoteDevice note{};
  note.rdev = rdev;
  copy_text(note.device, device);
  add_note(note, kNoteDevice, newest_ns_);
}

void TraceWriter::note_comm(uint32_t pid, std::string_view comm) {
  const auto [known, is_new] = comms_.try_emplace(pid, comm);
  if (!is_new && known->second == comm) return;
  known->second = comm;
  NoteComm note{};
  note.of_pid = pid;
  copy_text(note.comm, comm);
  add_note(note, kNoteComm, newest_ns_);
}

void TraceWriter::note_fact(uint32_t pid, std::string_view key, std::string_view value) {
  NoteFact note{};
  note.of_pid = pid;
  copy_text(note.key, key);
  copy_text(note.value, value);
  add_note(note, kNoteFact, newest_ns_);
}

void TraceWriter::note_mark(MarkReason reason, std::string_view text) {
  NoteMark note{};
  note.reason = reason;
  copy_text(note.text, text);
  add_note(note, kNoteMark, newest_ns_);
}

void TraceWriter::note_counter(uint64_t time_ns, std::string_view device, uint32_t port,
                               std::string_view counter, uint64_t value) {
  NoteCounter note{};
  note.value = value;
  note.port = port;
  copy_text(note.device, device);
  copy_text(note.counter, counter);
  add_note(note, kNoteCounter, time_ns);
}

void TraceWriter::flush() {
  for (Stream& stream : cpus_) write_packet(stream);
  write_packet(control_);
}

Status TraceWriter::finish(const TraceInfo& info, const Counters& attacher) {
  if (finished_) return {};
  flush();
  finished_ = true;
  meta_.info = info;
  meta_.info.complete = !error_;
  meta_.attacher = attacher;
  meta_.records = sequence_;
  const auto close_all = [&](Stream& stream) {
    for (Segment& segment : stream.segments) {
      const int fd = segment.fd.release();
      if (fd >= 0 && close(fd) != 0 && errno != EINTR && !error_) fail(errno);
      if (segment.bytes == 0) dir_.remove_stream(segment.name);
    }
  };
  for (Stream& stream : cpus_) close_all(stream);
  close_all(control_);
  const Status written = dir_.write_meta(trace_meta_json(meta_));
  if (error_) return *error_;
  return written;
}

void TraceWriter::fail(int errnum) {
  if (error_) return;
  error_ = Error{fmt::format("cannot write the trace {}: {}", dir_.path(), errno_text(errnum))};
  if (errnum == ENOSPC || errnum == EDQUOT)
    error_->hint = "free some space, choose another file system (-o DIR), or bound it (--max-size)";
  if (errnum == EFBIG) error_->hint = "raise the file size limit: ulimit -f unlimited";
}

}  // namespace sigma
