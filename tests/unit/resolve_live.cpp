// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// The live route: what a running process shows, merged into a plan.
#include <algorithm>

#include "catch.h"
#include "resolve_support.h"

using namespace sigma;

namespace {

uint64_t offset_of(const std::string& name) {
  auto elf = open_elf(fixture("gcc_o2.so"));
  auto offset = elf.offset_of(nm(fixture("gcc_o2.full.so")).at(name));
  REQUIRE(offset);
  return *offset;
}

LibraryPlan with_live(std::vector<LivePointer> live, const std::string& libibverbs) {
  Resolver resolver;
  auto plan = resolver.plan_from_live(fixture("gcc_o2.so"), libibverbs, live);
  REQUIRE(plan.ok());
  return **plan;
}

const ResolvedFunction* at(const LibraryPlan& plan, uint64_t offset) {
  auto found = std::find_if(plan.functions.begin(), plan.functions.end(),
                            [&](const ResolvedFunction& f) { return f.file_offset == offset; });
  return found == plan.functions.end() ? nullptr : &*found;
}

}  // namespace

TEST_CASE("live pointers confirm what the tables said") {
  uint64_t post_send = offset_of("fake_post_send");
  auto plan = with_live({{SIGMA_FN_POST_SEND, post_send}}, fixture("libibverbs.so.1"));
  REQUIRE(at(plan, post_send));
  CHECK(at(plan, post_send)->seen_live);
  CHECK(at(plan, post_send)->route == Route::ops_table);
  CHECK(!at(plan, offset_of("fake_post_recv"))->seen_live);
  CHECK(plan.notes.empty());
}

TEST_CASE("live pointers alone make a plan") {
  uint64_t post_send = offset_of("fake_post_send"), send_ud = offset_of("fake_wr_send_ud");
  auto plan = with_live({{SIGMA_FN_POST_SEND, post_send}, {SIGMA_FN_WR_SEND, send_ud}}, "");
  REQUIRE(plan.functions.size() == 2);
  for (const ResolvedFunction& function : plan.functions) CHECK(function.route == Route::live);
  CHECK(at(plan, send_ud)->function == SIGMA_FN_WR_SEND);
  check_invariants(plan);
  for (const UnresolvedFunction& missing : plan.unresolved)
    CHECK(missing.function != SIGMA_FN_POST_SEND);
}

TEST_CASE("on a conflict the process is right, and the plan says so") {
  uint64_t post_send = offset_of("fake_post_send");
  auto plan = with_live({{SIGMA_FN_POST_RECV, post_send}}, fixture("libibverbs.so.1"));
  REQUIRE(at(plan, post_send));
  CHECK(at(plan, post_send)->function == SIGMA_FN_POST_RECV);
  REQUIRE(plan.notes.size() == 1);
  CHECK_THAT(plan.notes[0], ContainsSubstring("was taken for post_send"));
}

TEST_CASE("live pointers into the middle of a function or into data are not probed") {
  auto before = with_live({}, fixture("libibverbs.so.1")).functions.size();
  auto plan = with_live({{SIGMA_FN_POST_SEND, offset_of("fake_post_send") + 1},
                         {SIGMA_FN_POST_SEND, 64},
                         {SIGMA_FN_POST_SEND, UINT64_MAX}},
                        fixture("libibverbs.so.1"));
  CHECK(plan.functions.size() == before);
  CHECK(plan.notes.size() + plan.unresolved.size() == 3);
}
