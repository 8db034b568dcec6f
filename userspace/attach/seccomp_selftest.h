// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Does a return probe kill a process under a seccomp allow-list?
//
// x86 kernels from 6.11 on return from probed functions through a system call of their own
// (uretprobe), which allow-lists older than it deny: the process dies. Kernel commit cf6cb56ef244
// (6.14, then stable) lets it pass. Found out by sacrificing a child of our own.
#pragma once

#include <cstdint>
#include <string>

namespace sigma {

enum class ReturnForm : uint8_t { perf, multi, session };

struct SeccompVerdict {
  bool survives = false;
  std::string detail;  // why not, for people
};

SeccompVerdict return_probe_under_seccomp(ReturnForm form);

}  // namespace sigma
