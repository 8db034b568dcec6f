// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// The governor at work: a job that posts as fast as it can, a budget that it exceeds. Which posts may
// be missing is known from the job itself, which publishes the number of the post that it is at.
#include <time.h>

#include <vector>

#include "base/clock.h"
#include "catch.h"
#include "native/late_job.h"
#include "native/tracer_rig.h"

using namespace rig;

namespace {

// The job's progress around one poll of the tracer.
struct Moment {
  uint64_t before_ns, after_ns;
  uint64_t before, after;
};

struct Gap {
  uint64_t first, last;  // wr_ids that are missing
};

std::vector<Gap> gaps_of(const std::vector<uint64_t>& seen) {
  std::vector<Gap> gaps;
  for (size_t i = 1; i < seen.size(); i++)
    if (seen[i] != seen[i - 1] + 1) gaps.push_back({seen[i - 1] + 1, seen[i] - 1});
  return gaps;
}

// The poll that made the record: its time was taken in it.
const Moment& moment_of(const std::vector<Moment>& moments, const sigma_window& window) {
  for (const Moment& moment : moments)
    if (window.h.time_ns >= moment.before_ns && window.h.time_ns <= moment.after_ns) return moment;
  FAIL("a window that no poll made");
  return moments.front();
}

void run_with_budget(bool follow_forks) {
  LateJob job;
  job.load();
  Trace trace({job.pid()}, "", [&](sigma::TracerOptions& options) {
    options.budget = 0.05;
    options.follow_forks = follow_forks;
    options.ring_bytes = 256u << 20;  // not the ring's losses are looked for
  });
  std::vector<Moment> moments;
  const auto poll = [&] {
    Moment moment{};
    moment.before_ns = sigma::monotonic_now_ns();
    moment.before = job.progress();
    trace.poll();
    moment.after = job.progress();
    moment.after_ns = sigma::monotonic_now_ns();
    moments.push_back(moment);
  };
  job.spin();
  // pause, resume, pause, resume, and something posted after that
  while (trace.windows().size() < 4) {
    const timespec pause{0, static_cast<long>(trace.tracer().interval().count())};
    nanosleep(&pause, nullptr);
    poll();
  }
  const Posted sent = job.stop();
  trace.stop();
  INFO(trace.said());

  const sigma::Counters counters = trace.counters();
  REQUIRE(counters.records_dropped == 0);
  CHECK(counters.governor_pauses >= 2);
  CHECK(counters.paused_ms > 0);
  CHECK(trace.said().find("budget") != std::string::npos);

  const auto& windows = trace.windows();
  uint64_t paused_ns = 0;
  for (size_t i = 0; i < windows.size(); i++) {
    CHECK(windows[i].kind == (i % 2 == 0 ? SIGMA_WINDOW_PAUSE : SIGMA_WINDOW_RESUME));
    // Probes that all processes share pause for all.
    CHECK(windows[i].h.pid == (follow_forks ? 0 : static_cast<uint32_t>(job.pid())));
    if (i % 2 == 1) paused_ns += windows[i].h.time_ns - windows[i - 1].h.time_ns;
  }
  CHECK(counters.paused_ms + 1 >= paused_ns / 1'000'000);

  // Nothing is missing but what was posted between a pause and its resume.
  const auto seen = trace.sends(job.pid());
  REQUIRE_FALSE(seen.empty());
  CHECK(seen.front() == sent.first);
  const auto gaps = gaps_of(seen);
  CHECK(gaps.size() >= 2);
  for (size_t i = 0; i < gaps.size() && 2 * i + 1 < windows.size(); i++) {
    INFO("gap " << i << " from " << gaps[i].first << " to " << gaps[i].last);
    CHECK(gaps[i].first >= moment_of(moments, windows[2 * i]).before);
    CHECK(gaps[i].last <= moment_of(moments, windows[2 * i + 1]).after);
  }
  CHECK(gaps.size() <= windows.size() / 2);
  if (windows.size() % 2 == 0) CHECK(seen.back() + 1 == sent.end());
  CHECK(job.end() == 0);
}

}  // namespace

TEST_CASE("beyond the budget tracing pauses, and is whole in between") { run_with_budget(false); }

TEST_CASE("beyond the budget tracing pauses where probes serve all processes") { run_with_budget(true); }

TEST_CASE("without a budget tracing never pauses") {
  LateJob job;
  job.load();
  Trace trace({job.pid()}, "", [](sigma::TracerOptions& options) { options.ring_bytes = 256u << 20; });
  job.spin();
  // As long as a window of the governor lasts, and more.
  const uint64_t end_ns = sigma::monotonic_now_ns() + 600'000'000;
  trace.poll_until([&] { return sigma::monotonic_now_ns() > end_ns; });
  const Posted sent = job.stop();
  trace.stop();
  CHECK(trace.counters().records_dropped == 0);
  CHECK(trace.counters().governor_pauses == 0);
  CHECK(trace.counters().paused_ms == 0);
  CHECK(trace.windows().empty());
  CHECK(trace.sends(job.pid()) == ids(sent));
  CHECK(job.end() == 0);
}
