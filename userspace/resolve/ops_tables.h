// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// OpsTables: the tables of functions that a provider hands to verbs_set_ops, found without symbols.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "resolve/code.h"
#include "resolve/ops_order.h"

namespace sigma {

struct OpsSlot {
  std::string_view name;    // of the operation; points into the OpsOrder
  uint64_t address = 0;     // of the function in this file
  std::string_view import;  // or the function of another library
};

struct OpsTable {
  uint64_t address = 0;
  bool passed =
      false;  // seen in the second argument of a call of verbs_set_ops; else found by its looks
  int anchors_agree = 0, anchors_contradict = 0;
  std::vector<OpsSlot> slots;  // the filled ones
};

struct OpsTables {
  std::vector<OpsTable> tables;
  unsigned calls = 0;               // of verbs_set_ops
  std::vector<std::string> doubts;  // what was found and not believed, and calls without a table
};

// A table is believed only when every filled slot is the start of a function or an import, every
// empty one is zero, and no anchor contradicts ("create_qp reaches ibv_cmd_create_qp"). One found
// by its looks needs several anchors that agree besides, and must be alone.
OpsTables find_ops_tables(Code& provider, const OpsOrder& order);

}  // namespace sigma
