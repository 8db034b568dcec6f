// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// resolve: which instructions of which files to probe, for libibverbs and any provider, stripped or
// not. This header is the vocabulary; resolver.h has the class that makes the plans.
//
// A provider's functions are identified by what the application calls them through: the tables that
// it hands to verbs_set_ops, and the pointers that it stores into struct ibv_qp_ex. Names (.symtab,
// or a debug file) check that identity where they exist and stand in for it where the tables cannot
// be followed; the live route adds what a running process shows. A rung that is unsure attaches
// nothing and says why. ELF files are hostile input: bounded, every offset checked.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "bpf/config.h"

namespace sigma {

enum class Route : uint8_t {
  symbols,
  debug_file,
  debug_data,
  ops_table,
  window_scan,
  qp_ex_stores,
  cq_ex_stores,
  live
};

// What the kernel does with the probed instruction: emulated ones cost ~0.5 us, single-stepped ones
// ~10 us under virtualisation (facts: bench post).
enum class InstructionKind : uint8_t { push, nop, nop5, jump, call, single_step };

std::string_view route_name(Route route);
std::string_view instruction_kind_name(InstructionKind kind);

struct ProbeSite {
  uint64_t file_offset = 0;  // what the kernel wants: offset in the file
  uint32_t delta = 0;        // bytes from the function's entry
  InstructionKind kind = InstructionKind::single_step;
  bool return_valid = false;  // [rsp] is the return address here: a return probe is safe
  uint32_t expected_ns = 0;   // entry probe, from scripts/bench on the reference machine
  std::string instruction;    // disassembled, for doctor
};

struct ResolvedFunction {
  sigma_function function;
  Route route;
  uint64_t address = 0;      // link-time virtual address of the entry
  uint64_t file_offset = 0;  // of the entry
  ProbeSite site;            // for an entry probe alone
  ProbeSite return_site;     // for entry + return, or a return probe: return_valid holds
  std::string symbol;        // when known
  bool seen_live = false;    // a running process calls through a pointer to it
  // Offset in the file of the 16 bits in which the kernel counts the probes on it; 0: none.
  uint64_t counter_offset = 0;
};

struct UnresolvedFunction {
  sigma_function function;
  std::string reason;
};

// gpu_library: libsigmatrace_gpu.so, our own, preloaded into jobs.
enum class LibraryKind : uint8_t { other, libibverbs, provider, gpu_library };

// What to probe in one file.
struct LibraryPlan {
  LibraryKind kind = LibraryKind::other;
  std::string path;                            // as opened
  std::string name;                            // "libmlx5", "librxe"
  std::string build_id;                        // hex
  std::vector<ResolvedFunction> functions;     // all variants of each, no two at one address
  std::vector<UnresolvedFunction> unresolved;  // what is not covered, and why
  // How the provider keeps the completion at which an ibv_cq_ex stands.
  sigma_cq_layout cq_layout = {};
  // gpu_library: offset in the file of its registry of queues; 0: it exports none.
  uint64_t registry_offset = 0;
  std::vector<std::string> notes;  // for doctor: doubts, conflicts, debug files not used
};

}  // namespace sigma
