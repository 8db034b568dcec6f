// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Where in a function to put the breakpoint.
//
// The single step is a uprobe's cost, not the trap (bench post: 10 us against 0.55 us), so an
// instruction is wanted that the kernel emulates. It must be reached exactly once in every call,
// with the argument registers still as the caller left them. Where there is none, the entry itself
// is probed.
#pragma once

#include <optional>

#include "resolve/code.h"
#include "resolve/resolve.h"

namespace sigma {

struct ProbeSites {
  ProbeSite entry;   // for a probe at entry alone
  ProbeSite paired;  // for entry and return: [rsp] still is the return address
};

// `arguments`: how many of the integer argument registers must be intact. Fails when the entry is
// not a place for a probe at all: not decodable, or its bytes are not where the file maps them.
Result<ProbeSites> choose_probe_sites(Code& code, const FunctionRange& function,
                                      unsigned arguments);

// What the kernel does with an instruction (arch/x86/kernel/uprobes.c: branch_setup_xol_ops,
// push_setup_xol_ops); single_step when it does not emulate it.
InstructionKind classify_instruction(std::span<const std::byte> bytes);

}  // namespace sigma
