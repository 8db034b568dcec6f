// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// The test's own provider in many builds, stripped; the truth is the symbol table of its full twin.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <set>

#include "catch.h"
#include "resolve/functions.h"
#include "resolve_support.h"

using namespace sigma;

namespace {

using Found = std::map<std::string, std::set<uint64_t>>;

std::string text(const Found& found) {
  std::string text;
  for (const auto& [name, addresses] : found)
    text += fmt::format("{} {:#x}\n", name, fmt::join(addresses, " "));
  return text;
}

Found truth_of(const std::string& full) {
  Found truth;
  for (const auto& [name, address] : nm(full))
    if (name.starts_with("fake_"))
      if (sigma_function function = meant_by(name))
        truth[std::string(function_name(function))].insert(address);
  return truth;
}

Found functions_of(const LibraryPlan& plan) {
  Found found;
  for (const ResolvedFunction& function : plan.functions)
    found[std::string(function_name(function.function))].insert(function.address);
  return found;
}

SharedPlan plan_of(const std::string& path) {
  Resolver resolver;
  CHECK(resolver.classify(path) == LibraryKind::provider);
  auto plan = resolver.plan(path, fixture("libibverbs.so.1"));
  INFO((plan ? path : plan.error().what));
  REQUIRE(plan.ok());
  for (const std::string& note : (*plan)->notes) UNSCOPED_INFO(note);
  return *plan;
}

}  // namespace

TEST_CASE("a stripped provider resolves to what its full twin names, in every build") {
  for (const std::string& name : fixture_providers()) {
    DYNAMIC_SECTION(name) {
      Found truth = truth_of(fixture(name + ".full.so"));
      CHECK(truth.size() == 20);
      auto plan = plan_of(fixture(name + ".so"));
      CHECK(text(functions_of(*plan)) == text(truth));
      CHECK(plan->unresolved.empty());
      CHECK(plan->name == name);
      check_invariants(*plan);
      for (const ResolvedFunction& function : plan->functions) CHECK(function.symbol.empty());
    }
  }
}

TEST_CASE("the fixtures really are what their names promise") {
  CHECK(output_of("readelf -d " + fixture("gcc_relr.so")).find("RELR") != std::string::npos);
  CHECK(output_of("readelf -d " + fixture("clang_lld.so")).find("RELR") != std::string::npos);
  CHECK(output_of("readelf -S " + fixture("gcc_cet.so")).find(".plt.sec") != std::string::npos);
  CHECK_THAT(output_of("readelf -rW " + fixture("gcc_noplt.so") + " | grep verbs_set_ops"),
             ContainsSubstring("R_X86_64_GLOB_DAT"));
  CHECK(output_of("readelf -d " + fixture("gcc_sysv.so")).find("GNU_HASH") == std::string::npos);
  CHECK(output_of("objdump -d " + fixture("gcc_o3_avx.so")).find("ymm") != std::string::npos);
  for (const std::string& name : fixture_providers())
    CHECK(output_of("readelf -S " + fixture(name + ".so")).find(".symtab") == std::string::npos);
}

TEST_CASE("symbols name the functions of a provider that was not stripped") {
  auto plan = plan_of(fixture("gcc_o2.full.so"));
  auto symbols = nm(fixture("gcc_o2.full.so"));
  CHECK(text(functions_of(*plan)) == text(truth_of(fixture("gcc_o2.full.so"))));
  for (const ResolvedFunction& function : plan->functions) {
    CHECK(symbols.at(function.symbol) == function.address);
    CHECK(function.route != Route::symbols);  // identity comes from the tables all the same
  }
}

TEST_CASE("the readers of an extended CQ tell where its completion is, in every optimised build") {
  for (const std::string& name : fixture_providers()) {
    // Not a straight line; loads that swap (movbe), which are not understood: then all stays unknown.
    if (name.ends_with("_o0") || name.ends_with("_avx")) continue;
    DYNAMIC_SECTION(name) {
      auto plan = plan_of(fixture(name + ".so"));
      const sigma_cq_layout& layout = plan->cq_layout;
      CHECK(layout.kind == SIGMA_CQ_FIELDS);
      const auto& fields = layout.fields;
      const uint32_t pointer = sizeof(ibv_cq_ex) + 8;
      const auto is = [&](sigma_cq_field_name field, uint32_t offset, int size, bool swapped,
                          int shift, uint32_t mask) {
        INFO("field " << field);
        CHECK(fields[field].pointer == pointer);
        CHECK(fields[field].offset == offset);
        CHECK(fields[field].size == size);
        CHECK(fields[field].swapped == swapped);
        CHECK(fields[field].shift == shift);
        CHECK(fields[field].mask == mask);
      };
      // clang masks before it swaps, which is not understood: then the field stays unknown.
      if (name.starts_with("gcc_"))
        is(SIGMA_CQ_QP_NUM, 8, 4, true, 0, 0xffffff);
      else
        CHECK(fields[SIGMA_CQ_QP_NUM].size == 0);
      is(SIGMA_CQ_BYTE_LEN, 4, 4, true, 0, ~0u);
      is(SIGMA_CQ_VENDOR_ERR, 1, 1, false, 0, 0xff);
      is(SIGMA_CQ_SRC_QP, 12, 4, false, 8, 0xffffff);
      CHECK(fields[SIGMA_CQ_OPCODE].size == 0);  // it is computed
      CHECK(fields[SIGMA_CQ_IMM].size == 0);     // there is no reader
      CHECK(fields[SIGMA_CQ_WC_FLAGS].pointer == SIGMA_CQ_EMBEDDED);
      CHECK(fields[SIGMA_CQ_WC_FLAGS].offset == offsetof(ibv_cq_ex, comp_mask));
    }
  }
}

TEST_CASE("a table embedded in a structure is found by its looks") {
  auto plan = plan_of(fixture("gcc_embedded.so"));
  for (const ResolvedFunction& function : plan->functions)
    if (function.function == SIGMA_FN_POST_SEND) CHECK(function.route == Route::window_scan);
}

TEST_CASE("without libibverbs nothing is attached to a stripped provider, and the plan says why") {
  Resolver resolver;
  auto plan = resolver.plan(fixture("gcc_o2.so"), "");
  REQUIRE(plan.ok());
  CHECK((*plan)->functions.empty());
  REQUIRE((*plan)->unresolved.size() == 4);
  CHECK_THAT((*plan)->unresolved[0].reason, ContainsSubstring("libibverbs"));
}

TEST_CASE("without libibverbs names stand in, where they leave no choice") {
  Resolver resolver;
  auto plan = resolver.plan(fixture("gcc_embedded.full.so"), "");
  REQUIRE(plan.ok());
  auto truth = truth_of(fixture("gcc_embedded.full.so"));
  auto found = functions_of(**plan);
  CHECK(found["post_send"] == truth["post_send"]);
  CHECK(found["post_srq_recv"] == truth["post_srq_recv"]);
  for (const ResolvedFunction& function : (*plan)->functions)
    CHECK(function.route == Route::symbols);
}

TEST_CASE("the libibverbs of another order is not believed") {
  // The system's own has other slots: read through it, the fixture's table contradicts its anchors.
  Resolver resolver;
  auto plan = resolver.plan(fixture("gcc_o2.so"), RESOLVE_LIBDIR "/libibverbs.so.1");
  REQUIRE(plan.ok());
  CHECK((*plan)->functions.empty());
  CHECK(!(*plan)->notes.empty());
  CHECK(!(*plan)->unresolved.empty());
}

TEST_CASE("plans are kept by content and carry the path that was asked for") {
  Resolver resolver;
  auto first = resolver.plan(fixture("gcc_o2.so"), fixture("libibverbs.so.1"));
  auto again = resolver.plan(fixture("gcc_o2.so"), fixture("libibverbs.so.1"));
  REQUIRE((first.ok() && again.ok()));
  CHECK(first->get() == again->get());
  auto elsewhere = resolver.plan("/proc/self/root" + fixture("gcc_o2.so"),
                                 fixture("libibverbs.so.1"), "/opt/lib/libfake-rdmav34.so");
  REQUIRE(elsewhere.ok());
  CHECK((*elsewhere)->path == "/proc/self/root" + fixture("gcc_o2.so"));
  CHECK((*elsewhere)->name == "libfake");
  CHECK((*elsewhere)->functions.size() == (*first)->functions.size());
}

TEST_CASE("files that are no library of ours are told apart cheaply and refused") {
  Resolver resolver;
  CHECK(resolver.classify(fixture("libibverbs.so.1")) == LibraryKind::libibverbs);
  CHECK(resolver.classify(fixture("sites.so")) == LibraryKind::other);
  CHECK(resolver.classify("/proc/self/exe") == LibraryKind::other);
  CHECK(resolver.classify("/dev/zero") == LibraryKind::other);
  CHECK(resolver.classify("/nonexistent") == LibraryKind::other);
  auto plan = resolver.plan(fixture("sites.so"), "");
  REQUIRE(!plan.ok());
  CHECK_THAT(plan.error().what, ContainsSubstring("neither libibverbs nor one of its providers"));
  auto missing = resolver.plan("/nonexistent", "");
  REQUIRE(!missing.ok());
  CHECK_THAT(missing.error().what, ContainsSubstring("No such file"));
}
