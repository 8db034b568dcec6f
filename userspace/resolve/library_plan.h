// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// One plan, from parsed files. Resolver keeps them.
#pragma once

#include <span>

#include "resolve/debug_file.h"
#include "resolve/ops_order.h"
#include "resolve/resolver.h"

namespace sigma {

LibraryPlan plan_libibverbs(Code& code, const SymbolNames& names);
LibraryPlan plan_gpu_library(Code& code, const SymbolNames& names);

// `order` nullptr: no libibverbs is known, or its order could not be derived (`why`).
LibraryPlan plan_provider(Code& code, const SymbolNames& names, const OpsOrder* order,
                          const std::string& why);

// Merges what a running process shows into a plan.
void apply_live(LibraryPlan& plan, Code& code, const SymbolNames& names,
                std::span<const LivePointer> live);

}  // namespace sigma
