// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// The probed functions and the BPF programs that serve them: one row for each enum sigma_function.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "bpf/config.h"

namespace sigma {

enum class ReturnUse : uint8_t {
  none,      // entry only
  checks,    // tells refused calls; the entry is useful without it
  required,  // the result is only there at the return
};

struct ProbeRow {
  sigma_function function;
  std::string_view name;  // "post_send": for people, and the key in doctor's JSON
  const char* entry;      // BPF program at the entry
  const char* at_return;  // BPF program at the return; nullptr without
  const char* session;    // both in one, for session links; nullptr without
  ReturnUse return_use;
  bool completion;  // belongs to the completion side (AttachPolicy::completions)
};

// In the order of enum sigma_function.
std::span<const ProbeRow> probe_table();
const ProbeRow& probe_row(sigma_function function);
std::string_view to_string(sigma_function function);

}  // namespace sigma
