// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Governor: whatever the load, the probes' share of the time stays within the budget.
#include "attach/governor.h"

#include "attach/pace.h"
#include "catch.h"

using namespace sigma;

namespace {

constexpr uint64_t kMs = 1'000'000;

struct Outcome {
  double share;  // of a core, spent in probes
  double traced; // part of the time
  uint64_t pauses;
};

// A process that posts `rate` times a second for a minute; its probes hit only while not paused.
Outcome simulate(const GovernorOptions& options, double rate) {
  Governor governor(options);
  double hits = 0;
  uint64_t traced_ns = 0;
  const uint64_t end_ns = 60'000 * kMs;
  for (uint64_t now_ns = kMs; now_ns < end_ns; now_ns += 50 * kMs) {
    governor.sample(static_cast<uint64_t>(hits), now_ns);
    if (governor.paused()) continue;
    hits += rate * 0.05;
    traced_ns += 50 * kMs;
  }
  return {hits * options.ns_per_hit / static_cast<double>(end_ns),
          static_cast<double>(traced_ns) / static_cast<double>(end_ns), governor.pauses()};
}

}  // namespace

TEST_CASE("the governor leaves a process within the budget alone") {
  const Outcome outcome = simulate({.budget = 0.10, .ns_per_hit = 1000}, 90'000);
  CHECK(outcome.pauses == 0);
  CHECK(outcome.traced > 0.999);
}

TEST_CASE("the governor keeps a flood within the budget and still traces") {
  for (const double rate : {150'000.0, 500'000.0, 900'000.0}) {
    const Outcome outcome = simulate({.budget = 0.10, .ns_per_hit = 1000}, rate);
    INFO(rate);
    CHECK(outcome.pauses > 0);
    CHECK(outcome.share < 0.125);
    CHECK(outcome.traced > 0.05);
  }
}

TEST_CASE("a budget of zero switches the governor off") {
  const Outcome outcome = simulate({.budget = 0, .ns_per_hit = 1000}, 900'000);
  CHECK(outcome.pauses == 0);
}

TEST_CASE("the governor says how long it paused") {
  Governor governor({.budget = 0.5, .ns_per_hit = 1000, .window_ns = 100 * kMs});
  CHECK(governor.sample(0, 1) == GovernorAction::none);
  CHECK(governor.sample(200'000, 100 * kMs + 1) == GovernorAction::pause);  // 200 ms spent in 100 ms
  CHECK(governor.paused_ns(150 * kMs + 1) == 50 * kMs);
  CHECK(governor.sample(200'000, 300 * kMs) == GovernorAction::none);
  CHECK(governor.sample(200'000, 400 * kMs + 1) == GovernorAction::resume);
  CHECK(governor.paused_ns(900 * kMs) == 300 * kMs);
  CHECK(governor.last_cost() == Approx(2.0));
}

TEST_CASE("pace: pieces of any length take their share of the time, and no more") {
  for (const double share : {0.05, 0.25, 1.0}) {
    Pace pace(share);
    uint64_t now_ns = 1, piece_ns = kMs;
    const uint64_t end_ns = 600'000 * kMs;
    while (now_ns < end_ns) {
      if (pace.may_go_on(now_ns)) {
        const uint64_t begin_ns = now_ns;
        now_ns += piece_ns;
        pace.on_piece(begin_ns, now_ns);
        piece_ns = piece_ns * 7 % (2000 * kMs) + kMs;
      }
      now_ns += kMs;
    }
    const double used = static_cast<double>(pace.worked_ns()) / static_cast<double>(end_ns);
    CHECK(used <= share * 1.02);
    CHECK(used >= share * 0.9);
    CHECK(pace.pieces() > 10);
  }
}
