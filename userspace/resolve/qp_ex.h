// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// The functions behind struct ibv_qp_ex (ibv_wr_start, the builders, the setters), found without
// symbols: a provider stores pointers to them into the QP as it creates one.
#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "resolve/functions.h"
#include "resolve/ops_tables.h"

namespace sigma {

struct QpExFunctions {
  // All variants of each, by address: setters and sends differ by QP type, wr_complete by error
  // state.
  std::map<sigma_function, std::set<uint64_t>> variants;
  int64_t offset = 0;  // of ibv_qp_ex in the provider's QP
  std::string doubt;   // why nothing was believed, although something like it is there
  bool found() const { return !variants.empty(); }
};

// Empty without a doubt when the provider has no ibv_wr_* interface.
QpExFunctions find_qp_ex_functions(Code& provider, const OpsTables& tables);

}  // namespace sigma
