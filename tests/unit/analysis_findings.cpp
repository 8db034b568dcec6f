// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// The report against jobs with known truth: culprits are named, and where there is nothing to find
// nothing is found.
#include "analysis_support.h"

using namespace sigma;
using namespace sigma::test;

TEST_CASE("uniform traffic gives no finding") {
  Job job(GENERATE(10u, 11u, 12u, 13u));
  add_uniform_traffic(job, 16, 2000);
  const Report report = report_of(job);
  for (const ReportFinding& finding : report.verdict) FAIL_CHECK(finding.text);
  CHECK(report.stragglers.empty());
  CHECK(report.barriers.epochs == 0);
}

TEST_CASE("a slow queue pair is named, and nobody else") {
  Job job(20);
  add_uniform_traffic(job, 15, 1000);
  const size_t slow = job.add_qp({.peer = 1});  // its peer has good ones, too
  job.stream(slow, kStart, 1000, 65536, 3 * 1310, 8);
  const Report report = report_of(job);
  const auto found = findings(report, FindingKind::straggler);
  REQUIRE(found.size() == 1);
  CHECK(found[0].subject == "mlx5_0 qp 1015");
  CHECK(found[0].ratio == Approx(3).epsilon(0.1));
}

TEST_CASE("a slow peer is named where all queue pairs to it are slow") {
  Job job(21);
  for (size_t i = 0; i < 16; ++i) {
    const auto peer = static_cast<uint8_t>(1 + i % 4);
    const size_t qp = job.add_qp({.peer = peer});
    job.stream(qp, kStart, 1000, 65536, peer == 3 ? 4000 : 1310, 8);
  }
  const Report report = report_of(job);
  const auto found = findings(report, FindingKind::straggler);
  REQUIRE(found.size() == 1);
  CHECK(found[0].subject == "fe80::3");
}

TEST_CASE("the majority is never named") {
  Job job(22);
  for (size_t i = 0; i < 9; ++i)
    job.stream(job.add_qp({.peer = static_cast<uint8_t>(1 + i)}), kStart, 500, 65536,
               i < 3 ? 1310 : 5000, 8);
  for (const ReportFinding& finding : findings(report_of(job), FindingKind::straggler))
    FAIL_CHECK(finding.text);
}

TEST_CASE("small messages with long latencies are found by latency") {
  Job job(23);
  for (size_t i = 0; i < 8; ++i) {
    const size_t qp = job.add_qp({.peer = static_cast<uint8_t>(1 + i)});
    for (unsigned n = 0; n < 500; ++n)
      job.post(qp, kStart + n * 100'000,
               i == 5 ? job.between(18'000, 22'000) : job.between(4000, 6000), 64, Opcode::send);
  }
  const auto found = findings(report_of(job), FindingKind::straggler);
  REQUIRE(found.size() == 1);
  CHECK(found[0].subject == "fe80::6");
  CHECK(found[0].ratio == Approx(4).epsilon(0.1));
}

TEST_CASE("a path that fell and stayed low is found, one that dipped is not") {
  Job job(24);
  const bool recovers = GENERATE(false, true);
  for (size_t i = 0; i < 8; ++i) {
    const size_t qp = job.add_qp({.peer = static_cast<uint8_t>(1 + i)});
    uint64_t now = kStart;
    for (int second = 0; second < 60; ++second) {
      const bool low = i == 2 && (recovers ? second >= 30 && second < 36 : second >= 40);
      const uint64_t end = kStart + uint64_t{1'000'000'000} * static_cast<uint64_t>(second + 1);
      now = std::max(now, job.stream(qp, now, 40, 1 << 20, low ? 60'000 : 25'000, 4, 0.2));
      now = std::max(now, end);
    }
  }
  const auto found = findings(report_of(job), FindingKind::decline);
  if (recovers) {
    CHECK(found.empty());
  } else {
    REQUIRE(found.size() == 1);
    CHECK(found[0].subject == "fe80::3");
    CHECK(found[0].ratio == Approx(60.0 / 25).epsilon(0.1));
  }
}

TEST_CASE("a job that goes over to smaller requests is no failing path") {
  Job job(25);
  for (size_t i = 0; i < 6; ++i) {
    const size_t qp = job.add_qp({.peer = static_cast<uint8_t>(1 + i)});
    uint64_t now = kStart;
    for (int part = 0; part < 60; ++part)
      now = 500'000'000 +
            job.stream(qp, now, 40, part < 30 ? 1 << 20 : 8192, part < 30 ? 25'000 : 1000, 4);
  }
  CHECK(findings(report_of(job), FindingKind::decline).empty());
}

TEST_CASE("the matrix and its skew equal the truth") {
  Job job(30);
  const bool uniform = GENERATE(false, true);
  auto hosts =
      Hosts::parse("fe80::1 hostA 1\nfe80::2 hostB 2 # second\n\nfe80:0::3 hostC 3\n", "hosts");
  REQUIRE(hosts.ok());
  ReportContext context;
  context.hosts = *hosts;
  context.ranks[{0, 100}] = 0;
  const uint64_t weights[] = {100, uniform ? 98u : 213u, uniform ? 103u : 120u};
  std::map<std::string, uint64_t> truth;
  for (size_t i = 0; i < 3; ++i) {
    const size_t qp = job.add_qp({.peer = static_cast<uint8_t>(1 + i)});
    job.stream(qp, kStart, 10 * weights[i], 4096, 500, 4);
    truth[std::string("host") + static_cast<char>('A' + i)] = 10 * weights[i] * 4096;
  }
  const Report report = report_of(job, context);
  REQUIRE(report.matrices.size() == 3);
  CHECK(report.matrices[0].name == "node");
  for (const auto& flow : report.matrices[0].flows) {
    CHECK(flow.from == "node0");
    CHECK(flow.bytes == truth[flow.to]);
  }
  CHECK(report.matrices[1].name == "rank");
  CHECK(report.matrices[1].flows.size() == 3);
  CHECK(report.matrices[1].flows[0].from == "0");
  REQUIRE(report.matrices[0].skew);
  const double mean = static_cast<double>(weights[0] + weights[1] + weights[2]) / 3;
  const auto [least, most] = std::minmax({weights[0], weights[1], weights[2]});
  CHECK(report.matrices[0].skew->max_to_mean == Approx(static_cast<double>(most) / mean));
  CHECK(report.matrices[0].skew->max_to_min ==
        Approx(static_cast<double>(most) / static_cast<double>(least)));
  const auto found = findings(report, FindingKind::skew);
  if (uniform) {
    CHECK(found.empty());
  } else {
    REQUIRE(found.size() == 1);
    CHECK(found[0].subject == "hostB");
    CHECK(found[0].ratio == Approx(2.13));
  }
}

TEST_CASE("one node: a skew among its NICs' pairs is not lost in their sum") {
  Job job(31);
  const bool uniform = GENERATE(false, true);
  // Each NIC sends to the peers of the two others; what goes to and from one of them is 2.13 times.
  for (uint8_t from = 0; from < 3; ++from)
    for (uint8_t to = 0; to < 3; ++to) {
      if (from == to) continue;
      const bool hot = !uniform && (from == 2 || to == 2);
      const size_t qp = job.add_qp(
          {.peer = static_cast<uint8_t>(1 + to), .device = "mlx5_" + std::to_string(from)});
      job.stream(qp, kStart, hot ? 2130 : 1000, 4096, 500, 4);
    }
  const auto found = findings(report_of(job), FindingKind::skew);
  REQUIRE(found.size() == (uniform ? 0 : 1));
  if (!uniform) CHECK(found[0].ratio == Approx(2.13));
}

TEST_CASE("pending, oldest first, and a hang in the verdict") {
  Job job(50);
  const size_t qp = job.add_qp({.peer = 9});
  job.stream(qp, kStart, 100, 4096, 1000, 4);
  for (unsigned i = 0; i < 3; ++i) {
    Operation& operation = job.post(qp, kStart + 1'000'000 * (3 - i), 0, 4096);
    operation.time_ns = kStart + 1'000'000 * (3 - i);
    operation.complete_ns.reset();
    operation.latency_ns.reset();
    operation.status.reset();
  }
  ReportContext context;
  context.end_ns = kStart + 5'000'000'000;
  const Report report = report_of(job, context);
  CHECK(report.totals.unfinished == 3);
  REQUIRE(report.pending.size() == 3);
  CHECK(*report.pending[0].operation.time_ns == kStart + 1'000'000);
  CHECK(*report.pending[0].age_ns == 4'999'000'000);
  CHECK(report.pending[0].peer == "fe80::9 qp 5000");
  CHECK(findings(report, FindingKind::hang).size() == 1);
}

TEST_CASE("a queue whose reader says that it hangs is named with what is outstanding") {
  Job job(52);
  const size_t qp = job.add_qp({.peer = 9}), other = job.add_qp({.peer = 9});
  job.stream(qp, kStart, 100, 4096, 1000, 4);
  job.stream(other, kStart, 100, 4096, 1000, 4);
  for (unsigned i = 0; i < 3; ++i) {
    Operation& operation = job.post(qp, kStart + 1'000'000 * (1 + i), 0, 4096);
    operation.complete_ns.reset();
    operation.latency_ns.reset();
    operation.status.reset();
  }
  ReportContext context;
  context.end_ns = kStart + 5'000'000'000;
  const bool hung = GENERATE(false, true);
  for (const size_t each : {qp, other}) {
    auto told = std::make_shared<QueuePair>(job.attributes(each));
    told->observed.emplace();
    told->observed->posted = 103;
    if (hung && each == qp) told->observed->hung = true;
    context.queue_pairs.emplace_back(0, told);
  }
  const auto found = findings(report_of(job, context), FindingKind::hang);
  REQUIRE(found.size() == 1);  // the request that is pending, or the queue that hangs
  CHECK((found[0].text.find("hangs: 103 blocks posted by a GPU, 3 requests") !=
         std::string::npos) == hung);
}

TEST_CASE("errors: the first cause, flushes apart") {
  Job job(51);
  add_uniform_traffic(job, 4, 100);
  const size_t qp = job.add_qp({.peer = 2});
  for (unsigned i = 0; i < 10; ++i) {
    Operation& operation = job.post(qp, kStart + i, 1000 + i, 65536);
    operation.status = i == 0 ? 12u : 5u;  // retry_exc_err, then flushes
    if (i == 0) operation.vendor_err = 129;
  }
  const Report report = report_of(job);
  CHECK(report.totals.errors == 1);
  CHECK(report.totals.flushed == 9);
  REQUIRE(report.errors.size() == 1);
  REQUIRE(report.errors[0].first);
  CHECK(report.errors[0].first->status == 12);
  CHECK(report.errors[0].first->vendor_err == 129u);
  REQUIRE_FALSE(report.verdict.empty());
  CHECK(report.verdict[0].kind == FindingKind::error);
  CHECK_THAT(report.verdict[0].text, ContainsSubstring("retry_exc_err"));
  CHECK_THAT(report.verdict[0].text, ContainsSubstring("no answer after all retries"));
}

TEST_CASE("configuration: the odd ones are shown, agreement is not") {
  Job job(52);
  add_uniform_traffic(job, 8, 50);
  ReportContext context;
  for (size_t i = 0; i < 8; ++i)
    context.queue_pairs.emplace_back(0, std::make_shared<QueuePair>(job.attributes(i)));
  CHECK(report_of(job, context).config.empty());
  auto odd = std::make_shared<QueuePair>(job.attributes(5));
  odd->path_mtu = 1024;
  context.queue_pairs[5].second = odd;
  const Report report = report_of(job, context);
  REQUIRE(report.config.size() == 1);
  CHECK(report.config[0].attribute == "path_mtu_bytes");
  REQUIRE(report.config[0].values.size() == 2);
  CHECK(report.config[0].values[0].queue_pairs == 7);
  CHECK(report.config[0].values[1].text == "1024");
  const auto found = findings(report, FindingKind::config);
  REQUIRE(found.size() == 1);
  CHECK(found[0].subject == "mlx5_0/1005");
}

TEST_CASE("rails: balance among devices") {
  Job job(53);
  const bool balanced = GENERATE(true, false);
  for (size_t i = 0; i < 8; ++i) {
    const bool first = i % 2 == 0;
    const size_t qp =
        job.add_qp({.peer = static_cast<uint8_t>(1 + i), .device = first ? "mlx5_0" : "mlx5_1"});
    job.stream(qp, kStart, balanced || first ? 600 : 200, 65536, 1310, 4);
  }
  const Report report = report_of(job);
  REQUIRE(report.rails.size() == 2);
  REQUIRE(report.rail_skew);
  CHECK(report.rail_skew->max_to_min == Approx(balanced ? 1 : 3));
  CHECK(findings(report, FindingKind::rail).size() == (balanced ? 0 : 1));
  CHECK(findings(report, FindingKind::skew).empty());  // of the same cause
}

TEST_CASE("rails that are out of balance by one pair are told with this pair") {
  Job job(54);
  const bool too_much = GENERATE(true, false);
  // One pair has four times as much as the others, or a quarter, and with it its NIC.
  for (uint8_t from = 0; from < 2; ++from)
    for (uint8_t to = 0; to < 3; ++to) {
      const bool odd = from == 0 && to == 1;
      const size_t qp = job.add_qp(
          {.peer = static_cast<uint8_t>(1 + to), .device = "mlx5_" + std::to_string(from)});
      job.stream(qp, kStart, !odd ? 400 : too_much ? 1600 : 100, 65536, 1310, 4);
    }
  const Report report = report_of(job);
  CHECK(findings(report, FindingKind::rail).size() == 0);
  const auto skew = findings(report, FindingKind::skew);
  REQUIRE(skew.size() == 1);
  CHECK(skew[0].ratio == Approx(4));
  REQUIRE(report.rail_skew);
  CHECK(report.rail_skew->max_to_min == Approx(too_much ? 2 : 4.0 / 3));
  CHECK((skew[0].text.find("; so mlx5_0/1 sent") != std::string::npos) == too_much);
}
