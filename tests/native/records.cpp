// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// What the programs record, field by field, against what the workload says it did, by each form of
// link.
#include <algorithm>
#include <cstring>

#include "catch.h"
#include "rig.h"

using namespace sigma;

namespace {

struct Run {
  std::vector<std::string> said, seen;
  std::vector<rig::SeenRecord> records;
  AttachReport report;
  std::array<uint64_t, SIGMA_COUNTERS> counters;
  int status = 0;
};

Run trace(const std::string& scenario, const Features& features,
          const std::vector<std::string>& environment = {}, CaptureOptions options = {},
          AttachPolicy policy = {}, bool layout = true) {
  Run run;
  auto capture = rig::load(features, options);
  rig::Workload workload(scenario, environment);
  REQUIRE(capture->add_target(workload.pid()).ok());
  LibraryPlan plan = rig::provider_plan();
  if (!layout) plan.cq_layout = {};
  run.report = capture->attach(plan, workload.pid(), policy);
  run.said = workload.act();
  run.records = rig::drain(*capture);
  run.seen = rig::texts(run.records);
  run.counters = capture->counters();
  run.status = workload.end();
  return run;
}

// Catch prints whole vectors; the first difference is what helps.
void require_same(const std::vector<std::string>& said, const std::vector<std::string>& seen) {
  for (size_t i = 0; i < std::min(said.size(), seen.size()); i++) {
    INFO("record " << i);
    REQUIRE(seen[i] == said[i]);
  }
  REQUIRE(seen.size() == said.size());
}

void by_each_form(const std::string& scenario) {
  for (const rig::Form& form : rig::forms()) {
    INFO(scenario << " by " << form.name);
    const Run run = trace(scenario, rig::features_without(form.without));
    for (const FailedProbe& failed : run.report.failed)
      FAIL(to_string(failed.function) << ": " << failed.reason);
    REQUIRE(run.report.without_return.empty());
    REQUIRE_FALSE(run.said.empty());
    require_same(run.said, run.seen);
    REQUIRE(run.status == 0);
    REQUIRE(run.counters[SIGMA_COUNT_ATTEMPTS] == run.seen.size());
    REQUIRE(run.counters[SIGMA_COUNT_DROPPED] == 0);
    REQUIRE(run.counters[SIGMA_COUNT_NO_ENTRY] == 0);
  }
}

}  // namespace

TEST_CASE("every opcode of post_send") {
  by_each_form("opcodes");
}
TEST_CASE("chains and scatter lists") {
  by_each_form("chain");
}
TEST_CASE("datagrams carry their address") {
  by_each_form("datagrams");
}
TEST_CASE("refused posts tell how many were accepted") {
  by_each_form("refusals");
}
TEST_CASE("builders: committed, aborted, refused") {
  by_each_form("builders");
}
TEST_CASE("polls of none, one, many and too many") {
  by_each_form("polls");
}
// A record's memory is what the ring held a round before: what a program does not set is that.
TEST_CASE("polls leave no field to what the ring held before") {
  CaptureOptions options;
  options.ring_bytes = 4096;
  auto capture = rig::load(rig::features(), options);
  rig::Workload workload("polls");
  REQUIRE(capture->add_target(workload.pid()).ok());
  capture->attach(rig::provider_plan(), workload.pid(), {});
  size_t bytes = 0;
  for (int acts = 0; bytes < 8 * options.ring_bytes; ++acts) {
    REQUIRE(acts < 100);
    workload.act();  // more than the ring takes: what finds no room is counted, and of no matter
    for (const rig::SeenRecord& record : rig::drain(*capture)) {
      bytes += record.bytes.size();
      if (record.header.type != SIGMA_COMPLETION) continue;
      sigma_completion completion;
      REQUIRE(record.bytes.size() >= sizeof completion);
      std::memcpy(&completion, record.bytes.data(), sizeof completion);
      INFO(record.text);
      REQUIRE(completion.nic_stamp == 0);
      REQUIRE(completion.unknown == 0);
      REQUIRE(completion.flags == 0);
      REQUIRE(completion.reserved == 0);
    }
  }
}

TEST_CASE("completions of extended CQs, by the provider's layout") {
  by_each_form("extended_polls");
}
TEST_CASE(
    "of an extended CQ without a known layout the public members are told, the rest is unknown") {
  const Run run = trace("extended_polls", rig::features(), {}, {}, {}, /*layout=*/false);
  size_t completions = 0;
  for (const rig::SeenRecord& record : run.records) {
    if (record.header.type != SIGMA_COMPLETION) continue;
    const auto& wc = *reinterpret_cast<const sigma_completion*>(record.bytes.data());
    completions++;
    CHECK(wc.unknown == (SIGMA_WC_NO_QP_NUM | SIGMA_WC_NO_OPCODE | SIGMA_WC_NO_BYTES |
                         SIGMA_WC_NO_VENDOR_ERR | SIGMA_WC_NO_SOURCE | SIGMA_WC_NO_IMM));
    CHECK(wc.wr_id >= 0x200000);
    CHECK(wc.qp_num == 0);
    CHECK(wc.flags == 0);
  }
  REQUIRE(completions == 45);
}
TEST_CASE("contexts and queue pairs that come again at the same address") {
  by_each_form("reopen");
}
TEST_CASE("queue pairs replaced at their address, seen by their commands") {
  by_each_form("replaced");
}
TEST_CASE("queue pairs replaced at their address, unseen") {
  by_each_form("replaced_unseen");
}
TEST_CASE("uverbs commands with their attributes") {
  by_each_form("commands");
}

TEST_CASE("lists longer than are walked are counted") {
  const Run run = trace("long_lists", rig::features());
  require_same(run.said, run.seen);
  REQUIRE(run.counters[SIGMA_COUNT_WR_OMITTED] == (300 - 256) + 4096);
}

TEST_CASE("without bpf_loop shorter lists are walked") {
  for (const char* scenario : {"opcodes", "chain", "refusals", "builders", "long_lists", "polls",
                               "extended_polls", "commands"}) {
    INFO(scenario);
    const Run run = trace(scenario, rig::features_without("loop"), {"WORKLOAD_WALKED=32"});
    require_same(run.said, run.seen);
  }
}

TEST_CASE("unreadable memory is marked and counted") {
  const Run run = trace("unreadable", rig::features());
  require_same(run.said, run.seen);
  REQUIRE(run.counters[SIGMA_COUNT_UNREADABLE] == 2);
}

TEST_CASE("without their return probe posts are unverified") {
  for (const char* scenario : {"refusals", "builders"}) {
    INFO(scenario);
    AttachPolicy policy;
    policy.check_posts = false;
    const Run run = trace(scenario, rig::features(), {"WORKLOAD_POST_FLAGS=8"}, {}, policy);
    require_same(run.said, run.seen);
    REQUIRE(run.report.failed.empty());
  }
}

TEST_CASE("where returns would kill, what needs none is still attached") {
  AttachPolicy policy;
  policy.returns_allowed = false;
  const Run run = trace("refusals", rig::features(), {"WORKLOAD_POST_FLAGS=8"}, {}, policy);
  require_same(run.said, run.seen);
  REQUIRE(run.report.failed.size() == 4);  // polls and execute_ioctl are nothing without
  REQUIRE(run.report.without_return.size() == 4);
  for (const AttachedProbe& probe : run.report.attached) REQUIRE_FALSE(probe.at_return);
}

TEST_CASE("threads: each one's records in its order") {
  const Run run = trace("threads", rig::features());
  std::map<uint32_t, uint64_t> last_of_thread;
  std::map<uint32_t, std::vector<uint64_t>> posts, polls;
  for (const rig::SeenRecord& record : run.records) {
    uint64_t& last = last_of_thread[record.header.tid];
    REQUIRE(record.header.time_ns >= last);
    last = record.header.time_ns;
    if (record.header.type == SIGMA_POST) {
      const auto& post = *reinterpret_cast<const sigma_post*>(record.bytes.data());
      posts[record.header.tid].push_back(post.wr_id);
    } else if (record.header.type == SIGMA_COMPLETION) {
      const auto& completion = *reinterpret_cast<const sigma_completion*>(record.bytes.data());
      polls[record.header.tid].push_back(completion.wr_id);
    }
  }
  REQUIRE(posts.size() == 4);
  REQUIRE(polls == posts);
  for (const auto& [tid, ids] : posts) {
    REQUIRE(ids.size() == 2000);
    for (size_t i = 0; i < ids.size(); i++) REQUIRE(ids[i] == i);
  }
}
