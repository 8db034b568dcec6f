// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
#include "output/summary.h"

#include <infiniband/verbs.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "base/human.h"
#include "bpf/records.h"
#include "catch.h"
#include "output/coverage.h"
#include "output/tee.h"

using namespace sigma;

namespace {

const SummaryOptions kOptions{UtcClock({0, 0, 0})};

std::shared_ptr<const QueuePair> make_qp(uint32_t number, const std::string& device = "rxe0") {
  auto qp = std::make_shared<QueuePair>();
  qp->device = device;
  qp->qp_num = number;
  qp->type = IBV_QPT_RC;
  qp->peer_qp_num = number + 1000;
  qp->pid = 4711;
  return qp;
}

Operation done(std::shared_ptr<const QueuePair> qp, uint64_t bytes, uint64_t latency_ns) {
  Operation operation;
  operation.qp = std::move(qp);
  operation.pid = 4711;
  operation.comm = "job";
  operation.opcode = Opcode::rdma_write;
  operation.bytes = bytes;
  operation.status = IBV_WC_SUCCESS;
  operation.time_ns = 1'000;
  operation.complete_ns = 1'000 + latency_ns;
  operation.latency_ns = latency_ns;
  return operation;
}

Operation failed(std::shared_ptr<const QueuePair> qp, uint32_t status, uint64_t complete_ns) {
  Operation operation = done(std::move(qp), 64, 10);
  operation.status = status;
  operation.complete_ns = complete_ns;
  operation.wr_id = 77;
  operation.latency_ns.reset();
  return operation;
}

// Nearest rank over all values.
uint64_t truth(std::vector<uint64_t> values, double fraction) {
  std::sort(values.begin(), values.end());
  const auto rank = static_cast<size_t>(std::ceil(fraction * static_cast<double>(values.size())));
  return values[std::max<size_t>(rank, 1) - 1];
}

}  // namespace

TEST_CASE("percentiles are within 1% of the sorted truth") {
  std::mt19937_64 random(1);
  std::lognormal_distribution<double> latencies(9, 1.5);
  std::uniform_int_distribution<uint64_t> anything(0, UINT64_MAX);
  std::uniform_int_distribution<uint64_t> small(0, 100);
  const std::vector<std::pair<const char*, std::function<uint64_t()>>> shapes{
      {"latencies", [&] { return static_cast<uint64_t>(latencies(random)); }},
      {"all 64 bits", [&] { return anything(random); }},
      {"small", [&] { return small(random); }},
      {"constant", [] { return uint64_t{123'456'789}; }},
  };
  for (const auto& [name, draw] : shapes) {
    INFO(name);
    Histogram histogram;
    std::vector<uint64_t> values;
    for (int i = 0; i < 50'000; ++i) {
      values.push_back(draw());
      histogram.add(values.back());
    }
    for (const double fraction : {0.0, 0.001, 0.1, 0.5, 0.9, 0.99, 0.999, 1.0}) {
      const auto expected = static_cast<double>(truth(values, fraction));
      const auto found = static_cast<double>(histogram.percentile(fraction));
      INFO(fraction << ": " << found << " for " << expected);
      CHECK(std::abs(found - expected) <= 0.01 * expected);
    }
    CHECK(histogram.max() == *std::max_element(values.begin(), values.end()));
    CHECK(histogram.percentile(1) == histogram.max());
  }
}

TEST_CASE("a histogram without values has no percentile, and one value is every percentile") {
  Histogram histogram;
  CHECK(histogram.percentile(0.5) == 0);
  histogram.add(1'000'003);
  for (const double fraction : {0.0, 0.5, 1.0}) CHECK(histogram.percentile(fraction) == 1'000'003);
}

TEST_CASE("the summary adds up operations, opcodes and queue pairs") {
  SummarySink summary(kOptions);
  const auto first = make_qp(17), second = make_qp(17, "rxe1");
  for (int i = 0; i < 1'500; ++i) summary.on_operation(done(first, 1024, 10'000));
  for (int i = 0; i < 100; ++i) summary.on_operation(done(second, 1 << 20, 20'000));
  Operation pending = done(second, 0, 1);
  pending.status.reset();
  pending.latency_ns.reset();
  pending.opcode = Opcode::recv;
  pending.queue = Queue::recv;
  summary.on_operation(pending);

  CHECK(summary.totals().operations == 1'601);
  CHECK(summary.totals().bytes == 1'500ull * 1024 + (100ull << 20));
  const Counters counters{};
  const std::string text = summary.text({.counters = counters, .duration_ns = 2'500'000'000});
  CHECK_THAT(text,
             ContainsSubstring("1,601 operations, 101 MiB in 2.50 s, 2 queue pairs, 1 unfinished"));
  CHECK_THAT(text, ContainsSubstring("rdma_write"));
  CHECK_THAT(text, ContainsSubstring("recv"));
  CHECK_THAT(text, ContainsSubstring("nothing known to be missing"));
  CHECK(text.find("\033") == std::string::npos);
  CHECK(text.find("error") == std::string::npos);
  // The busier of the two by bytes comes first, though both have the number 17.
  CHECK(text.find("rxe1") < text.find("rxe0"));
  CHECK_THAT(text, ContainsSubstring("1017"));
}

TEST_CASE("the summary names the first error of a queue pair and counts its flushes") {
  SummarySink summary(kOptions);
  const auto victim = make_qp(18), bystander = make_qp(19);
  summary.on_operation(failed(bystander, IBV_WC_WR_FLUSH_ERR, 50));
  summary.on_operation(failed(victim, IBV_WC_RETRY_EXC_ERR, 100));
  for (int i = 0; i < 127; ++i) summary.on_operation(failed(victim, IBV_WC_WR_FLUSH_ERR, 200));

  CHECK(summary.totals().errors == 1);
  const Counters counters{};
  const std::string text = summary.text({.counters = counters});
  CHECK_THAT(text, ContainsSubstring("1 error, 128 flushed"));
  CHECK_THAT(text,
             ContainsSubstring(
                 "rxe0 qp 18 -> qp 1018: retry_exc_err on rdma_write, wr_id 77; 127 flushed"));
  CHECK_THAT(text,
             ContainsSubstring("rxe0 qp 19 -> qp 1019: 1 flushed; the error itself was not seen"));
}

TEST_CASE("the summary's latencies are those of successful operations") {
  SummarySink summary(kOptions);
  const auto qp = make_qp(17);
  for (int i = 0; i < 10; ++i) summary.on_operation(done(qp, 1, 5'000));
  Operation slow = failed(qp, IBV_WC_RETRY_EXC_ERR, 9'000'000'000);
  slow.latency_ns = 9'000'000'000;
  summary.on_operation(slow);
  const Counters counters{};
  const std::string text = summary.text({.counters = counters});
  CHECK_THAT(text, ContainsSubstring("5.00 us"));
  CHECK(text.find("9.00 s") == std::string::npos);
}

TEST_CASE("the summary says what was not seen, worst first") {
  SummarySink summary(kOptions);
  Counters counters;
  counters.unfinished = 4;
  counters.records_dropped = 1'000;
  counters.probes_failed = 2;
  const std::vector<std::string> remarks{"libfoo is not covered"};
  const std::string text = summary.text({.counters = counters, .remarks = remarks});
  const size_t error = text.find("probes that the kernel refused to attach: 2");
  const size_t loss = text.find("had no room (raise --ring-size): 1,000");
  const size_t gap = text.find("not seen before the end: 4");
  REQUIRE(gap != std::string::npos);
  CHECK(error < loss);
  CHECK(loss < gap);
  CHECK_THAT(text, ContainsSubstring("libfoo is not covered"));
  CHECK(text.find("nothing known") == std::string::npos);
}

TEST_CASE("the summary's memory is bounded: queue pairs beyond the limit share a row") {
  SummaryOptions options = kOptions;
  options.queue_pairs = 8;
  SummarySink summary(options);
  for (uint32_t number = 0; number < 100; ++number)
    summary.on_operation(done(make_qp(number), 10, 100));
  Operation srq;
  srq.bytes = 5;
  summary.on_operation(srq);
  const Counters counters{};
  const std::string text = summary.text({.counters = counters, .rows = 3});
  CHECK_THAT(text, ContainsSubstring("101 operations"));
  CHECK_THAT(text, ContainsSubstring("and 5 queue pairs more"));
  CHECK_THAT(text, ContainsSubstring("93 operations on queues not listed"));
}

TEST_CASE("a datagram queue pair with several peers does not show one of them") {
  SummarySink summary(kOptions);
  const auto qp = make_qp(17);
  Operation operation = done(qp, 1, 1);
  for (const uint32_t peer : {5, 6}) {
    operation.peer_qp_num = peer;
    summary.on_operation(operation);
  }
  const Counters counters{};
  CHECK_THAT(summary.text({.counters = counters}), ContainsSubstring("several"));
}

TEST_CASE("another process's name cannot drive the terminal") {
  SummarySink summary(kOptions);
  Operation operation = done(make_qp(17), 1, 1);
  operation.comm = "\033]0;owned\a\xc2\x9b";
  summary.on_operation(operation);
  const Counters counters{};
  const std::string text = summary.text({.counters = counters});
  CHECK_THAT(text, ContainsSubstring("\\x1b]0;owned\\x07\\xc2\\x9b"));
  CHECK(text.find('\033') == std::string::npos);
}

TEST_CASE("every sink of a tee gets every operation") {
  SummarySink first(kOptions), second(kOptions);
  TeeSink tee({&first, &second});
  for (int i = 0; i < 3; ++i) tee.on_operation(done(make_qp(1), 1, 1));
  CHECK(first.totals().operations == 3);
  CHECK(second.totals().operations == 3);
}

TEST_CASE("the live line shows totals and rates within its width") {
  const LiveTotals before{1'000, 1 << 20, 0, 0};
  const LiveTotals now{3'000, 5 << 20, 2, 7};
  CHECK(live_line(now, before, 2, 200) ==
        "3,000 operations  5.00 MiB  1.00 k/s  2.00 MiB/s  2 errors  7 dropped");
  CHECK(live_line(now, before, 2, 10) == "3,000 oper");
  CHECK(live_line(now, now, 0, 200) ==
        "3,000 operations  5.00 MiB  0/s  0 B/s  2 errors  7 dropped");
}

TEST_CASE("numbers for people have three digits and a unit") {
  CHECK(human_bytes(0) == "0 B");
  CHECK(human_bytes(1023) == "1023 B");
  CHECK(human_bytes(1536) == "1.50 KiB");
  CHECK(human_bytes((1ull << 20) - 1) == "1.00 MiB");
  CHECK(human_bytes(UINT64_MAX) == "16.0 EiB");
  CHECK(human_duration(999) == "999 ns");
  CHECK(human_duration(12'345) == "12.3 us");
  CHECK(human_duration(999'999) == "1.00 ms");
  CHECK(human_duration(125'000'000'000) == "2 min 5 s");
  CHECK(human_duration(UINT64_MAX).find("h") != std::string::npos);
  CHECK(human_count(0) == "0");
  CHECK(human_count(999) == "999");
  CHECK(human_count(1'234'567) == "1,234,567");
  CHECK(human_rate(999'999) == "1.00 M");
}

TEST_CASE("coverage: says of each queue pair that was read from memory what was seen, missed and certified") {
  std::vector<std::shared_ptr<const QueuePair>> qps;
  CHECK(ring_statements(qps).empty());
  const auto add = [&](uint32_t number, const Observed& observed, bool probed = false) {
    auto qp = std::make_shared<QueuePair>(*make_qp(number, "mlx5_0"));
    qp->observed = observed;
    qp->posts_probed = probed;
    qps.push_back(qp);
  };
  qps.push_back(make_qp(1, "mlx5_0"));  // not read
  add(2, {.posted = 10}, true);  // its posts are told by probes
  add(6, {});                    // it posts nothing
  add(3, {.posted = 100, .seen = 100, .by_margin = 90, .by_posterior = 10});
  add(4, {.posted = 50, .seen = 43, .missed = 7, .gaps = 2, .by_margin = 43});
  add(5, {.posted = 50, .seen = 40, .missed = 10, .gaps = 1, .by_margin = 40, .modulo = true});
  const auto lines = ring_statements(qps);
  REQUIRE(lines.size() == 6);
  CHECK(lines[0] == "1 queue pair: posts by probe, completions from memory");
  CHECK(lines[1] == "3 queue pairs: posts and completions from memory");
  CHECK(lines[2] == "1 queue pair: no request sent, as far as probes and memory tell; completions from memory");
  CHECK(lines[3] == "posts read from memory: 183 of 200 blocks seen; requests certified by the doorbell's "
                    "distance: 173, by a later doorbell: 10");
  CHECK(lines[4] == "mlx5_0 QP 5 of process 4711: 40 of 50 blocks seen, 1 gap, counts known modulo 65,536 only");
  CHECK(lines[5] == "mlx5_0 QP 4 of process 4711: 43 of 50 blocks seen, 2 gaps");
  add(8, {.mode = SIGMA_RING_SETUP, .reason = "a copy failed"});
  CHECK(ring_statements(qps)[3] == "1 queue pair: not read, known by set-up only: a copy failed");
  qps.pop_back();
  add(9, {.hung = true, .end_unseen = true, .posted = 3, .seen = 3, .by_margin = 3});
  const auto hangs = ring_statements(qps);
  REQUIRE(hangs.size() == 8);
  CHECK(hangs[4] == "1 queue pair: hung as last looked at: posted, not completed, and unmoved");
  CHECK(hangs[7] == "mlx5_0 QP 9 of process 4711: 3 of 3 blocks seen, 0 gaps, its end was not seen");
  qps.pop_back();
  // That the reader was there before a probe's record makes no other kind of queue pair of it.
  add(7, {.posted = 10, .seen = 3, .by_margin = 3}, true);
  CHECK(ring_statements(qps)[0] == "2 queue pairs: posts by probe, completions from memory");
  CHECK(ring_statements(qps)[3].starts_with(
      "posts read from memory, also what the probes of 1 queue pair had not told of yet: 186 of 203 blocks seen;"));
  for (uint32_t i = 0; i < 20; ++i) add(100 + i, {.seen = 1, .missed = 1, .gaps = 1});
  CHECK(ring_statements(qps).size() == 4 + kMaxRingStatements + 1);
}
