// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// The Perfetto trace, read by a decoder of the protobuf wire format that shares nothing with the
// writer but the published field numbers, written here once more.
#include <algorithm>
#include <filesystem>
#include <map>
#include <optional>
#include <random>
#include <set>

#include "catch.h"
#include "csv_support.h"
#include "output/perfetto.h"

using namespace sigma;
using namespace sigma::test;

namespace {

// A message: field number to values. Varints and fixed ones as numbers, the rest as bytes.
struct Message {
  std::multimap<uint32_t, uint64_t> numbers;
  std::multimap<uint32_t, std::string> texts;

  static Message parse(const std::string& bytes) {
    Message message;
    size_t at = 0;
    const auto varint = [&] {
      uint64_t value = 0;
      for (unsigned shift = 0;; shift += 7) {
        if (at >= bytes.size() || shift > 63) throw std::runtime_error("bad varint");
        const auto byte = static_cast<uint8_t>(bytes[at++]);
        value |= uint64_t{byte & 0x7fu} << shift;
        if (!(byte & 0x80)) return value;
      }
    };
    while (at < bytes.size()) {
      const uint64_t tag = varint();
      const auto field = static_cast<uint32_t>(tag >> 3);
      if (field == 0) throw std::runtime_error("field 0");
      switch (tag & 7) {
        case 0:
          message.numbers.emplace(field, varint());
          break;
        case 1: {
          if (bytes.size() - at < 8) throw std::runtime_error("bad fixed64");
          uint64_t value = 0;
          for (int i = 7; i >= 0; --i)
            value = value << 8 | static_cast<uint8_t>(bytes[at + static_cast<size_t>(i)]);
          at += 8;
          message.numbers.emplace(field, value);
          break;
        }
        case 2: {
          const uint64_t size = varint();
          if (size > bytes.size() - at) throw std::runtime_error("bad length");
          message.texts.emplace(field, bytes.substr(at, size));
          at += size;
          break;
        }
        default:
          throw std::runtime_error("wire type");
      }
    }
    return message;
  }
  std::optional<uint64_t> number(uint32_t field) const {
    const auto found = numbers.find(field);
    return found == numbers.end() ? std::nullopt : std::optional(found->second);
  }
  std::optional<std::string> text(uint32_t field) const {
    const auto found = texts.find(field);
    return found == texts.end() ? std::nullopt : std::optional(found->second);
  }
};

struct Event {
  uint64_t time_ns, type, track;
  std::string name;
  std::optional<uint64_t> flow, ending_flow, value;
  std::map<std::string, std::string> annotations;
};

struct Track {
  std::string name;
  uint64_t parent = 0;
  std::optional<uint64_t> pid;
  bool counter = false;
};

struct Decoded {
  std::map<uint64_t, Track> tracks;
  std::vector<Event> events;
  std::map<uint64_t, uint64_t> clocks;
};

constexpr uint64_t kSliceBegin = 1, kSliceEnd = 2, kInstant = 3, kCounter = 4;  // TrackEvent.Type

size_t count_of(const Decoded& trace, uint64_t type) {
  return static_cast<size_t>(std::ranges::count(trace.events, type, &Event::type));
}

Decoded decode(const std::string& bytes) {
  Decoded out;
  std::map<uint32_t, std::map<uint64_t, std::string>> interned;
  const Message trace = Message::parse(bytes);
  CHECK(trace.numbers.empty());
  bool first = true;
  for (const auto& [field, text] : trace.texts) {
    REQUIRE(field == 1);
    const Message packet = Message::parse(text);
    REQUIRE(packet.number(10));  // interned names are those of a sequence
    if (first) CHECK((packet.number(13).value_or(0) & 1) == 1);
    first = false;
    if (const auto snapshot = packet.text(6))
      for (const auto& [clock_field, clock_text] : Message::parse(*snapshot).texts) {
        const Message clock = Message::parse(clock_text);
        out.clocks[*clock.number(1)] = *clock.number(2);
      }
    if (const auto data = packet.text(12))
      for (const auto& [kind, entry_text] : Message::parse(*data).texts) {
        const Message entry = Message::parse(entry_text);
        CHECK(interned[kind].emplace(*entry.number(1), *entry.text(2)).second);
      }
    if (const auto descriptor_text = packet.text(60)) {
      const Message descriptor = Message::parse(*descriptor_text);
      Track track{descriptor.text(2).value_or(""),
                  descriptor.number(5).value_or(0),
                  {},
                  descriptor.text(8).has_value()};
      if (track.parent) CHECK(out.tracks.contains(track.parent));
      if (const auto process = descriptor.text(3)) track.pid = Message::parse(*process).number(1);
      CHECK(out.tracks.emplace(*descriptor.number(1), track).second);
    }
    if (const auto event_text = packet.text(11)) {
      const Message event = Message::parse(*event_text);
      CHECK(packet.number(58) == 3u);  // CLOCK_MONOTONIC
      Event decoded{*packet.number(8), *event.number(9), *event.number(11), "",
                    event.number(47),  event.number(48), event.number(30),  {}};
      CHECK(out.tracks.contains(decoded.track));
      if (const auto iid = event.number(10)) decoded.name = interned[2].at(*iid);
      if (const auto iid = event.number(3)) CHECK(interned[1].at(*iid) == "rdma");
      for (auto [at, end] = event.texts.equal_range(4); at != end; ++at) {
        const Message annotation = Message::parse(at->second);
        const auto value = annotation.number(3) ? annotation.number(3) : annotation.number(7);
        decoded.annotations[interned[3].at(*annotation.number(1))] =
            value ? std::to_string(*value) : *annotation.text(6);
      }
      out.events.push_back(std::move(decoded));
    }
  }
  return out;
}

// Time goes up on each track, slices are balanced and do not overlap, flows lead from one post to
// one slice.
void check_sound(const Decoded& trace) {
  std::map<uint64_t, uint64_t> last_ns, open;
  std::map<uint64_t, int> sources, ends;
  for (const Event& event : trace.events) {
    CHECK(event.time_ns >= last_ns[event.track]);
    last_ns[event.track] = event.time_ns;
    if (event.type == kSliceBegin) {
      CHECK(open[event.track] == 0);
      ++open[event.track];
      CHECK_FALSE(event.name.empty());
    } else if (event.type == kSliceEnd) {
      CHECK(open[event.track] == 1);
      --open[event.track];
    } else if (event.type == kCounter) {
      CHECK(trace.tracks.at(event.track).counter);
      CHECK(event.value);
    }
    if (event.flow) ++sources[*event.flow];
    if (event.ending_flow) ++ends[*event.ending_flow];
  }
  for (const auto& [track, count] : open) CHECK(count == 0);
  CHECK((sources == ends));
  for (const auto& [flow, count] : sources) CHECK(count == 1);
}

std::shared_ptr<QueuePair> make_qp(uint32_t number, uint32_t pid) {
  auto qp = std::make_shared<QueuePair>();
  qp->device = "mlx5_0";
  qp->qp_num = number;
  qp->pid = pid;
  qp->peer_qp_num = number + 1;
  return qp;
}

Operation operation_of(const std::shared_ptr<QueuePair>& qp, uint64_t post_ns, uint64_t complete_ns,
                       uint64_t bytes) {
  Operation operation;
  operation.qp = qp;
  operation.pid = qp->pid;
  operation.tid = qp->pid;
  operation.comm = "job";
  operation.opcode = Opcode::rdma_write;
  operation.bytes = bytes;
  operation.time_ns = post_ns;
  operation.complete_ns = complete_ns;
  operation.status = 0;
  operation.complete_source = CompleteSource::poll;
  return operation;
}

std::unique_ptr<PerfettoSink> make_sink(const std::string& path) {
  auto sink = PerfettoSink::create(path, {"node1", {1000, 5'000'000, 0}});
  REQUIRE(sink.ok());
  return *std::move(sink);
}

}  // namespace

TEST_CASE("a Perfetto trace is sound: monotone, balanced, every slice with its post") {
  TemporaryFolder folder;
  std::mt19937 random(GENERATE(1u, 2u, 3u));
  auto sink = make_sink(folder / "t");
  struct Queue {
    std::shared_ptr<QueuePair> qp;
    uint64_t post_ns = 1000, complete_ns = 1000;
  };
  std::vector<Queue> queues;
  for (uint32_t i = 0; i < 5; ++i) queues.push_back({make_qp(10 + i, 100 + i / 2)});
  std::map<std::string, std::map<uint64_t, int64_t>> changes;  // truth of the bytes in flight
  for (int i = 0; i < 5000; ++i) {
    Queue& queue = queues[random() % queues.size()];
    queue.post_ns += random() % 600;
    queue.complete_ns = std::max(queue.complete_ns, queue.post_ns) + random() % 400;
    const uint64_t bytes = 1 + random() % 5000;
    sink->on_operation(operation_of(queue.qp, queue.post_ns, queue.complete_ns, bytes));
    auto& of_queue = changes["mlx5_0 qp " + std::to_string(queue.qp->qp_num)];
    of_queue[queue.post_ns] += static_cast<int64_t>(bytes);
    of_queue[queue.complete_ns] -= static_cast<int64_t>(bytes);
  }
  sink->finish();
  REQUIRE_FALSE(sink->error());
  const Decoded trace = decode(read_file(folder / "t"));
  check_sound(trace);
  const auto slices = count_of(trace, kSliceBegin), posts = count_of(trace, kInstant);
  CHECK(posts == 5000);
  CHECK(slices == 5000);

  // Bytes in flight, step by step.
  std::map<uint64_t, std::map<uint64_t, uint64_t>> counted;
  for (const Event& event : trace.events)
    if (event.type == kCounter) counted[event.track][event.time_ns] = *event.value;
  size_t counters = 0;
  for (const auto& [track, values] : counted) {
    ++counters;
    const auto& truth = changes.at(trace.tracks.at(trace.tracks.at(track).parent).name);
    int64_t sum = 0;
    for (const auto& [time_ns, change] : truth) {
      sum += change;
      const auto found = values.find(time_ns);
      REQUIRE(found != values.end());
      CHECK(static_cast<int64_t>(found->second) == sum);
    }
    CHECK(values.size() == truth.size());
  }
  CHECK(counters == 5);
}

TEST_CASE("tracks: a process, its queue pairs, ports, gaps; clocks") {
  TemporaryFolder folder;
  auto sink = make_sink(folder / "t");
  const auto qp = make_qp(17, 4711);
  sink->on_operation(operation_of(qp, 2000, 3000, 64));
  sink->on_counter(2500, "mlx5_0", 1, "out_of_sequence", 3);
  sink->on_counter(3500, "mlx5_0", 1, "out_of_sequence", 9);
  sink->on_gap(3000, 4000, "dropped", 12);
  sink->on_drops(4000, 12);
  sink->on_mark(2600, "error", "retry_exc_err on mlx5_0 qp 17");
  sink->finish();
  const Decoded trace = decode(read_file(folder / "t"));
  check_sound(trace);
  CHECK(trace.clocks.at(3) == 1000);
  CHECK(trace.clocks.at(1) == 5'000'000);
  bool has_port = false, has_gap = false, has_slice = false, has_drops = false, has_mark = false;
  for (const Event& event : trace.events) {
    const Track& track = trace.tracks.at(event.track);
    if (track.name == "mlx5_0/1 out_of_sequence" && event.time_ns == 3500)
      has_port = event.value == 9u;
    if (track.name == "records dropped" && event.time_ns == 4000) has_drops = event.value == 12u;
    if (track.name == "marks")
      has_mark =
          event.name == "error" && event.annotations.at("what") == "retry_exc_err on mlx5_0 qp 17";
    if (event.type == kSliceBegin && event.name == "dropped")
      has_gap = event.annotations.at("records") == "12";
    if (event.type == kSliceBegin && event.name == "rdma_write") {
      has_slice = true;
      CHECK(track.name == "mlx5_0 qp 17");
      CHECK(trace.tracks.at(trace.tracks.at(track.parent).parent).pid == 4711u);
      CHECK(event.time_ns == 2000);
      CHECK(event.annotations.at("bytes") == "64");
      CHECK(event.annotations.at("peer_qp_num") == "18");
    }
  }
  CHECK(has_port);
  CHECK(has_gap);
  CHECK(has_drops);
  CHECK(has_mark);
  CHECK(has_slice);
}

TEST_CASE("operations without both times show as instants") {
  TemporaryFolder folder;
  auto sink = make_sink(folder / "t");
  const auto qp = make_qp(17, 1);
  Operation pending = operation_of(qp, 2000, 0, 64);
  pending.complete_ns.reset();
  pending.status.reset();
  sink->on_operation(pending);
  Operation received = operation_of(qp, 0, 2500, 64);
  received.time_ns.reset();
  received.queue = Queue::recv;
  sink->on_operation(received);
  Operation failed = operation_of(qp, 2600, 2700, 64);
  failed.status = 12;
  sink->on_operation(failed);
  sink->finish();
  const Decoded trace = decode(read_file(folder / "t"));
  check_sound(trace);
  std::set<std::string> statuses;
  for (const Event& event : trace.events)
    if (event.annotations.contains("status")) statuses.insert(event.annotations.at("status"));
  CHECK((statuses == std::set<std::string>{"unfinished", "retry_exc_err"}));
}

TEST_CASE("deeper than the lanes, a queue still shows every post") {
  TemporaryFolder folder;
  auto sink = make_sink(folder / "t");
  const auto qp = make_qp(17, 1);
  constexpr size_t kCount = PerfettoSink::kLanes * 3;
  for (size_t i = 0; i < kCount; ++i)
    sink->on_operation(operation_of(qp, 1000 + i, 100'000 + i, 1));
  sink->finish();
  const Decoded trace = decode(read_file(folder / "t"));
  check_sound(trace);
  const auto slices = count_of(trace, kSliceBegin), posts = count_of(trace, kInstant);
  CHECK(posts == kCount);
  CHECK(slices == PerfettoSink::kLanes);
}
