// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Links, targets and losses.
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <string>
#include <thread>

#include <bpf/bpf.h>
#include <bpf/libbpf.h>

#include "attach/calibrate.h"
#include "attach/capabilities.h"
#include "attach/ring_reader.h"
#include "attach/seccomp_selftest.h"
#include "bpf/verbs.h"
#include "catch.h"
#include "rig.h"
#include "truth.h"

using namespace sigma;

namespace {

size_t posts_in(const std::vector<rig::SeenRecord>& records) {
  size_t n = 0;
  for (const rig::SeenRecord& record : records) n += record.header.type == SIGMA_POST;
  return n;
}

}  // namespace

TEST_CASE("each form of link is what was asked for") {
  for (const rig::Form& form : rig::forms()) {
    INFO(form.name);
    auto capture = rig::load(rig::features_without(form.without));
    REQUIRE(to_string(capture->return_form()) == form.name);
    const AttachReport report = capture->attach(rig::provider_plan(), getpid(), {});
    REQUIRE(report.failed.empty());
    REQUIRE(report.attached.size() == SIGMA_FUNCTIONS - 1);
    for (const AttachedProbe& probe : report.attached)
      REQUIRE(probe.form == (probe.at_return ? capture->return_form() : capture->entry_form()));
  }
}

// What the verifier walked, the kernel's own count (bpf_prog_info.verified_insns, since 5.16). A start costs
// some microseconds for each; a function that is verified anew in each state of its callers multiplies it.
TEST_CASE("the programs are cheap to verify") {
  const auto capture = rig::load(rig::features());
  uint64_t walked = 0, programs = 0;
  for (const auto& file : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code gone;
    if (std::filesystem::read_symlink(file, gone) != "anon_inode:bpf-prog") continue;
    bpf_prog_info info = {};
    __u32 size = sizeof(info);
    REQUIRE(bpf_obj_get_info_by_fd(std::stoi(file.path().filename()), &info, &size) == 0);
    INFO(info.name << ": " << info.verified_insns);
    CHECK(info.verified_insns > 0);
    CHECK(info.verified_insns <= 20'000);
    walked += info.verified_insns;
    ++programs;
  }
  REQUIRE(programs > 20);
  CHECK(walked <= 100'000);
}

TEST_CASE("only the target is traced") {
  for (const char* without :
       {"", "session", "multi,session", "perf,pid_filter", "session,perf,pid_filter"}) {
    INFO("without " << without);
    auto capture = rig::load(rig::features_without(without));
    rig::Workload target("one_post"), stranger("one_post");
    REQUIRE(capture->add_target(target.pid()).ok());
    capture->attach(rig::provider_plan(), target.pid(), {});
    stranger.act();
    target.act();
    target.act();
    const auto records = rig::drain(*capture);
    REQUIRE(posts_in(records) == 2);
    for (const rig::SeenRecord& record : records)
      REQUIRE(record.header.pid == static_cast<uint32_t>(target.pid()));
    REQUIRE(capture->target_hits(target.pid()) == capture->counters()[SIGMA_COUNT_HITS]);
    REQUIRE(capture->target_hits(stranger.pid()) == 0);
  }
}

TEST_CASE("two targets of one library, by links of their own") {
  for (const char* without : {"", "multi,session", "perf,pid_filter"}) {
    INFO("without " << without);
    auto capture = rig::load(rig::features_without(without));
    rig::Workload first("one_post"), second("one_post");
    for (const rig::Workload* workload : {&first, &second}) {
      REQUIRE(capture->add_target(workload->pid()).ok());
      REQUIRE(capture->attach(rig::provider_plan(), workload->pid(), {}).failed.empty());
      // Again: attaching twice must not record twice.
      REQUIRE(capture->attach(rig::provider_plan(), workload->pid(), {}).failed.empty());
    }
    first.act();
    second.act();
    REQUIRE(posts_in(rig::drain(*capture)) == 2);
    // No return was taken for that of an entry which the other's link should have noted.
    REQUIRE(capture->counters()[SIGMA_COUNT_NO_ENTRY] == 0);
  }
}

// A job that posts faster than records can be read must not hold the reader in one drain for good.
TEST_CASE("a drain ends although there is more to read, and the next one goes on") {
  auto capture = rig::load(rig::features_without(""));
  rig::Workload target("one_post");
  REQUIRE(capture->add_target(target.pid()).ok());
  REQUIRE(capture->attach(rig::provider_plan(), target.pid(), {}).failed.empty());
  constexpr size_t kPosts = 20;
  for (size_t i = 0; i < kPosts; i++) target.act();
  const uint64_t attempts = capture->counters()[SIGMA_COUNT_ATTEMPTS];
  REQUIRE(attempts >= kPosts);

  size_t seen = 0;
  auto reader =
      RingReader::open(capture->ring_map_fd(), [&](std::span<const std::byte>) { ++seen; });
  REQUIRE(reader.ok());
  constexpr size_t kAtOnce = 7;
  for (uint64_t left = attempts; left > 0;) {
    const auto drained = (*reader)->drain(kAtOnce);
    REQUIRE(drained.ok());
    REQUIRE(*drained == std::min<uint64_t>(left, kAtOnce));
    left -= *drained;
  }
  REQUIRE(*(*reader)->drain(kAtOnce) == 0);
  REQUIRE(seen == attempts);
}

TEST_CASE("all processes, when asked") {
  CaptureOptions options;
  options.config.selects = 1;
  auto capture = rig::load(rig::features(), options);
  REQUIRE(capture->attach(rig::provider_plan(), 0, {}).failed.empty());
  rig::Workload first("one_post"), second("one_post");
  first.act();
  second.act();
  REQUIRE(posts_in(rig::drain(*capture)) == 2);
  REQUIRE(capture->targets() == std::vector<pid_t>{std::min(first.pid(), second.pid()),
                                                   std::max(first.pid(), second.pid())});
}

TEST_CASE("pause, resume, detach, attach again") {
  for (const rig::Form& form : rig::forms()) {
    INFO(form.name);
    auto capture = rig::load(rig::features_without(form.without));
    rig::Workload workload("one_post");
    REQUIRE(capture->add_target(workload.pid()).ok());
    capture->attach(rig::provider_plan(), workload.pid(), {});
    auto posts = [&] {
      workload.act();
      return posts_in(rig::drain(*capture));
    };
    REQUIRE(posts() == 1);
    REQUIRE(capture->pause_target(workload.pid(), true).ok());
    REQUIRE(posts() == 0);
    REQUIRE(capture->pause_target(workload.pid(), false).ok());
    REQUIRE(posts() == 1);
    const uint64_t hits = capture->target_hits(workload.pid());
    capture->detach(workload.pid(), true);
    REQUIRE(posts() == 0);
    REQUIRE(capture->target_hits(workload.pid()) == hits);
    REQUIRE(capture->attach(rig::provider_plan(), workload.pid(), {}).failed.empty());
    REQUIRE(posts() == 1);
    REQUIRE(capture->remove_target(workload.pid()).ok());
    REQUIRE(posts() == 0);
    capture->detach();
    REQUIRE(workload.end() == 0);
  }
}

TEST_CASE("hits are counted for the governor") {
  auto capture = rig::load(rig::features());
  rig::Workload workload("many_posts");
  REQUIRE(capture->add_target(workload.pid()).ok());
  capture->attach(rig::provider_plan(), workload.pid(), {});
  workload.act();
  REQUIRE(posts_in(rig::drain(*capture)) == 1000);
  const uint64_t hits = capture->target_hits(workload.pid());
  REQUIRE(hits <= 1001);
  REQUIRE(hits > 1001 - SIGMA_HITS_BATCH);
}

TEST_CASE("a pause holds for queue pairs that are remembered") {
  auto capture = rig::load(rig::features());
  rig::Workload workload("many_posts");
  REQUIRE(capture->add_target(workload.pid()).ok());
  capture->attach(rig::provider_plan(), workload.pid(), {});
  for (const bool paused : {false, true, false}) {
    REQUIRE(capture->pause_target(workload.pid(), paused).ok());
    workload.act();
    REQUIRE(posts_in(rig::drain(*capture)) == (paused ? 0 : 1000));
  }
  REQUIRE(capture->remove_target(workload.pid()).ok());
  workload.act();
  REQUIRE(rig::drain(*capture).empty());
}

TEST_CASE("one bad site does not cost the others") {
  for (const rig::Form& form : rig::forms()) {
    INFO(form.name);
    auto capture = rig::load(rig::features_without(form.without));
    rig::Workload workload("one_post");
    REQUIRE(capture->add_target(workload.pid()).ok());
    LibraryPlan plan = rig::provider_plan();
    ResolvedFunction beyond = plan.functions.front();
    beyond.site.file_offset = beyond.return_site.file_offset = uint64_t{1} << 40;
    plan.functions.push_back(beyond);
    const AttachReport report = capture->attach(plan, workload.pid(), {});
    REQUIRE(report.failed.size() == 1);
    REQUIRE(report.failed.front().function == beyond.function);
    REQUIRE(report.attached.size() == SIGMA_FUNCTIONS - 1);
    workload.act();
    REQUIRE(posts_in(rig::drain(*capture)) == 1);
  }
}

TEST_CASE("a process that is gone, a file that is gone") {
  auto capture = rig::load(rig::features());
  rig::Workload workload("one_post");
  const pid_t pid = workload.pid();
  workload.end();
  REQUIRE(capture->attach(rig::provider_plan(), pid, {}).failed.size() == SIGMA_FUNCTIONS - 1);
  LibraryPlan nowhere = rig::provider_plan();
  nowhere.path = "/nonexistent/library.so";
  const AttachReport report = capture->attach(nowhere, 0, {});
  REQUIRE(report.attached.empty());
  REQUIRE_THAT(report.failed.front().reason, ContainsSubstring("No such file"));
}

TEST_CASE("mlx5: the doorbell record gives the index") {
  auto capture = rig::load(rig::features());
  rig::Workload workload("one_post");
  REQUIRE(capture->add_target(workload.pid()).ok());
  AttachPolicy policy;
  policy.check_posts = false;
  capture->attach(rig::provider_plan(), workload.pid(), policy);
  workload.act();
  const auto before = rig::drain(*capture);
  const auto& post = *reinterpret_cast<const sigma_post*>(before.back().bytes.data());
  REQUIRE(post.h.type == SIGMA_POST);
  REQUIRE((post.flags & SIGMA_POST_HAS_INDEX) == 0);
  REQUIRE((post.flags & SIGMA_POST_UNVERIFIED) != 0);

  // The QP's own handle and number stand in for a doorbell record: be32[1] is the number, 17.
  const uint64_t doorbell = post.queue_ptr + offsetof(sigma_ibv_qp, handle);
  REQUIRE(capture->set_doorbell(workload.pid(), post.queue_ptr, post.qp_num, doorbell).ok());
  workload.act();
  const auto after = rig::drain(*capture);
  const auto& indexed = *reinterpret_cast<const sigma_post*>(after.back().bytes.data());
  REQUIRE(indexed.h.type == SIGMA_POST);
  REQUIRE((indexed.flags & SIGMA_POST_HAS_INDEX) != 0);
  REQUIRE((indexed.flags & SIGMA_POST_UNVERIFIED) == 0);
  REQUIRE(indexed.index == (__builtin_bswap32(17) & 0xffff));
}

TEST_CASE("exec, fork and exit") {
  CaptureOptions options;
  options.config.follow_forks = 1;
  options.config.selects = 0;
  auto capture = rig::load(rig::features(), options);
  rig::Workload workload("processes"), stranger("processes");
  REQUIRE(capture->attach_process_events().ok());
  REQUIRE(capture->add_target(workload.pid()).ok());
  REQUIRE(capture->attach(rig::provider_plan(), 0, {}).failed.empty());
  stranger.act();
  const auto said = workload.act();
  auto records = rig::drain(*capture);
  std::vector<std::string> seen;
  size_t child_posts = 0;
  for (const rig::SeenRecord& record : records) {
    if (record.header.type == SIGMA_PROCESS) seen.push_back(record.text);
    if (record.header.type == SIGMA_POST)
      child_posts += record.header.pid != static_cast<uint32_t>(workload.pid());
  }
  REQUIRE(seen == said);
  REQUIRE(child_posts == 1);
  REQUIRE(capture->targets() == std::vector<pid_t>{workload.pid()});

  const pid_t pid = workload.pid();
  REQUIRE(workload.end() == 0);
  REQUIRE(rig::texts(rig::drain(*capture)) ==
          std::vector<std::string>{
              process_text(SIGMA_PROCESS_EXIT, static_cast<uint32_t>(pid), 0, 0, "workload")});
  REQUIRE(capture->targets().empty());
}

TEST_CASE("a starved ring loses nothing unnoticed") {
  CaptureOptions options;
  options.ring_bytes = 4096;
  auto capture = rig::load(rig::features(), options);
  rig::Workload workload("flood");
  REQUIRE(capture->add_target(workload.pid()).ok());
  capture->attach(rig::provider_plan(), workload.pid(), {});

  uint64_t consumed = 0;
  auto count = [](void* context, void*, size_t) {
    ++*static_cast<uint64_t*>(context);
    return 0;
  };
  ring_buffer* ring = ring_buffer__new(capture->ring_map_fd(), count, &consumed, nullptr);
  REQUIRE(ring);
  std::atomic<bool> done = false;
  std::thread flood([&] {
    workload.act();
    done = true;
  });
  while (!done) ring_buffer__consume(ring);
  flood.join();
  ring_buffer__consume(ring);
  ring_buffer__free(ring);

  const auto counters = capture->counters();
  constexpr uint64_t kThreads = 8, kRounds = 20000;
  // A post and a completion a round; a context, a QP and no more a thread.
  REQUIRE(counters[SIGMA_COUNT_ATTEMPTS] == kThreads * (2 * kRounds + 2));
  REQUIRE(counters[SIGMA_COUNT_DROPPED] > 0);
  REQUIRE(counters[SIGMA_COUNT_ATTEMPTS] == consumed + counters[SIGMA_COUNT_DROPPED]);
}

TEST_CASE("a return probe under a seccomp allow-list: the verdict holds") {
  // The child in the self-test has such a list; whichever the verdict, it has to have a reason.
  for (const ReturnForm form : {ReturnForm::perf, ReturnForm::multi, ReturnForm::session}) {
    const SeccompVerdict verdict = return_probe_under_seccomp(form);
    REQUIRE(verdict.survives == verdict.detail.empty());
  }
  REQUIRE(rig::features().return_probe_under_seccomp ==
          return_probe_under_seccomp(ReturnForm::session).survives);
}

TEST_CASE("a hit has a cost") {
  const Result<HitCost> cost = calibrate(rig::features());
  REQUIRE(cost.ok());
  REQUIRE(cost->filtered_ns > 0);
  REQUIRE(cost->post_ns > 0);
  REQUIRE(cost->checked_ns > 0);
  REQUIRE(cost->empty_poll_ns > 0);
}

TEST_CASE("capabilities are dropped to the set that tracing needs") {
  const pid_t child = fork();
  if (child == 0) {
    const CapabilitySet keep = capabilities_while_tracing();
    if (!limit_capabilities(keep).ok()) _exit(1);
    const auto held = effective_capabilities();
    if (!held.ok() || (held->bits() & ~keep.bits())) _exit(2);
    if (held->has(Capability::sys_admin)) _exit(3);
    if (!require_capabilities(*held).ok()) _exit(4);
    if (require_capabilities(CapabilitySet()).ok()) _exit(5);
    _exit(0);
  }
  int status = -1;
  waitpid(child, &status, 0);
  REQUIRE(status == 0);
}
