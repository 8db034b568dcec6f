// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// What `run --gpu` gives a command: our library, preloaded, and on request the communication
// stacks' own settings with which nothing is lost.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "cli/job.h"

namespace sigma {

enum class GpuMode { none, observe, lossless };

struct GpuPreload {
  Job::Environment environment;
  std::vector<std::string> notes;  // what was set, and what that changes; for people
};

// `value_of`: the command's environment as it is now; null where a variable is not set. What the
// user has set stays. Fails when the library is not where we are installed.
using ValueOf = const char* (*)(const char* name);
Result<GpuPreload> gpu_preload(GpuMode mode, ValueOf value_of);

// The library's place beside this program: build/lib, or where it is installed.
Result<std::string> gpu_library_path();

}  // namespace sigma
