// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// The report against jobs with known truth: its figures, groups and tables equal it.
#include <nlohmann/json.hpp>

#include "analysis_support.h"

using namespace sigma;
using namespace sigma::test;

TEST_CASE("totals and groups equal the truth, percentiles within 1%") {
  Job job(GENERATE(1u, 2u, 3u));
  constexpr Opcode kOpcodes[] = {Opcode::send, Opcode::rdma_write, Opcode::rdma_read};
  std::map<size_t, std::vector<uint64_t>> latencies;
  std::map<std::string, uint64_t> bytes_by_peer, bytes_by_opcode, count_by_size;
  std::map<uint32_t, uint64_t> count_by_pid;
  uint64_t bytes = 0;
  for (uint8_t i = 0; i < 6; ++i)
    job.add_qp({.pid = 100u + i % 2, .peer = static_cast<uint8_t>(1 + i % 3)});
  for (int i = 0; i < 30'000; ++i) {
    const size_t qp = job.random()() % 6;
    const auto latency = static_cast<uint64_t>(std::exp(5 + 9 * job.uniform()));
    const uint64_t size = uint64_t{1} << job.between(0, 22);
    const Opcode opcode = kOpcodes[job.random()() % 3];
    const Operation& operation =
        job.post(qp, kStart + 1000u * static_cast<unsigned>(i), latency, size, opcode);
    latencies[qp].push_back(*operation.latency_ns);
    bytes += size;
    bytes_by_peer[gid_text(static_cast<uint8_t>(1 + qp % 3))] += size;
    bytes_by_opcode[std::string(to_string(opcode))] += size;
    ++count_by_size[size_class_name(size_class(size))];
    ++count_by_pid[100 + qp % 2];
  }
  const Report report = report_of(job);
  CHECK(report.totals.operations == 30'000);
  CHECK(report.totals.bytes == bytes);
  CHECK(report.queue_pairs == 6);
  CHECK(report.peers == 3);
  CHECK(report.processes == 2);
  std::vector<uint64_t> all;
  for (const auto& [qp, values] : latencies) {
    all.insert(all.end(), values.begin(), values.end());
    const Group* group = find_group(report, GroupBy::qp, "qp " + std::to_string(1000 + qp));
    REQUIRE(group);
    CHECK(group->tally.operations == values.size());
    for (const double fraction : {0.5, 0.95, 0.99})
      check_percentile(group->tally.latency_ns.percentile(fraction),
                       exact_percentile(values, fraction));
    CHECK(group->tally.latency_ns.max() == *std::max_element(values.begin(), values.end()));
  }
  for (const double fraction : {0.5, 0.95, 0.99})
    check_percentile(report.totals.latency_ns.percentile(fraction),
                     exact_percentile(all, fraction));
  for (const auto& [peer, truth] : bytes_by_peer)
    CHECK(find_group(report, GroupBy::peer, peer)->tally.bytes == truth);
  for (const auto& [opcode, truth] : bytes_by_opcode)
    CHECK(find_group(report, GroupBy::opcode, opcode)->tally.bytes == truth);
  for (const Group& group : report.groups.at(GroupBy::size))
    CHECK(group.tally.operations == count_by_size[group.name]);
  for (const auto& [pid, truth] : count_by_pid)
    CHECK(find_group(report, GroupBy::process, std::to_string(pid))->tally.operations == truth);
}

TEST_CASE("depth is what was outstanding at once") {
  Job job(4);
  const size_t qp = job.add_qp({});
  for (int i = 0; i < 3000; ++i)
    job.post(qp, kStart + 500u * static_cast<unsigned>(i) + job.between(0, 400),
             job.between(100, 40'000), 8);
  uint32_t deepest = 0;
  double outstanding = 0;
  uint64_t first = UINT64_MAX, last = 0;
  for (const Operation& operation : job.operations) {
    uint32_t depth = 0;
    for (const Operation& other : job.operations)
      depth += *other.wr_id <= *operation.wr_id && *other.complete_ns > *operation.time_ns;
    deepest = std::max(deepest, depth);
    outstanding += static_cast<double>(*operation.latency_ns);
    first = std::min(first, *operation.time_ns);
    last = std::max(last, *operation.complete_ns);
  }
  const Report report = report_of(job);
  CHECK(report.totals.depth_max == deepest);
  REQUIRE(report.totals.depth_mean());
  CHECK(*report.totals.depth_mean() == Approx(outstanding / static_cast<double>(last - first)));
}

TEST_CASE("a path's throughput is found within 1.2%, pauses of the job aside") {
  Job job(5);
  const std::map<size_t, double> truth = {{0, 50e9}, {1, 25e9}, {2, 12.5e9}};  // bytes/s
  for (const auto& [qp, rate] : truth) {
    job.add_qp({.peer = static_cast<uint8_t>(1 + qp)});
    uint64_t now = kStart;
    for (int burst = 0; burst < 20; ++burst) {
      now =
          job.stream(qp, now, 200, 1 << 20, static_cast<uint64_t>((1 << 20) / rate * 1e9), 16, 0.1);
      now += job.between(1'000'000, 50'000'000);  // computing
    }
  }
  const Report report = report_of(job);
  for (const auto& [qp, rate] : truth) {
    const Group* group = find_group(report, GroupBy::qp, "qp " + std::to_string(1000 + qp));
    REQUIRE(group);
    CHECK(group->tally.path_bytes_per_s() == Approx(rate).epsilon(0.012));
  }
}

TEST_CASE("reads count as data from the peer") {
  Job job(31);
  job.post(job.add_qp({.peer = 7}), kStart, 1000, 4096, Opcode::rdma_read);
  const Report report = report_of(job);
  REQUIRE_FALSE(report.matrices.empty());
  CHECK(report.matrices[0].flows[0].to == "node0");
  CHECK(report.matrices[0].flows[0].bytes == 4096);
}

TEST_CASE("what a receive waits is no latency of its queue pair, peer or size") {
  Job job(57);
  const size_t qp = job.add_qp({});
  uint64_t now = kStart;
  for (int i = 0; i < 100; ++i, now += 20'000'000) {
    job.post(qp, now, 2000, 4096);
    Operation& receive = job.post(qp, now, 10'000'000, 4096, Opcode::recv);
    receive.queue = Queue::recv;
  }
  const Report report = report_of(job);
  for (const GroupBy by : {GroupBy::qp, GroupBy::peer, GroupBy::device, GroupBy::process, GroupBy::size}) {
    REQUIRE(report.groups.at(by).size() == 1);
    const Tally& tally = report.groups.at(by)[0].tally;
    CHECK(tally.operations == 200);
    CHECK(tally.latency_ns.count() == 100);
  }
  CHECK(report.totals.latency_ns.count() == 100);
  for (const Group& group : report.groups.at(GroupBy::opcode)) CHECK(group.tally.latency_ns.count() == 100);
}

TEST_CASE("counters of data count words: people are told bytes") {
  PortCounterTotals totals;
  totals.add(0, "mlx5_0", 1, "port_xmit_data", 1'000'000'000, 0);
  totals.add(0, "mlx5_0", 1, "port_xmit_data", 2'000'000'000, 1 << 20);
  Job job(58);
  job.post(job.add_qp({}), kStart, 1000, 4096);
  ReportContext context;
  context.port_counters = totals.changes();
  const std::string text = report_text(report_of(job, context), {}, {});
  INFO(text);
  CHECK(text.find("4.00 MiB") != std::string::npos);
}

TEST_CASE("of one thing the totals say one") {
  Job job(59);
  job.post(job.add_qp({}), kStart, 1000, 4096);
  const std::string one = report_text(report_of(job, {}), {}, {});
  INFO(one);
  CHECK(one.find("  1 operation, 4.00 KiB, in ") != std::string::npos);
  CHECK(one.find("; 1 queue pair, 1 peer, 1 process\n") != std::string::npos);
  Job more(60);
  add_uniform_traffic(more, 4, 200);
  const std::string many = report_text(report_of(more, {}), {}, {});
  INFO(many);
  CHECK(many.find("  800 operations, ") != std::string::npos);
  CHECK(many.find(" queue pairs, ") != std::string::npos);
}

TEST_CASE("rows beyond the limit are counted in one") {
  Job job(54);
  for (uint32_t i = 0; i < 50; ++i)
    job.post(job.add_qp({.peer = static_cast<uint8_t>(i)}), kStart, 1000, 100);
  Rows rows(Rows::Limits{.rows = 10, .pending = 4});
  rows.begin_trace("node0", UtcClock({0, 0, 0}));
  job.emit(rows);
  rows.end_trace();
  CHECK(rows.rows().size() == 11);
  const Report report = make_report(rows, {});
  CHECK(report.totals.operations == 50);
  CHECK(report.totals.bytes == 5000);
}

TEST_CASE("the report as text and as JSON") {
  Job job(55);
  add_uniform_traffic(job, 4, 200);
  ReportContext context;
  context.coverage = {"loss: records dropped: 3"};
  context.lost_records = 3;
  const Report report = report_of(job, context);
  const std::string text = report_text(report, {}, {});
  INFO(text);
  CHECK(text.find("Coverage") == 0);
  CHECK(text.find("loss: records dropped: 3") < text.find("Verdict"));
  CHECK(text.find("Verdict") < text.find("Totals"));
  CHECK(text.find("By qp") != std::string::npos);
  ReportSections only;
  only.by = {GroupBy::opcode};
  const std::string less = report_text(report, only, {});
  CHECK(less.find("By opcode") != std::string::npos);
  CHECK(less.find("By qp") == std::string::npos);
  CHECK(less.find("\033") == std::string::npos);

  const auto json = nlohmann::json::parse(report_json(report));
  CHECK(json["totals"]["operations"] == 800);
  CHECK(json["verdict"][0]["kind"] == "loss");
  CHECK(json["by"]["qp"].size() == 4);
  CHECK(json["by"]["qp"][0]["latency"]["p50_ns"].is_number_unsigned());
}

TEST_CASE("a hosts file that cannot be understood names the line") {
  for (const char* text :
       {"fe80::1\n", "nonsense host\n", "fe80::1 host x\n", "fe80::1 host 1 more\n"}) {
    const auto hosts = Hosts::parse(std::string("# comment\n") + text, "hosts");
    REQUIRE_FALSE(hosts.ok());
    CHECK_THAT(hosts.error().what, ContainsSubstring("hosts:2:"));
  }
  const auto hosts = Hosts::parse("17 node3\n", "hosts");
  REQUIRE(hosts.ok());
  REQUIRE((*hosts).find({std::nullopt, 17}));
  CHECK((*hosts).find({std::nullopt, 17})->name == "node3");
}
