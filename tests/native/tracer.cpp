// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Tracer on a real process, whose libraries are found nowhere but in its memory map: what it probes,
// when, and whose records come out.
#include "attach/tracer.h"

#include <fmt/format.h>
#include <signal.h>
#include <sys/wait.h>

#include <algorithm>
#include <utility>

#include "catch.h"
#include "native/late_job.h"
#include "native/tracer_rig.h"
#include "resolve/proc_maps.h"

using namespace rig;

namespace {

// The link forms, as the features to go without.
// The last one is not for a look at a process without any provider: the installed ones are probed for it, by some
// 200 links, of which the kernel closes ten a second.
const char* const kOneLinkAProbe = "multi,session";
const char* const kForms[] = {"", "session", kOneLinkAProbe};

std::vector<sigma_process> told_of(const Trace& trace, pid_t pid, uint32_t kind) {
  std::vector<sigma_process> found;
  for (const sigma_process& record : trace.processes())
    if (record.kind == kind && record.h.pid == static_cast<uint32_t>(pid)) found.push_back(record);
  return found;
}

bool has_ended(const Trace& trace, pid_t pid) { return !told_of(trace, pid, SIGMA_PROCESS_EXIT).empty(); }

void with_tiny_ring(sigma::TracerOptions& options) { options.ring_bytes = 4096; }
constexpr uint64_t kMoreThanTinyRing = 200;

void check_loaded_late(LateJob& job, Trace& trace, const std::vector<std::string>& libraries) {
  job.load();
  trace.care();
  INFO(trace.said());
  for (const std::string& library : libraries)
    CHECK(trace.has_said(fmt::format("process {}: {} is probed from now on: ", job.pid(), library)));
  const Posted sent = job.send(100);
  const Posted received = job.receive(50);
  const Polled polled = job.poll(7);
  trace.stop();

  CHECK(trace.sends(job.pid()) == ids(sent));
  CHECK(trace.receives(job.pid()) == ids(received));
  for (const sigma_post& post : trace.posts()) {
    CHECK(post.bytes == LateJob::kBytes);
    CHECK(post.qp_num == LateJob::kQpNum);
  }
  REQUIRE(trace.completions().size() == polled.count);
  CHECK(trace.completions().front().wr_id == polled.first);
  CHECK(trace.completions().back().wr_id == polled.last);
  CHECK(trace.counters().records_dropped == 0);
  CHECK(job.end() == 0);
}

}  // namespace

TEST_CASE("a library that is loaded after the attach is traced from the next look on") {
  for (const char* without : {"", "session"}) {
    INFO("without " << without);
    LateJob job;
    Trace trace({job.pid()}, without);
    check_loaded_late(job, trace, {"late_job_provider", "libibverbs"});
  }
}

TEST_CASE("a library that is loaded after the attach is traced, beside another one, by one link a probe") {
  LateJob job;
  job.map(LATE_JOB_LIBIBVERBS);
  job.map(LATE_JOB_HIDDEN);
  Trace trace({job.pid()}, kOneLinkAProbe);
  check_loaded_late(job, trace, {"late_job_provider"});
}

TEST_CASE("a library that was there before the attach is traced at once") {
  for (const char* without : kForms) {
    INFO("without " << without);
    LateJob job;
    job.load();
    job.send(3);
    Trace trace({job.pid()}, without);
    const Posted sent = job.send(100);
    const Posted received = job.receive(50);
    trace.stop();
    INFO(trace.said());
    CHECK(trace.sends(job.pid()) == ids(sent));
    CHECK(trace.receives(job.pid()) == ids(received));
    CHECK(job.end() == 0);
  }
}

TEST_CASE("a process that is no target leaves no record") {
  for (const char* without : kForms) {
    INFO("without " << without);
    LateJob job, other;
    job.load();
    other.load();
    Trace trace({job.pid()}, without);
    other.send(20);
    const Posted sent = job.send(10);
    other.send(20);
    trace.stop();
    INFO(trace.said());
    CHECK(trace.sends(job.pid()) == ids(sent));
    CHECK(trace.posts().size() == sent.count);
    CHECK(job.end() == 0);
    CHECK(other.end() == 0);
  }
}

TEST_CASE("two targets with one library are told apart") {
  LateJob first, second;
  first.load();
  Trace trace({first.pid(), second.pid()});
  second.load();
  trace.care();
  const Posted of_first = first.send(10), of_second = second.send(30);
  trace.stop();
  INFO(trace.said());
  CHECK(trace.sends(first.pid()) == ids(of_first));
  CHECK(trace.sends(second.pid()) == ids(of_second));
}

TEST_CASE("a forked child is traced with follow_forks") {
  LateJob job;
  job.load();
  Trace trace({job.pid()}, "", [](sigma::TracerOptions& options) { options.follow_forks = true; });
  pid_t child = 0;
  const Posted before = job.send(5), in_child = job.fork(40, &child), after = job.send(5);
  trace.poll();
  trace.stop();
  INFO(trace.said());
  CHECK(trace.sends(job.pid()) == ids({before, after}));
  CHECK(trace.sends(child) == ids(in_child));
  CHECK(job.end() == 0);
}

TEST_CASE("a forked child is not traced without follow_forks") {
  for (const char* without : kForms) {
    INFO("without " << without);
    LateJob job;
    job.load();
    Trace trace({job.pid()}, without);
    pid_t child = 0;
    const Posted before = job.send(5);
    job.fork(40, &child);
    const Posted after = job.send(5);
    trace.stop();
    INFO(trace.said());
    CHECK(trace.sends(job.pid()) == ids({before, after}));
    CHECK(trace.posts().size() == before.count + after.count);
    CHECK(job.end() == 0);
  }
}

TEST_CASE("a process that runs another program is traced on") {
  for (const char* without : kForms) {
    INFO("without " << without);
    LateJob job;
    job.load();
    Trace trace({job.pid()}, without);
    const Posted before = job.send(5);
    job.exec();
    if (without != kOneLinkAProbe) trace.care();
    job.load();
    trace.care();
    const Posted after = job.send(20);
    trace.stop();
    INFO(trace.said());
    CHECK(trace.sends(job.pid()) == ids({before, after}));
    CHECK_FALSE(has_ended(trace, job.pid()));
    CHECK(job.end() == 0);
  }
}

TEST_CASE("the tracer ends with its last target") {
  LateJob first, second;
  first.load();
  second.load();
  Trace trace({first.pid(), second.pid()});
  const Posted sent = first.send(10);
  CHECK(first.end() == 0);
  trace.care();
  CHECK_FALSE(trace.tracer().ended());
  const Posted later = second.send(10);
  CHECK(second.end() == 0);
  trace.poll_until([&] { return trace.tracer().ended(); });
  trace.stop();
  CHECK(trace.sends(static_cast<pid_t>(trace.posts().front().h.pid)) == ids(sent));
  CHECK(trace.sends(static_cast<pid_t>(trace.posts().back().h.pid)) == ids(later));
}

TEST_CASE("a target that is killed ends the trace with what it posted") {
  LateJob job;
  job.load();
  // A reader that is held up must not lose what the job posts meanwhile: not that is asked here.
  Trace trace({job.pid()}, "", [](sigma::TracerOptions& options) { options.ring_bytes = 256u << 20; });
  const pid_t pid = job.pid();
  const Posted sent = job.send(10);
  job.spin();
  trace.poll_until([&] { return job.progress() > sent.end() + 1000; });
  ::kill(pid, SIGKILL);
  const int status = job.end();
  CHECK(WIFSIGNALED(status));
  trace.poll_until([&] { return trace.tracer().ended(); });
  trace.stop();
  INFO(trace.said());
  CHECK(has_ended(trace, pid));
  // Without a hole up to the last post, which may not have reached the provider.
  const auto seen = trace.sends(pid);
  CHECK(seen.size() + 1 >= job.progress());
  CHECK(seen == ids(Posted{sent.first, seen.size()}));
}

TEST_CASE("the end of a process is told when the ring has no room for it") {
  LateJob jobs[3];  // what a post does not fit in may have room for one end
  for (LateJob& job : jobs) job.load();
  Trace trace({jobs[0].pid(), jobs[1].pid(), jobs[2].pid()}, "", with_tiny_ring);
  std::vector<pid_t> pids;
  for (LateJob& job : jobs) {
    pids.push_back(job.pid());
    job.send(kMoreThanTinyRing);
    CHECK(job.end() == 0);
  }
  trace.poll_until([&] { return trace.tracer().ended(); });
  trace.stop();
  const sigma::Counters counters = trace.counters();
  REQUIRE(counters.records_dropped > 0);
  CHECK(counters.records_attempted == counters.records_consumed + counters.records_dropped);
  for (const pid_t pid : pids) {
    const auto ends = told_of(trace, pid, SIGMA_PROCESS_EXIT);
    REQUIRE(ends.size() == 1);
    CHECK(ends[0].exit_code == 0);
    CHECK(std::string(ends[0].comm) == "late_job");
    for (const sigma_post& post : trace.posts())
      if (post.h.pid == ends[0].h.pid) CHECK(post.h.time_ns < ends[0].h.time_ns);
  }
}

TEST_CASE("another program in a process is told when the ring has no room for it") {
  LateJob job;
  job.load();
  Trace trace({job.pid()}, "", with_tiny_ring);
  for (int i = 0; i < 3; i++) {
    job.send(kMoreThanTinyRing);
    job.exec();
    job.load();
  }
  trace.care();
  const Posted after = job.send(10);
  trace.stop();
  REQUIRE(trace.counters().records_dropped > 0);
  CHECK(told_of(trace, job.pid(), SIGMA_PROCESS_EXEC).size() == 3);
  auto sends = trace.sends(job.pid());
  REQUIRE(sends.size() > after.count);
  sends.erase(sends.begin(), sends.end() - static_cast<ptrdiff_t>(after.count));
  CHECK(sends == ids(after));
  CHECK(job.end() == 0);
}

TEST_CASE("the end of a process is told where the kernel tells of none") {
  LateJob first, second;
  first.load();
  second.load();
  Trace trace({first.pid(), second.pid()}, "btf");
  const pid_t pid = first.pid();
  const Posted sent = first.send(10);
  CHECK(first.end() == 0);
  trace.poll_until([&] { return has_ended(trace, pid); });
  CHECK_FALSE(trace.tracer().ended());
  CHECK(trace.sends(pid) == ids(sent));
  CHECK(second.end() == 0);
  trace.poll_until([&] { return trace.tracer().ended(); });
  trace.stop();
  const auto ends = told_of(trace, pid, SIGMA_PROCESS_EXIT);
  REQUIRE(ends.size() == 1);
  CHECK(ends[0].exit_code == SIGMA_EXIT_UNKNOWN);
  CHECK(ends[0].h.time_ns > trace.posts().back().h.time_ns);
}

TEST_CASE("a process that gets the number of one that has just ended is another one") {
  LateJob former, parent;
  former.load();
  parent.load();
  Trace trace({former.pid(), parent.pid()}, "", [](sigma::TracerOptions& options) { options.follow_forks = true; });
  const pid_t pid = former.pid();
  CHECK(former.end() == 0);
  parent.stay_as(pid);
  CHECK(parent.end() == 0);
  trace.care();
  trace.poll_until([&] { return told_of(trace, pid, SIGMA_PROCESS_EXIT).size() == 1; });
  CHECK_FALSE(trace.tracer().ended());
  ::kill(pid, SIGKILL);
  trace.poll_until([&] { return trace.tracer().ended(); });
  trace.stop();
  CHECK(told_of(trace, pid, SIGMA_PROCESS_EXIT).size() == 2);
}

TEST_CASE("the end of a process is told once, though it is met again afterwards") {
  LateJob first;
  first.load();
  Trace trace({}, "", [](sigma::TracerOptions& options) { options.selection = sigma::Selection{.comm = "late_job"}; });
  trace.care();
  LateJob job;
  job.load();
  const Posted sent = job.send(10);
  const pid_t pid = job.pid();
  ::kill(pid, SIGKILL);
  siginfo_t info;
  REQUIRE(::waitid(P_PID, static_cast<id_t>(pid), &info, WEXITED | WNOWAIT) == 0);  // still there, as a zombie
  trace.poll_until([&] { return has_ended(trace, pid); });
  trace.stop();
  CHECK(trace.sends(pid) == ids(sent));
  CHECK(told_of(trace, pid, SIGMA_PROCESS_EXIT).size() == 1);
}

TEST_CASE("a target that is stopped is waited for") {
  LateJob job;
  job.load();
  Trace trace({job.pid()});
  const Posted before = job.send(10);
  ::kill(job.pid(), SIGSTOP);
  int status = 0;
  REQUIRE(::waitpid(job.pid(), &status, WUNTRACED) == job.pid());
  REQUIRE(WIFSTOPPED(status));
  trace.care();
  CHECK_FALSE(trace.tracer().ended());
  ::kill(job.pid(), SIGCONT);
  const Posted after = job.send(10);
  trace.stop();
  CHECK(trace.sends(job.pid()) == ids({before, after}));
  CHECK(job.end() == 0);
}

TEST_CASE("a target that is stopped before the attach can be attached and left") {
  LateJob job;
  job.load();
  ::kill(job.pid(), SIGSTOP);
  int status = 0;
  REQUIRE(::waitpid(job.pid(), &status, WUNTRACED) == job.pid());
  {
    Trace trace({job.pid()});
    trace.care();
    trace.stop();
    CHECK(trace.posts().empty());
  }
  ::kill(job.pid(), SIGCONT);
  job.send(10);
  CHECK(job.end() == 0);
}

TEST_CASE("a process that is ending refuses no probes, and leaves its libraries' to the next one") {
  for (const char* without : kForms) {
    INFO("without " << without);
    LateJob ending, job;
    ending.load();
    ending.map(LATE_JOB_HIDDEN);
    job.load();
    const auto maps = sigma::read_maps(ending.pid());
    REQUIRE(maps.ok());
    const auto place_of = [&](std::string_view path) {
      return std::find_if(maps->begin(), maps->end(), [&](const sigma::Mapping& each) { return each.path == path; });
    };
    REQUIRE(place_of(LATE_JOB_HIDDEN) < place_of(LATE_JOB_PROVIDER));
    REQUIRE(ending.pid() < job.pid());
    bool left = false;
    // Of its first library it is said that not all is covered; when the next one's turn comes, it is on its way out.
    Trace trace({ending.pid(), job.pid()}, without, [](sigma::TracerOptions& options) { options.follow_forks = true; },
                [&] {
                  if (!std::exchange(left, true)) ending.leave();
                });
    REQUIRE(left);
    trace.care();
    const Posted sent = job.send(20);
    const Polled polled = job.poll(5);
    trace.stop();
    INFO(trace.said());
    CHECK(trace.sends(job.pid()) == ids(sent));
    CHECK(trace.completions().size() == polled.count);
    CHECK(trace.counters().libraries_unresolved == 0);
    CHECK(trace.counters().probes_failed == 0);
    for (const std::string& fact : trace.tracer().statements()) CHECK(fact.find("cannot") == fact.npos);
  }
}

TEST_CASE("a pid that is no process is refused") {
  pid_t pid = 0;
  {
    LateJob job;
    pid = job.pid();
  }
  const auto features = sigma::Features::probe();
  sigma::TracerOptions options;
  options.pids = {pid};
  auto tracer = sigma::Tracer::start(options, features, [](std::span<const std::byte>) {}, [](std::string_view) {});
  REQUIRE_FALSE(tracer.ok());
  CHECK(tracer.error().what.find(std::to_string(pid)) != std::string::npos);
  CHECK_FALSE(tracer.error().hint.empty());
}
