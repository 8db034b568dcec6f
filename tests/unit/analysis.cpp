// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// The report against jobs with known truth: figures equal it, culprits are named, and where there
// is nothing to find nothing is found.
#include <nlohmann/json.hpp>

#include <random>

#include "analysis/report.h"
#include "analysis_synthetic.h"
#include "catch.h"

using namespace sigma;
using namespace sigma::test;

namespace {

constexpr uint64_t kStart = 1'000'000'000'000;

const Group* find_group(const Report& report, GroupBy by, const std::string& part) {
  for (const Group& group : report.groups.at(by))
    if (group.name.find(part) != std::string::npos) return &group;
  return nullptr;
}

std::vector<ReportFinding> findings(const Report& report, FindingKind kind) {
  std::vector<ReportFinding> out;
  for (const ReportFinding& finding : report.verdict)
    if (finding.kind == kind) out.push_back(finding);
  return out;
}

Report report_of(const Job& job, const ReportContext& context = {}) {
  return make_report(*rows_of(job), context);
}

void check_percentile(uint64_t measured, uint64_t truth) {
  INFO(measured << " against " << truth);
  CHECK(static_cast<double>(measured) == Approx(static_cast<double>(truth)).epsilon(0.01));
}

// All QPs alike, to four peers over one device.
void add_uniform_traffic(Job& job, size_t qps, size_t operations) {
  for (size_t i = 0; i < qps; ++i) {
    const size_t qp = job.add_qp({.peer = static_cast<uint8_t>(1 + i % 4)});
    job.stream(qp, kStart + job.between(0, 100'000), operations, 65536, 1310, 8, 0.4);
  }
}

}  // namespace

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

TEST_CASE("reads count as data from the peer") {
  Job job(31);
  job.post(job.add_qp({.peer = 7}), kStart, 1000, 4096, Opcode::rdma_read);
  const Report report = report_of(job);
  REQUIRE_FALSE(report.matrices.empty());
  CHECK(report.matrices[0].flows[0].to == "node0");
  CHECK(report.matrices[0].flows[0].bytes == 4096);
}

namespace {

struct BarrierTruth {
  std::vector<uint64_t> spreads;
  std::map<uint32_t, uint64_t> last;  // by pid
};

// `ranks` processes, each with a queue pair to every other; between barriers they compute and send.
BarrierTruth add_barriers(Job& job, uint32_t ranks, int epochs, uint32_t laggard) {
  std::vector<std::vector<size_t>> qps(ranks);
  for (uint32_t rank = 0; rank < ranks; ++rank)
    for (uint32_t peer = 0; peer < ranks; ++peer)
      if (peer != rank)
        qps[rank].push_back(
            job.add_qp({.pid = 100 + rank, .peer = static_cast<uint8_t>(1 + peer)}));
  BarrierTruth truth;
  uint64_t now = kStart;
  for (int epoch = 0; epoch < epochs; ++epoch) {
    uint64_t first = UINT64_MAX, last = 0;
    uint32_t last_rank = 0;
    for (uint32_t rank = 0; rank < ranks; ++rank) {
      for (const size_t qp : qps[rank]) job.post(qp, now, 5000, 65536);
      uint64_t arrival = now + 20'000 + job.between(0, 5000);
      if (rank == laggard && job.uniform() < 0.8) arrival += 30'000;
      if (arrival > last) {
        last = arrival;
        last_rank = rank;
      }
      first = std::min(first, arrival);
      for (const size_t qp : qps[rank]) job.post(qp, arrival++, 2000, 8);
    }
    truth.spreads.push_back(last - first);
    ++truth.last[100 + last_rank];
    now = last + 10'000;
  }
  return truth;
}

}  // namespace

TEST_CASE("barriers: epochs, spread and who was last equal the truth") {
  Job job(40);
  const BarrierTruth truth = add_barriers(job, 8, 500, 3);
  const Report report = report_of(job);
  CHECK(report.barriers.epochs == 500);
  for (const double fraction : {0.5, 0.99})
    check_percentile(report.barriers.spread_ns.percentile(fraction),
                     exact_percentile(truth.spreads, fraction));
  for (const BarrierRank& rank : report.barriers.ranks) {
    const auto last = truth.last.find(rank.pid);
    CHECK(rank.last == (last == truth.last.end() ? 0 : last->second));
  }
  REQUIRE_FALSE(report.barriers.widest.empty());
  CHECK(report.barriers.widest[0].spread_ns ==
        *std::max_element(truth.spreads.begin(), truth.spreads.end()));
  const auto found = findings(report, FindingKind::barrier);
  REQUIRE(found.size() == 1);
  CHECK(found[0].subject.find("103") != std::string::npos);
}

TEST_CASE("a barrier without a laggard names nobody") {
  Job job(41);
  add_barriers(job, 8, 300, 99);
  const Report report = report_of(job);
  CHECK(report.barriers.epochs == 300);
  CHECK(findings(report, FindingKind::barrier).empty());
}

TEST_CASE("barriers are found by posts that are known within intervals, as long as these tell") {
  constexpr uint64_t kRounds = 40, kLate = 40'000'000;  // the last of four arrives 40 ms late
  // `blur`: what one look can be wrong by; where a post stands in its look's interval is drawn.
  const auto epochs = [](uint64_t blur, uint64_t late_ns) {
    BarrierFinder finder;
    std::mt19937_64 random(5);
    uint64_t at = 1'000'000'000;
    for (uint64_t n = 0; n < kRounds; ++n) {
      uint64_t last = at;
      for (uint32_t pid = 1; pid <= 4; ++pid) {
        const uint64_t post = at + pid * 1000 + (pid == 4 ? late_ns : 0);
        last = std::max(last, post);
        finder.on_signal(0, pid, n, post + random() % (2 * blur + 1) - blur, blur);
      }
      at = last + 10'000;  // the others begin the next round at once
    }
    return finder.find();
  };
  CHECK(epochs(0, kLate).epochs == kRounds);
  const Barriers blurred = epochs(5'000'000, kLate);
  CHECK(blurred.epochs == kRounds);
  for (const BarrierRank& rank : blurred.ranks) CHECK(rank.last == (rank.pid == 4 ? kRounds : 0));
  CHECK(epochs(20'000'000, 1'000'000).epochs == 0);
}

TEST_CASE("small traffic that is no barrier gives none") {
  Job job(42);
  SECTION("processes that drift") {
    for (uint32_t rank = 0; rank < 4; ++rank) {
      std::vector<size_t> qps;
      for (uint8_t peer = 0; peer < 3; ++peer)
        qps.push_back(job.add_qp({.pid = 100 + rank, .peer = static_cast<uint8_t>(10 + peer)}));
      uint64_t now = kStart;
      for (int i = 0; i < 300; ++i) {
        now += job.between(1000, 50'000);
        for (const size_t qp : qps) job.post(qp, now, 2000, 8);
      }
    }
  }
  SECTION("random targets") {
    std::vector<size_t> qps;
    for (uint32_t i = 0; i < 12; ++i)
      qps.push_back(job.add_qp({.pid = 100 + i / 3, .peer = static_cast<uint8_t>(1 + i % 3)}));
    for (unsigned i = 0; i < 3000; ++i)
      job.post(qps[job.random()() % 12], kStart + i * 1000, 2000, 16);
  }
  SECTION("two that answer each other") {
    const size_t ping = job.add_qp({.pid = 100, .peer = 1}),
                 pong = job.add_qp({.pid = 101, .peer = 2});
    for (unsigned i = 0; i < 1000; ++i) {
      job.post(ping, kStart + i * 10'000, 2000, 8);
      job.post(pong, kStart + i * 10'000 + 4000, 2000, 8);
    }
  }
  CHECK(report_of(job).barriers.epochs == 0);
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
    if (hung && each == qp) told->observed->reason = "hung";
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
