// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Probe sites of the functions in tests/data/resolve/sites.S; its labels are the truth.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "catch.h"
#include "resolve/probe_site.h"
#include "resolve_support.h"

using namespace sigma;

namespace {

struct Row {
  const char* function;
  unsigned arguments;
  InstructionKind kind;         // at the site for an entry probe
  InstructionKind paired_kind;  // and for entry and return
};

constexpr auto P = InstructionKind::push, J = InstructionKind::jump, C = InstructionKind::call,
               N = InstructionKind::nop, N5 = InstructionKind::nop5,
               S = InstructionKind::single_step;

constexpr Row kRows[] = {
    {"push_first", 3, P, P},         {"rex_push", 3, P, P},
    {"odd_push", 3, S, S},           {"endbr_push", 3, P, P},
    {"late_push", 3, P, P},          {"push_after_sub", 3, P, S},
    {"clobbered", 3, S, S},          {"clobbered_third", 2, P, P},
    {"clobbered_low_byte", 3, S, S}, {"clobbered_implicitly", 3, S, S},
    {"clobbered_by_cpuid", 3, S, S}, {"exchanged", 3, S, S},
    {"jump_first", 3, J, J},         {"branch", 3, J, J},
    {"near_branch", 3, J, J},        {"jcxz", 3, S, S},
    {"direct_call", 3, C, S},        {"indirect_call", 3, S, S},
    {"loop_at_site", 3, S, S},       {"loop_before_site", 3, S, S},
    {"loop_behind_site", 3, P, P},   {"retried", 3, S, S},
    {"middle_nop5", 3, S, S},        {"entry_nop5", 3, N5, N5},
    {"endbr_nop5", 3, N5, N5},       {"nop5_then_push", 3, P, P},
    {"short_nop", 3, N, N},          {"switched", 3, S, S},
    {"switched_push", 3, P, P},      {"nothing", 3, S, S},
};

const FunctionRange& function(const ElfFile& elf, const std::map<std::string, uint64_t>& labels,
                              const std::string& name) {
  INFO(name);
  REQUIRE(labels.count(name));
  const FunctionRange* range = elf.function_at(labels.at(name));
  REQUIRE(range);
  return *range;
}

}  // namespace

TEST_CASE("the probe site is where the label says") {
  auto elf = open_elf(fixture("sites.so"));
  auto labels = nm(fixture("sites.so"));
  Code code(elf);
  for (const Row& row : kRows) {
    DYNAMIC_SECTION(row.function) {
      std::string name = row.function;
      const FunctionRange& range = function(elf, labels, name);
      auto sites = choose_probe_sites(code, range, row.arguments);
      REQUIRE(sites.ok());
      auto expected = [&](const std::string& label) {
        return labels.count(label) ? labels.at(label) : range.start;
      };
      CHECK(range.start + sites->entry.delta == expected(name + ".site"));
      CHECK(range.start + sites->paired.delta == expected(name + ".paired"));
      CHECK(sites->entry.kind == row.kind);
      CHECK(sites->paired.kind == row.paired_kind);
      CHECK(sites->paired.return_valid);
      CHECK(elf.address_of(sites->entry.file_offset) == range.start + sites->entry.delta);
    }
  }
}

TEST_CASE("a site that is after a stack change is not valid for returns") {
  auto elf = open_elf(fixture("sites.so"));
  auto labels = nm(fixture("sites.so"));
  Code code(elf);
  auto sites = choose_probe_sites(code, function(elf, labels, "push_after_sub"), 3);
  REQUIRE(sites.ok());
  CHECK(!sites->entry.return_valid);
  CHECK(sites->paired.delta == 0);
  CHECK(sites->entry.expected_ns < sites->paired.expected_ns);
}

TEST_CASE("how many arguments a function has decides what may be overwritten") {
  auto elf = open_elf(fixture("sites.so"));
  auto labels = nm(fixture("sites.so"));
  Code code(elf);
  auto sites = choose_probe_sites(code, function(elf, labels, "clobbered_third"), 3);
  REQUIRE(sites.ok());
  CHECK(sites->entry.delta == 0);
}

TEST_CASE("a function that loops over its entry is refused") {
  auto elf = open_elf(fixture("sites.so"));
  auto labels = nm(fixture("sites.so"));
  Code code(elf);
  auto sites = choose_probe_sites(code, function(elf, labels, "loops_over_entry"), 1);
  REQUIRE(!sites.ok());
  CHECK_THAT(sites.error().what, ContainsSubstring("loops over its entry"));
}

TEST_CASE("the kernel's list of emulated instructions") {
  struct {
    std::vector<uint8_t> bytes;
    InstructionKind kind;
  } rows[] = {
      {{0x55}, P},
      {{0x41, 0x57}, P},
      {{0x48, 0x55}, S},  // needless REX.W
      {{0x40, 0x55}, S},  // empty REX
      {{0x66, 0x55}, S},  // 16 bits
      {{0xff, 0x37}, S},  // push from memory
      {{0x6a, 0x01}, S},  // push of a constant
      {{0x90}, N},
      {{0x66, 0x90}, N},
      {{0xf3, 0x90}, S},  // pause
      {{0x0f, 0x1f, 0x00}, N},
      {{0x0f, 0x1f, 0x44, 0x00, 0x00}, N5},
      {{0x0f, 0x1f, 0x44, 0x00, 0x01}, S},  // not the canonical form
      {{0xeb, 0x10}, J},
      {{0xe9, 0, 1, 0, 0}, J},
      {{0x74, 0x10}, J},
      {{0x7f, 0x10}, J},
      {{0x0f, 0x84, 0, 1, 0, 0}, J},
      {{0x0f, 0x8f, 0, 1, 0, 0}, J},
      {{0x66, 0xe8, 0, 0}, S},  // processors disagree on it
      {{0xe3, 0x10}, S},        // jrcxz
      {{0xe2, 0x10}, S},        // loop
      {{0xe8, 0, 1, 0, 0}, C},
      {{0xff, 0x15, 0, 0, 0, 0}, S},  // call through memory
      {{0xf3, 0x0f, 0x1e, 0xfa}, S},  // endbr64
      {{0xc3}, S},
      {{}, S},
  };
  for (const auto& row : rows) {
    INFO(fmt::format("{:02x}", fmt::join(row.bytes, " ")));
    CHECK(classify_instruction(std::as_bytes(std::span(row.bytes))) == row.kind);
  }
}
