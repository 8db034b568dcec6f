// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// The functions behind struct ibv_cq_ex (ibv_start_poll, ibv_next_poll, the readers), found without
// symbols, and what the readers' code tells of where the provider keeps a completion.
#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "resolve/functions.h"
#include "resolve/ops_tables.h"

namespace sigma {

struct CqExFunctions {
  // All variants of start_poll and next_poll, by address: mlx5 has some two dozen (locked or not,
  // two CQE versions, with or without a clock...), and chooses when it makes the CQ.
  std::map<sigma_function, std::set<uint64_t>> variants;
  sigma_cq_layout layout = {};
  std::string doubt;  // why nothing was believed, although something like it is there
};

// The provider's functions that make CQs. create_cq_ex is among them, which libibverbs keeps in its
// private table only, so that the order of operations does not name it: alphabetically it follows
// create_cq.
std::vector<const FunctionRange*> cq_creators(Code& provider, const OpsTables& tables);

// Empty without a doubt when the provider has no extended CQs.
CqExFunctions find_cq_ex_functions(Code& provider, const OpsTables& tables);

}  // namespace sigma
