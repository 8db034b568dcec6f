// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// OpsOrder: which slot of a provider's struct verbs_context_ops holds which function.
//
// The structure is private to rdma-core and changes between releases; neither the package version
// nor the private symbol node identifies it. It is read off the libibverbs that the same process
// maps: the exported verbs_set_ops(vctx, ops) copies ops+X to the public struct ibv_context at
// vctx+Y, whose layout is frozen ABI.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "resolve/code.h"

namespace sigma {

struct OpsOrder {
  std::vector<std::string> names;  // by slot; empty where it could not be named
  bool derived = false;            // from verbs_set_ops; else a known order of this size, which the
                                   // caller must cross-check against a provider's anchors
  // Slot of a function, or -1.
  int index(std::string_view name) const;
};

// Fails when it finds no verbs_set_ops, or when what it derives contradicts itself: private and
// public stores must agree, names must be in alphabetical order (true of every release from 17 to
// 65).
Result<OpsOrder> derive_ops_order(Code& libibverbs);

}  // namespace sigma
