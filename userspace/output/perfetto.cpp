// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// A queue completes in posting order: once an operation is seen, all later ones of its queue were
// posted after it. So what happened to a queue until that post can be written, in order; what lies
// behind it waits in a heap as large as the queue is deep.
#include "output/perfetto.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "base/human.h"
#include "base/private_file.h"
#include "output/names.h"
#include "output/perfetto_proto.h"

namespace sigma {
namespace {

constexpr size_t kPiece = 256 * 1024;
constexpr uint64_t kSequence = 1;

std::string clock_message(uint64_t id, uint64_t time_ns) {
  std::string clock;
  proto::put_uint(clock, proto::kClockId, id);
  proto::put_uint(clock, proto::kClockTime, time_ns);
  return clock;
}

}  // namespace

Result<std::unique_ptr<PerfettoSink>> PerfettoSink::create(const std::string& path,
                                                           const PerfettoOptions& options) {
  std::unique_ptr<PerfettoSink> sink;
  if (path == "-") {
    Fd fd(fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, 3));
    if (!fd) return Error{"cannot write to standard output: " + errno_text(errno)};
    if (isatty(fd.get()))
      return Error{"a Perfetto trace is no text for a terminal", "name a file: -o trace.pftrace"};
    sink.reset(new PerfettoSink(std::move(fd), "standard output", options));
  } else {
    SIGMA_ASSIGN(Fd fd, create_private_file(path));
    sink.reset(new PerfettoSink(std::move(fd), path, options));
  }
  sink->begin();
  if (sink->error_) return *sink->error_;
  return sink;
}

PerfettoSink::PerfettoSink(Fd fd, std::string name, const PerfettoOptions& options)
    : fd_(std::move(fd)), name_(std::move(name)), options_(options) {}

void PerfettoSink::begin() {
  std::string snapshot, packet;
  const ClockPair& clock = options_.clock;
  proto::put_bytes(snapshot, proto::kClocks,
                   clock_message(proto::kClockMonotonic, clock.monotonic_ns));
  proto::put_bytes(snapshot, proto::kClocks, clock_message(proto::kClockRealtime, clock.utc_ns));
  // trace_processor counts in BOOTTIME unless told otherwise; suspended time is of no matter here.
  proto::put_bytes(snapshot, proto::kClocks,
                   clock_message(proto::kClockBoottime, clock.monotonic_ns));
  proto::put_uint(snapshot, proto::kPrimaryClock, proto::kClockMonotonic);
  proto::put_bytes(packet, proto::kClockSnapshot, snapshot);
  proto::put_uint(packet, proto::kTimestamp, clock.monotonic_ns);
  proto::put_uint(packet, proto::kTimestampClock, proto::kClockMonotonic);
  proto::put_uint(packet, proto::kSequenceId, kSequence);
  proto::put_uint(packet, proto::kSequenceFlags, proto::kStateCleared);
  write_packet(packet);
  flush();
}

uint64_t PerfettoSink::make_track(uint64_t parent, std::string_view name, std::string_view extra) {
  const uint64_t uuid = next_track_++;
  std::string track, packet;
  proto::put_uint(track, proto::kUuid, uuid);
  if (!name.empty()) proto::put_bytes(track, proto::kTrackName, name);
  if (parent) proto::put_uint(track, proto::kParentUuid, parent);
  track += extra;
  proto::put_bytes(packet, proto::kTrackDescriptor, track);
  proto::put_uint(packet, proto::kSequenceId, kSequence);
  write_packet(packet);
  return uuid;
}

uint64_t PerfettoSink::make_counter(uint64_t parent, std::string_view name, uint64_t unit) {
  std::string descriptor, extra;
  proto::put_uint(descriptor, proto::kCounterUnit, unit);
  proto::put_bytes(extra, proto::kCounter, descriptor);
  return make_track(parent, name, extra);
}

uint64_t PerfettoSink::process_track(uint32_t pid, std::string_view comm) {
  if (const auto known = processes_.find(pid); known != processes_.end()) return known->second;
  std::string process, extra;
  proto::put_uint(process, proto::kProcessPid, pid);
  proto::put_bytes(process, proto::kProcessName, printable(comm));
  proto::put_bytes(extra, proto::kProcess, process);
  return processes_[pid] = make_track(0, {}, extra);
}

PerfettoSink::Queue& PerfettoSink::queue_of(const Operation& operation) {
  const bool receives = operation.queue == sigma::Queue::recv;
  const QueuePair* qp = operation.qp.get();
  if (qp)
    if (const auto known = by_description_.find(qp); known != by_description_.end())
      if (Queue* queue = known->second[receives]) return *queue;
  const uint32_t pid = qp ? qp->pid : operation.pid;
  Queue& queue =
      queues_[{qp ? qp->device : "", qp ? qp->qp_num : 0, qp ? qp->life : 0, pid, receives}];
  if (queue.parent == 0) {
    queue.parent = process_track(pid, operation.comm);
    const std::string device = qp && !qp->device.empty() ? qp->device : "unknown device";
    queue.name = qp ? fmt::format("{} qp {}", device, qp->qp_num) : device + " shared queue";
    if (qp && qp->life) queue.name += fmt::format(" life {}", qp->life);
    if (receives) queue.name += " recv";
    queue.parent = make_track(queue.parent, queue.name);
    queue.posts = make_track(queue.parent, "posts");
  }
  if (qp) {
    kept_.push_back(operation.qp);  // so that its address stays its own
    by_description_[qp][receives] = &queue;
  }
  return queue;
}

void PerfettoSink::on_operation(const Operation& operation) {
  Queue& queue = queue_of(operation);
  const auto opcode = to_string(operation.opcode);
  const std::string_view name = opcode.empty() ? "operation" : opcode;
  const bool receives = operation.queue == sigma::Queue::recv;

  // In order even where a queue's requests are told out of it (shared receive queues).
  const auto instant_at = [&](uint64_t time_ns) {
    queue.last_instant_ns = std::max(queue.last_instant_ns, time_ns);
    return queue.last_instant_ns;
  };
  if (!operation.time_ns || !operation.complete_ns || !operation.status ||
      *operation.complete_ns < *operation.time_ns) {
    const auto time = operation.time_ns ? operation.time_ns : operation.complete_ns;
    if (!time) return;
    begin_event(queue.posts, proto::kInstant, name);
    describe(operation, operation.status.has_value());
    return write_event(instant_at(*time));
  }

  const uint64_t post_ns = *operation.time_ns, complete_ns = *operation.complete_ns;
  auto lane = std::find_if(queue.lanes.begin(), queue.lanes.end(),
                           [&](const Queue::Lane& l) { return l.busy_until_ns <= post_ns; });
  if (lane == queue.lanes.end() && queue.lanes.size() < kLanes) {
    queue.lanes.push_back({make_track(queue.parent, queue.name), 0});
    lane = queue.lanes.end() - 1;
  }
  const uint64_t flow = next_flow_++;
  const bool has_lane = lane != queue.lanes.end();
  begin_event(queue.posts, proto::kInstant, name);
  if (has_lane)
    proto::put_fixed64(event_, proto::kFlowId, flow);
  else
    describe(operation, true);
  write_event(instant_at(post_ns));
  if (has_lane) {
    begin_event(lane->track, proto::kSliceBegin, name);
    describe(operation, true);
    proto::put_fixed64(event_, proto::kEndingFlowId, flow);
    write_event(post_ns);
    begin_event(lane->track, proto::kSliceEnd, {});
    write_event(complete_ns);
    lane->busy_until_ns = complete_ns;
  }

  if (receives || operation.bytes.value_or(0) == 0) return;
  if (queue.in_flight == 0)
    queue.in_flight = make_counter(queue.parent, "bytes in flight", proto::kUnitBytes);
  for (const bool ends : {false, true}) {
    queue.changes.push_back({ends ? complete_ns : post_ns, ends, *operation.bytes, next_order_++});
    std::push_heap(queue.changes.begin(), queue.changes.end(), std::greater<>());
  }
  queue.last_post_ns = std::max(queue.last_post_ns, post_ns);
  write_changes(queue, queue.last_post_ns);
}

void PerfettoSink::write_changes(Queue& queue, uint64_t until_ns) {
  while (!queue.changes.empty() && queue.changes.front().time_ns < until_ns) {
    const uint64_t time_ns = std::max(queue.changes.front().time_ns, queue.last_change_ns);
    // All of one time are one step.
    while (!queue.changes.empty() && queue.changes.front().time_ns <= time_ns) {
      const Change change = queue.changes.front();
      std::pop_heap(queue.changes.begin(), queue.changes.end(), std::greater<>());
      queue.changes.pop_back();
      if (change.ends)
        queue.bytes_in_flight -= std::min(queue.bytes_in_flight, change.bytes);
      else
        queue.bytes_in_flight += change.bytes;
    }
    queue.last_change_ns = time_ns;
    write_count(queue.in_flight, time_ns, queue.bytes_in_flight);
  }
}

void PerfettoSink::describe(const Operation& operation, bool completed) {
  if (operation.bytes) annotate("bytes", *operation.bytes);
  if (operation.wr_id) annotate("wr_id", *operation.wr_id);
  if (operation.tid) annotate("tid", operation.tid);
  if (operation.remote_addr) annotate("remote_addr", *operation.remote_addr, true);
  const auto peer_qp_num =
      operation.peer_qp_num || !operation.qp ? operation.peer_qp_num : operation.qp->peer_qp_num;
  if (peer_qp_num) annotate("peer_qp_num", *peer_qp_num);
  const bool own_peer = operation.peer.gid || operation.peer.lid || !operation.qp;
  if (const auto peer = address_text(own_peer ? operation.peer : operation.qp->peer); !peer.empty())
    annotate("peer", peer);
  if (!completed)
    annotate("status", "unfinished");
  else if (operation.status && *operation.status != kStatusSuccess)
    annotate("status", status_text(*operation.status));
  if (operation.complete_source != CompleteSource::none)
    annotate("complete_source", name_of(operation.complete_source));
}

void PerfettoSink::on_counter(uint64_t time_ns, std::string_view device, uint32_t port,
                              std::string_view counter, uint64_t value) {
  const std::string name = fmt::format("{}/{} {}", printable(device), port, printable(counter));
  uint64_t& track = counters_[name];
  if (track == 0) track = make_counter(0, name, proto::kUnitCount);
  write_count(track, time_ns, value);
}

void PerfettoSink::on_gap(uint64_t begin_ns, uint64_t end_ns, std::string_view kind,
                          uint64_t records) {
  if (gaps_track_ == 0) gaps_track_ = make_track(0, "not traced in full");
  begin_ns = std::max(begin_ns, gaps_end_ns_);
  gaps_end_ns_ = std::max(begin_ns, end_ns);
  begin_event(gaps_track_, proto::kSliceBegin, kind);
  if (records) annotate("records", records);
  write_event(begin_ns);
  begin_event(gaps_track_, proto::kSliceEnd, {});
  write_event(gaps_end_ns_);
}

void PerfettoSink::on_drops(uint64_t time_ns, uint64_t total) {
  if (drops_track_ == 0) {
    drops_track_ = make_counter(0, "records dropped", proto::kUnitCount);
    write_count(drops_track_, options_.clock.monotonic_ns, 0);
  }
  write_count(drops_track_, time_ns, total);
}

void PerfettoSink::on_mark(uint64_t time_ns, std::string_view reason, std::string_view text) {
  if (marks_track_ == 0) marks_track_ = make_track(0, "marks");
  begin_event(marks_track_, proto::kInstant, reason);
  annotate("what", printable(text));
  write_event(time_ns);
}

// ---- encoding -----------------------------------------------------------------------------------

uint64_t PerfettoSink::intern(uint32_t kind, std::string_view text) {
  auto& iids = iids_[kind];
  const auto [entry, is_new] = iids.try_emplace(std::string(text), iids.size() + 1);
  if (is_new) {
    scratch_.clear();
    proto::put_uint(scratch_, proto::kIid, entry->second);
    proto::put_bytes(scratch_, proto::kInternedText, text);
    proto::put_bytes(interned_, kind, scratch_);
  }
  return entry->second;
}

void PerfettoSink::begin_event(uint64_t track, uint64_t type, std::string_view name) {
  event_.clear();
  proto::put_uint(event_, proto::kEventType, type);
  proto::put_uint(event_, proto::kTrackUuid, track);
  if (name.empty()) return;
  proto::put_uint(event_, proto::kCategoryIid, intern(proto::kInternedCategory, "rdma"));
  proto::put_uint(event_, proto::kNameIid, intern(proto::kInternedName, name));
}

void PerfettoSink::annotate(std::string_view name, std::string_view text) {
  std::string annotation;
  proto::put_uint(annotation, proto::kAnnotationNameIid, intern(proto::kInternedAnnotation, name));
  proto::put_bytes(annotation, proto::kAnnotationString, text);
  proto::put_bytes(event_, proto::kAnnotation, annotation);
}

void PerfettoSink::annotate(std::string_view name, uint64_t value, bool pointer) {
  std::string annotation;
  proto::put_uint(annotation, proto::kAnnotationNameIid, intern(proto::kInternedAnnotation, name));
  proto::put_uint(annotation, pointer ? proto::kAnnotationPointer : proto::kAnnotationUint, value);
  proto::put_bytes(event_, proto::kAnnotation, annotation);
}

void PerfettoSink::write_event(uint64_t time_ns) {
  scratch_.clear();
  proto::put_uint(scratch_, proto::kTimestamp, time_ns);
  proto::put_uint(scratch_, proto::kTimestampClock, proto::kClockMonotonic);
  proto::put_uint(scratch_, proto::kSequenceId, kSequence);
  proto::put_uint(scratch_, proto::kSequenceFlags, proto::kNeedsState);
  if (!interned_.empty()) {
    proto::put_bytes(scratch_, proto::kInternedData, interned_);
    interned_.clear();
  }
  proto::put_bytes(scratch_, proto::kTrackEvent, event_);
  write_packet(scratch_);
}

void PerfettoSink::write_count(uint64_t track, uint64_t time_ns, uint64_t value) {
  event_.clear();
  proto::put_uint(event_, proto::kEventType, proto::kCounterEvent);
  proto::put_uint(event_, proto::kTrackUuid, track);
  proto::put_uint(event_, proto::kCounterValue, value);
  write_event(time_ns);
}

void PerfettoSink::write_packet(std::string_view packet) {
  proto::put_bytes(buffer_, proto::kTracePacket, packet);
  ++packets_;
  if (buffer_.size() >= kPiece) flush();
}

void PerfettoSink::flush() {
  if (!error_ && !buffer_.empty()) {
    int errnum = 0;
    const size_t written = write_all(fd_.get(), buffer_, &errnum);
    if (errnum) {
      error_ = Error{fmt::format("cannot write to {}: {}", name_, errno_text(errnum))};
      if (errnum == ENOSPC || errnum == EDQUOT)
        error_->hint = "free some space, or choose another file system: -o PATH";
      if (errnum == EPIPE) error_ = Error{fmt::format("{} was closed by its reader", name_)};
      // Back to whole packets, where that is a file of ours.
      if (written > 0 && name_ != "standard output" &&
          ftruncate(fd_.get(), static_cast<off_t>(written_bytes_)) != 0)
        error_->what += "; its end is torn";
    } else {
      written_bytes_ += written;
    }
  }
  buffer_.clear();
}

void PerfettoSink::finish() {
  if (finished_) return;
  finished_ = true;
  for (auto& [key, queue] : queues_) write_changes(queue, UINT64_MAX);
  flush();
  const int fd = fd_.release();
  if (fd >= 0 && close(fd) != 0 && errno != EINTR && !error_)
    error_ = Error{fmt::format("cannot write to {}: {}", name_, errno_text(errno))};
}

}  // namespace sigma
