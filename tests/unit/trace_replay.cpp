// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// What a trace tells on replay is what was told live: rows, objects, counters.
#include <filesystem>
#include <map>
#include <set>

#include "catch.h"
#include "csv_support.h"
#include "output/csv.h"
#include "session/session.h"
#include "trace/csv_tables.h"
#include "trace/replay.h"
#include "trace_job.h"

using namespace sigma;
using namespace sigma::test;
namespace fs = std::filesystem;

namespace {

// As attach does: to the session, which asks for names on the way, and to the trace.
struct Live {
  Live(const std::string& csv_path, TraceWriter& writer)
      : trace(writer),
        csv(*CsvSink::create(csv_path, {"node1", UtcClock(trace_meta().info.start_clock)})),
        session(*csv, {.limits = {},
                       .device_of_node =
                           [this](uint32_t rdev) {
                             const std::string name = "dev" + std::to_string(rdev);
                             trace.note_device(rdev, name);
                             return name;
                           },
                       .comm_of =
                           [this](uint32_t pid) {
                             const std::string comm = "job, \"" + std::to_string(pid) + "\"";
                             trace.note_comm(pid, comm);
                             return comm;
                           }}) {}

  void on_record(std::span<const std::byte> record) {
    session.on_record(record);
    trace.on_record(record);
  }
  void finish() {
    session.finish(0);
    csv->finish();
  }

  TraceWriter& trace;
  std::unique_ptr<CsvSink> csv;
  Session session;
};

std::string replay_csv(TraceReader& reader, const std::string& path) {
  const TraceInfo& info = reader.meta().info;
  auto csv = *CsvSink::create(path, {info.node.node, UtcClock(info.start_clock)});
  Replay replay(reader, *csv);
  replay.run();
  csv->finish();
  return read_file(path);
}

}  // namespace

TEST_CASE("CSV by replay equals live CSV, row for row") {
  TemporaryFolder folder;
  auto writer = make_writer(folder / "t");
  Live live(folder / "live.csv", *writer);
  run_trace_job({.operations = 20'000, .errors_from = 15'000}, GENERATE(1u, 2u),
                [&](auto record) { live.on_record(record); });
  live.finish();
  Counters attacher;
  attacher.probe_hits = 12345;
  REQUIRE(writer->finish(trace_meta().info, attacher).ok());

  auto reader = TraceReader::open(folder / "t");
  REQUIRE(reader.ok());
  const std::string expected = read_file(folder / "live.csv");
  CHECK(parse_csv(expected).size() > 19'000);
  CHECK((replay_csv(**reader, folder / "replay.csv") == expected));
  // Once more: a replay leaves no trace.
  CHECK((replay_csv(**reader, folder / "again.csv") == expected));

  struct NoSink final : OperationSink {
    void on_operation(const Operation&) override {}
  } sink;
  Replay replay(**reader, sink);
  replay.run();
  const TraceInfo info = replay.info();
  for (const CounterInfo& counter : kCounters) {
    INFO(counter.name);
    CHECK(info.counters.*counter.value ==
          live.session.counters().*counter.value + attacher.*counter.value);
  }
  CHECK(info.queue_pairs.size() == live.session.queue_pairs().size());
  CHECK(info.processes.size() == live.session.processes().size());
}

TEST_CASE("a hole in the trace is told, and nothing is matched across it") {
  TemporaryFolder folder;
  auto writer = make_writer(folder / "t");
  uint64_t count = 0, posts = 0;
  run_trace_job({.operations = 20'000}, 3, [&](auto record) {
    writer->on_record(record);
    posts += reinterpret_cast<const sigma_header*>(record.data())->type == SIGMA_POST;
    if (++count % 2000 == 0) writer->flush();
  });
  REQUIRE(writer->finish(trace_meta().info, {}).ok());
  // One packet out of the middle of one stream.
  const std::string stream = folder / "t/ctf/cpu1";
  std::string bytes = read_file(stream);
  size_t at = 0;
  const auto size_at = [&](size_t offset) {
    PacketHead head;
    std::memcpy(&head, bytes.data() + offset, sizeof head);
    return static_cast<size_t>(head.packet_bits / 8);
  };
  for (int i = 0; i < 5; ++i) at += size_at(at);
  bytes.erase(at, size_at(at));
  std::ofstream(stream, std::ios::binary) << bytes;

  struct Sink final : OperationSink {
    void on_operation(const Operation& operation) override {
      ++operations;
      // A completion of the other half of the job has another wr_id than its post had.
      mismatched += operation.time_ns && operation.complete_ns && operation.wr_id &&
                    !(operation.flags & kAmbiguous) && *operation.complete_ns < *operation.time_ns;
    }
    uint64_t operations = 0, mismatched = 0;
  } sink;
  auto reader = TraceReader::open(folder / "t");
  REQUIRE(reader.ok());
  Replay replay(**reader, sink);
  replay.run();
  CHECK(sink.mismatched == 0);
  const TraceInfo info = replay.info();
  CHECK(info.counters.trace_missing > 100);
  // A completion whose post is missing is an operation without one.
  CHECK(sink.operations <= posts + info.counters.trace_missing);
  CHECK(sink.operations >= posts - info.counters.trace_missing);
  REQUIRE_FALSE(replay.gaps().empty());
  uint64_t missing = 0;
  for (const TraceGap& gap : replay.gaps()) {
    CHECK(gap.kind == TraceGap::Kind::missing);
    CHECK(gap.begin_ns <= gap.end_ns);
    missing += gap.records;
  }
  CHECK(missing == info.counters.trace_missing);
}

TEST_CASE("tables of objects, gaps and counters") {
  TemporaryFolder folder;
  auto writer = make_writer(folder / "t");
  run_trace_job({.operations = 100}, 4, [&](auto record) { writer->on_record(record); });
  sigma_mr_seen mr{};
  mr.h = {3'000'000'000, SIGMA_MR_SEEN, sizeof mr, 0, 100, 100};
  mr.context = 0x1000;
  mr.addr = 0xabc000;
  mr.length = 4096;
  mr.lkey = 0x77;
  writer->on_record(bytes_of(mr));
  sigma_window window{};
  for (const uint32_t kind : {SIGMA_WINDOW_PAUSE, SIGMA_WINDOW_RESUME}) {
    window.h = {uint64_t{3'000'000'000} + kind * 1000, SIGMA_WINDOW, sizeof window, 0, 100, 0};
    window.kind = kind;
    writer->on_record(bytes_of(window));
  }
  sigma_ring_gap ring_gap{};
  ring_gap.h = {3'000'003'000, SIGMA_RING_GAP, sizeof ring_gap, 9, 100, 0};
  ring_gap.begin_ns = 3'000'002'000;
  ring_gap.end_ns = 3'000'003'000;
  ring_gap.context = 0x1000;
  ring_gap.number = 500;
  ring_gap.first = 65'530;
  ring_gap.count = 12;
  ring_gap.kind = SIGMA_RING_SEND;
  ring_gap.reason = SIGMA_GAP_LAPPED;
  writer->on_record(bytes_of(ring_gap));
  writer->note_dropped(5);
  writer->note_counter(3'000'000'500, "mlx5_0", 1, "out_of_sequence", 17);
  REQUIRE(writer->finish(trace_meta().info, {}).ok());

  auto reader = TraceReader::open(folder / "t");
  REQUIRE(reader.ok());
  struct NoSink final : OperationSink {
    void on_operation(const Operation&) override {}
  } sink;
  const TableContext context{"node1", UtcClock(trace_meta().info.start_clock)};
  const auto table = [&](const std::string& name, const auto& write) {
    const std::string path = folder / (name + ".csv");
    RowFile file = *RowFile::create(path);
    write(file);
    file.finish();
    return parse_csv(read_file(path));
  };
  Replay replay(**reader, sink);
  const auto counters = table("counters", [&](RowFile& file) {
    write_counters_header(file);
    replay.set_on_counter([&](const NoteCounter& sample) { write_counter(file, context, sample); });
    replay.run();
  });
  CHECK((counters == std::vector<CsvRow>{{"time_ns", "node", "device", "port", "counter", "value"},
                                         {"1700000002000000500", "node1", "mlx5_0", "1",
                                          "out_of_sequence", "17"}}));
  const TraceInfo info = replay.info();
  CHECK(info.counters.records_dropped == 5);
  const auto qps = table("qps", [&](RowFile& f) { write_qps(f, context, info.queue_pairs); });
  REQUIRE(qps.size() == 1 + 8);
  const auto column = [&](const std::string& name) {
    return static_cast<size_t>(std::find(qps[0].begin(), qps[0].end(), name) - qps[0].begin());
  };
  CHECK(qps[1][column("qp_type")] == "rc");
  CHECK(qps[1][column("sl")].empty());  // unknown, not 0
  for (const CsvRow& row : qps) CHECK(row.size() == qps[0].size());
  const auto mrs = table("mrs", [&](RowFile& f) { write_mrs(f, context, info.memory_regions); });
  REQUIRE(mrs.size() == 2);
  CHECK(mrs[1][4] == "0xabc000");
  CHECK(mrs[1][5] == "4096");
  const auto gaps = table("gaps", [&](RowFile& f) { write_gaps(f, context, replay.gaps()); });
  REQUIRE(gaps.size() == 4);
  std::map<std::string, CsvRow> kinds;
  for (size_t i = 1; i < gaps.size(); ++i) kinds[gaps[i][3]] = gaps[i];
  REQUIRE((kinds.contains("dropped") && kinds.contains("paused") && kinds.contains("ring")));
  CHECK((kinds["ring"] == CsvRow{"1700000002000002000", "1700000002000003000", "node1", "ring", "100", "", "send",
                                 "500", "65530", "12", "lapped", ""}));
}
