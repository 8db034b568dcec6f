// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Barriers: epochs, spread and laggards equal the truth, and traffic that is none gives none.
#include <random>

#include "analysis/barriers.h"
#include "analysis_support.h"

using namespace sigma;
using namespace sigma::test;

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
