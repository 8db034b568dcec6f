// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
#include "resolve_support.h"

#include <fmt/format.h>

#include <cstdio>
#include <fstream>
#include <iterator>
#include <set>
#include <sstream>

#include "catch.h"
#include "resolve/functions.h"

using namespace sigma;

std::string fixture(std::string_view name) {
  return fmt::format("{}/{}", RESOLVE_FIXTURES, name);
}

std::vector<std::string> fixture_providers() {
  std::vector<std::string> names;
  std::istringstream list(RESOLVE_PROVIDERS);
  for (std::string name; std::getline(list, name, ',');) names.push_back(name);
  return names;
}

std::string output_of(const std::string& command) {
  FILE* pipe = popen(command.c_str(), "r");
  REQUIRE(pipe);
  std::string output;
  char buffer[65536];
  while (size_t got = fread(buffer, 1, sizeof buffer, pipe)) output.append(buffer, got);
  INFO(command);
  REQUIRE(pclose(pipe) == 0);
  return output;
}

std::vector<std::byte> bytes_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  INFO(path);
  REQUIRE(file);
  std::vector<char> text{std::istreambuf_iterator<char>(file), {}};
  auto* data = reinterpret_cast<const std::byte*>(text.data());
  return {data, data + text.size()};
}

ElfFile open_elf(const std::string& path) {
  auto elf = ElfFile::open(path);
  INFO((elf ? path : elf.error().what));
  REQUIRE(elf.ok());
  return *std::move(elf);
}

std::map<std::string, uint64_t> nm(const std::string& path) {
  std::map<std::string, uint64_t> symbols;
  std::istringstream lines(output_of("nm --defined-only " + path));
  std::string address, type, name;
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);  // an archive has headings between
    if (!(words >> address >> type >> name)) continue;
    if (type == "t" || type == "T") symbols[name] = std::stoull(address, nullptr, 16);
  }
  REQUIRE(!symbols.empty());
  return symbols;
}

sigma_function meant_by(std::string_view name) {
  // Names that are unlike the operation's.
  if (name.ends_with("_post_receive")) return SIGMA_FN_POST_RECV;
  if (name.ends_with("wr_set_addr")) return SIGMA_FN_WR_SET_UD_ADDR;
  if (name.ends_with("post_srq")) return SIGMA_FN_POST_SRQ_RECV;
  sigma_function meant{};
  size_t longest = 0;
  for (const FunctionInfo& info : kFunctions) {
    std::string_view word = info.name;
    if (word.starts_with("wr_")) {
      // Providers write mlx5_send_wr_send_imm, efa_send_wr_set_sge, wr_rdma_write.
      if (name.find("wr_") == name.npos) continue;
      word.remove_prefix(3);
    }
    if (word.size() > longest && name.find(word) != name.npos) {
      longest = word.size();
      meant = info.function;
    }
  }
  return meant;
}

void check_invariants(const LibraryPlan& plan) {
  INFO(plan.path);
  auto elf = open_elf(plan.path);
  std::set<uint64_t> entries, sites;
  for (const ResolvedFunction& function : plan.functions) {
    INFO(fmt::format("{} at {:#x}", function_name(function.function), function.address));
    CHECK(entries.insert(function.address).second);
    CHECK(sites.insert(function.site.file_offset).second);
    const FunctionRange* range = elf.function_at(function.address);
    REQUIRE(range);
    CHECK(elf.offset_of(function.address) == function.file_offset);
    CHECK(function.return_site.return_valid);
    std::istringstream listing(output_of(fmt::format(
        "objdump -d --no-show-raw-insn --start-address={:#x} --stop-address={:#x} {} | grep -oE "
        "'^ +[0-9a-f]+:'",
        range->start, range->end(), plan.path)));
    std::set<uint64_t> boundaries;
    for (std::string line; std::getline(listing, line);)
      boundaries.insert(std::stoull(line.substr(0, line.find(':')), nullptr, 16));
    for (const ProbeSite* site : {&function.site, &function.return_site}) {
      INFO(site->instruction);
      CHECK(site->file_offset == function.file_offset + site->delta);
      CHECK(boundaries.count(function.address + site->delta) == 1);
      CHECK(!site->instruction.empty());
      CHECK(site->expected_ns > 0);
    }
  }
}
