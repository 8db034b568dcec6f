// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// What doctor finds: one row each, from several places.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace sigma {

enum class Verdict : uint8_t {
  ok,
  note,     // tracing works; something is slower, or will not be seen
  problem,  // nothing can be traced until it is mended
};
std::string_view to_string(Verdict verdict);

struct Finding {
  std::string area;  // "privileges", "kernel", "devices", "libraries"
  std::string name;  // "CAP_BPF", "uprobe_multi", "mlx5_0"
  Verdict verdict = Verdict::ok;
  std::string detail;
  std::string mend;  // a command or a step; empty where there is nothing to mend
};
using Findings = std::vector<Finding>;

// Capabilities, kernel features, BTF, JIT, lockdown, the seccomp self-test.
void add_kernel_findings(Findings& findings);

// RDMA devices and their ports.
void add_device_findings(Findings& findings);

}  // namespace sigma
