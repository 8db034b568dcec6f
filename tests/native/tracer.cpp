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

bool has_ended(const Trace& trace, pid_t pid) {
  return std::any_of(trace.processes().begin(), trace.processes().end(), [&](const sigma_process& record) {
    return record.kind == SIGMA_PROCESS_EXIT && record.h.pid == static_cast<uint32_t>(pid);
  });
}

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
