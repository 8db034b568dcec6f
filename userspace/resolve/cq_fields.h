// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// What a small function returns, as a place in memory: `return be32toh(cq->cqe->byte_cnt);` is four
// swapped bytes at a distance from a pointer that stands in the CQ.
#pragma once

#include <optional>

#include "bpf/config.h"
#include "resolve/code.h"

namespace sigma {

// The place whose value the function returns, when its code is a straight line that only reads it.
// nullopt: it computes more than that, or the code was not understood.
std::optional<sigma_cq_field> field_returned_by(Code& code, const FunctionRange& function);

}  // namespace sigma
