// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// The providers of a release of rdma-core, stripped: the installed one, or that of another root
// (tests/releases). What their functions are called is known from the static archives of the same
// build.
#include <fmt/format.h>
#include <infiniband/mlx5dv.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <set>

#include "catch.h"
#include "resolve/functions.h"
#include "resolve_archive.h"
#include "resolve_support.h"

using namespace sigma;
namespace fs = std::filesystem;

namespace {

// Where the release's libraries lie.
const std::string& libdir() {
  static const std::string path = [] {
    const char* other = std::getenv("SIGMA_RESOLVE_LIBDIR");
    return std::string(other ? other : RESOLVE_LIBDIR);
  }();
  return path;
}

std::string libibverbs() {
  return libdir() + "/libibverbs.so.1";
}
std::string libmlx5() {
  return libdir() + "/libmlx5.so.1";
}

std::vector<std::string> installed_providers() {
  std::vector<std::string> paths;
  for (const auto& entry : fs::directory_iterator(libdir() + "/libibverbs"))
    if (entry.path().extension() == ".so") paths.push_back(entry.path());
  std::sort(paths.begin(), paths.end());
  REQUIRE(paths.size() >= 10);
  return paths;
}

// libmlx5-rdmav34.so is a link to libmlx5.so.1.24.44.0, and its archive is libmlx5.a.
std::string archive_of(const std::string& provider) {
  for (std::string stem : {fs::path(provider).stem().string(),
                           provider.substr(provider.rfind('/') + 1,
                                           provider.find("-rdmav") - provider.rfind('/') - 1)})
    if (fs::exists(fmt::format("{}/{}.a", libdir(), stem)))
      return fmt::format("{}/{}.a", libdir(), stem);
  return {};
}

SharedPlan plan_of(Resolver& resolver, const std::string& path) {
  CHECK(resolver.classify(path) == LibraryKind::provider);
  auto plan = resolver.plan(path, libibverbs());
  INFO((plan ? path : plan.error().what));
  REQUIRE(plan.ok());
  return *plan;
}

bool has(const LibraryPlan& plan, sigma_function function) {
  return std::any_of(plan.functions.begin(), plan.functions.end(),
                     [&](const ResolvedFunction& f) { return f.function == function; });
}

}  // namespace

TEST_CASE("libibverbs: execute_ioctl and the default version of ibv_close_device") {
  Resolver resolver;
  CHECK(resolver.classify(libibverbs()) == LibraryKind::libibverbs);
  auto plan = resolver.plan(libibverbs(), "");
  REQUIRE(plan.ok());
  CHECK((*plan)->kind == LibraryKind::libibverbs);
  CHECK((*plan)->name == "libibverbs");
  REQUIRE((*plan)->functions.size() == 2);
  CHECK((*plan)->unresolved.empty());
  check_invariants(**plan);
  for (const ResolvedFunction& function : (*plan)->functions) {
    std::string version =
        output_of(fmt::format("nm -D {} | grep -E ' {}@@'", libibverbs(), function.symbol));
    CHECK(std::stoull(version, nullptr, 16) == function.address);
  }
}

TEST_CASE("every installed provider gives its data path") {
  Resolver resolver;
  for (const std::string& path : installed_providers()) {
    DYNAMIC_SECTION(fs::path(path).filename().string()) {
      auto plan = plan_of(resolver, path);
      for (const std::string& note : plan->notes) UNSCOPED_INFO(note);
      CHECK(has(*plan, SIGMA_FN_POST_SEND));
      CHECK(has(*plan, SIGMA_FN_POST_RECV));
      CHECK(has(*plan, SIGMA_FN_POLL_CQ));
      CHECK(plan->unresolved.empty());
      check_invariants(*plan);
    }
  }
}

TEST_CASE("the table of providers: each function found, or the reason why not") {
  Resolver resolver;
  std::string table = fmt::format("{:<16}", "");
  for (const FunctionInfo& info : kFunctions)
    if (info.holder == Holder::context_ops) table += fmt::format("{:>14}", info.name);
  table += "   wr_*  stepped\n";
  for (const std::string& path : installed_providers()) {
    auto plan = plan_of(resolver, path);
    std::map<sigma_function, int> variants;
    for (const ResolvedFunction& function : plan->functions) ++variants[function.function];
    table += fmt::format("{:<16}", plan->name);
    int extended = 0;
    const auto stepped = std::count_if(
        plan->functions.begin(), plan->functions.end(),
        [](const ResolvedFunction& f) { return f.site.kind == InstructionKind::single_step; });
    std::string reasons;
    for (const FunctionInfo& info : kFunctions) {
      if (info.holder == Holder::context_ops)
        table += fmt::format("{:>14}", variants[info.function]);
      if (info.holder == Holder::qp_ex) extended += variants[info.function] > 0;
    }
    for (const UnresolvedFunction& missing : plan->unresolved) {
      INFO(path);
      CHECK(!missing.reason.empty());
      CHECK(variants[missing.function] == 0);
      reasons += fmt::format("  {}: {}", function_name(missing.function), missing.reason);
    }
    table += fmt::format("{:>7}{:>9}{}\n", extended, stepped, reasons);
  }
  std::cout << table;
}

TEST_CASE("every function of an installed provider is like the one of that name in the archive") {
  // Siblings (RDMA write, with immediate, read) are like each other: the best of the right name
  // must be nearly as like as the best of all. libmlx5's are told apart exactly by the next test.
  constexpr double kNearly = 0.75;
  Resolver resolver;
  int compared = 0;
  for (const std::string& path : installed_providers()) {
    INFO(path);
    std::string archive_path = archive_of(path);
    REQUIRE(!archive_path.empty());
    auto archive = archive_signatures(archive_path);
    Listing listing(path);
    auto plan = plan_of(resolver, path);
    auto elf = open_elf(path);
    for (const ResolvedFunction& function : plan->functions) {
      const FunctionRange* range = elf.function_at(function.address);
      REQUIRE(range);
      auto wanted = listing.signature(range->start, range->end());
      if (words(wanted) < 4) continue;  // mlx5_post_send is a single jump
      double right = 0, best = 0;
      std::string most;
      for (const auto& [name, signature] : archive) {
        double score = likeness(signature, wanted);
        if (score > best) best = score, most = name;
        if (meant_by(name) == function.function) right = std::max(right, score);
      }
      INFO(fmt::format("{} at {:#x}: {:.2f}; {}: {:.2f}", function_name(function.function),
                       function.address, right, most, best));
      CHECK(best > 0.5);
      CHECK(right >= kNearly * best);
      ++compared;
    }
  }
  CHECK(compared > 6 * static_cast<int>(installed_providers().size()));
}

TEST_CASE("libmlx5's builders contain the opcode that they are for") {
  struct Row {
    sigma_function function;
    unsigned opcode;
  };
  constexpr Row kRows[] = {
      {SIGMA_FN_WR_RDMA_WRITE, MLX5_OPCODE_RDMA_WRITE},
      {SIGMA_FN_WR_RDMA_WRITE_IMM, MLX5_OPCODE_RDMA_WRITE_IMM},
      {SIGMA_FN_WR_RDMA_READ, MLX5_OPCODE_RDMA_READ},
      {SIGMA_FN_WR_ATOMIC_CMP_SWP, MLX5_OPCODE_ATOMIC_CS},
      {SIGMA_FN_WR_ATOMIC_FETCH_ADD, MLX5_OPCODE_ATOMIC_FA},
      {SIGMA_FN_WR_SEND, MLX5_OPCODE_SEND},
      {SIGMA_FN_WR_SEND_IMM, MLX5_OPCODE_SEND_IMM},
      {SIGMA_FN_WR_SEND_INV, MLX5_OPCODE_SEND_INVAL},
      {SIGMA_FN_WR_SEND_TSO, MLX5_OPCODE_TSO},
      {SIGMA_FN_WR_LOCAL_INV, MLX5_OPCODE_UMR},
      {SIGMA_FN_WR_BIND_MW, MLX5_OPCODE_UMR},
  };
  Resolver resolver;
  auto plan = plan_of(resolver, libmlx5());
  Listing listing(libmlx5());
  auto elf = open_elf(libmlx5());
  for (const Row& row : kRows) {
    INFO(function_name(row.function));
    CHECK(has(*plan, row.function));
    for (const ResolvedFunction& function : plan->functions) {
      if (function.function != row.function) continue;
      const FunctionRange* range = elf.function_at(function.address);
      auto signature = listing.signature(range->start, range->end());
      // mlx5_wqe_ctrl_seg's first word: opcode | index << 8.
      std::set<std::string> opcodes;
      for (const Row& other : kRows)
        if (signature.count(fmt::format("or {:#x}", other.opcode)))
          opcodes.insert(fmt::format("{:#x}", other.opcode));
      CHECK(opcodes.count(fmt::format("{:#x}", row.opcode)) == 1);
      // Only a UMR's builder has other constants that may look like opcodes.
      if (row.opcode != MLX5_OPCODE_UMR) CHECK(opcodes.size() == 1);
    }
  }
}

TEST_CASE("libmlx5: as many variants of each builder as the archive has") {
  std::map<sigma_function, int> expected, found;
  for (const auto& [name, address] : nm(libdir() + "/libmlx5.a")) {
    bool builder = name.starts_with("mlx5_send_wr_") && name.find('.') == name.npos;
    // The vendor's own interface (memory keys, DCIs) is not of ibv_qp_ex.
    for (const char* vendor : {"mkey", "_dc_addr", "mr_interleaved", "mr_list"})
      builder = builder && name.find(vendor) == name.npos;
    if (builder) ++expected[meant_by(name)];
  }
  Resolver resolver;
  for (const ResolvedFunction& function : plan_of(resolver, libmlx5())->functions)
    if (function.function >= SIGMA_FN_WR_START) ++found[function.function];
  REQUIRE(expected.size() > 15);
  for (const FunctionInfo& info : kFunctions) {
    INFO(info.name);
    if (info.holder == Holder::qp_ex) CHECK(found[info.function] == expected[info.function]);
  }
}

TEST_CASE("libmlx5: both poll functions, the setters of all QP types, cheap sites") {
  Resolver resolver;
  auto plan = plan_of(resolver, libmlx5());
  CHECK(plan->name == "libmlx5");
  auto count = [&](sigma_function function) {
    return std::count_if(plan->functions.begin(), plan->functions.end(),
                         [&](const ResolvedFunction& f) { return f.function == function; });
  };
  CHECK(count(SIGMA_FN_POLL_CQ) == 2);
  CHECK(count(SIGMA_FN_WR_SET_SGE) == 3);
  CHECK(count(SIGMA_FN_WR_START) == 1);
  CHECK(count(SIGMA_FN_WR_COMPLETE) >= 1);
  for (const ResolvedFunction& function : plan->functions)
    // Newer compilers leave poll_cq none (rdma-core 65, GCC 15: no push, and the first jump comes
    // after the arguments are gone); on mlx5 completions are read from the ring.
    if (function.function < SIGMA_FN_POLL_CQ)
      CHECK(function.site.kind != InstructionKind::single_step);
}

TEST_CASE("libmlx5: every variant of start_poll and next_poll, and completions in its CQEs") {
  std::map<sigma_function, int> expected, found;
  for (const auto& [name, address] : nm(libdir() + "/libmlx5.a")) {
    if (name.find('.') != name.npos) continue;
    if (name.starts_with("mlx5_start_poll")) ++expected[SIGMA_FN_START_POLL];
    if (name.starts_with("mlx5_next_poll")) ++expected[SIGMA_FN_NEXT_POLL];
  }
  Resolver resolver;
  auto plan = plan_of(resolver, libmlx5());
  for (const ResolvedFunction& function : plan->functions) ++found[function.function];
  CHECK(expected[SIGMA_FN_START_POLL] >= 16);
  CHECK(found[SIGMA_FN_START_POLL] == expected[SIGMA_FN_START_POLL]);
  CHECK(found[SIGMA_FN_NEXT_POLL] == expected[SIGMA_FN_NEXT_POLL]);
  CHECK(plan->cq_layout.kind == SIGMA_CQ_MLX5);
  CHECK(plan->cq_layout.pointer >= sizeof(ibv_cq_ex));
}

TEST_CASE("every installed provider that has extended CQs gives their polls") {
  Resolver resolver;
  int extended = 0;
  for (const std::string& path : installed_providers()) {
    INFO(path);
    auto plan = plan_of(resolver, path);
    bool wanted = false;
    for (const auto& [name, address] : nm(archive_of(path)))
      wanted |= name.find("start_poll") != name.npos;
    extended += wanted;
    CHECK(has(*plan, SIGMA_FN_START_POLL) == wanted);
    CHECK(has(*plan, SIGMA_FN_NEXT_POLL) == wanted);
    if (wanted) CHECK(plan->cq_layout.fields[SIGMA_CQ_QP_NUM].size != 0);
  }
  CHECK(extended >= 3);  // as many as rdma-core 33 has; 44 has one more
}

TEST_CASE("libmlx5 keeps an address handle's vector right behind its public part") {
  // It is copied into the WQE from where struct ibv_ah ends. bpf/verbs.h relies on it.
  Resolver resolver;
  auto plan = plan_of(resolver, libmlx5());
  auto elf = open_elf(libmlx5());
  int setters = 0;
  for (const ResolvedFunction& function : plan->functions) {
    if (function.function != SIGMA_FN_WR_SET_UD_ADDR) continue;
    const FunctionRange* range = elf.function_at(function.address);
    const std::string listing = output_of(
        fmt::format("objdump -d --no-show-raw-insn --start-address={:#x} --stop-address={:#x} {}",
                    range->start, range->end(), libmlx5()));
    // Its last 16 bytes, the GID, into an xmm register.
    const std::string last =
        fmt::format("{:#x}(%", sizeof(ibv_ah) + offsetof(mlx5_wqe_av, rgid));
    const size_t at = listing.find(last);
    REQUIRE(at != listing.npos);
    CHECK(listing.find("),%xmm", at) <= at + last.size() + 4);
    ++setters;
  }
  CHECK(setters > 0);
}

TEST_CASE("users of libibverbs are not taken for providers") {
  Resolver resolver;
  CHECK(resolver.classify(libdir() + "/librdmacm.so.1") == LibraryKind::other);
  CHECK(resolver.classify(libdir() + "/../../bin/ibv_rc_pingpong") == LibraryKind::other);
}
