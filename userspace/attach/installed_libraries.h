// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// The verbs libraries installed below a root, told apart: what a process there would load.
#pragma once

#include <string>
#include <vector>

namespace sigma {

struct InstalledLibraries {
  std::string libibverbs;  // empty: not installed
  std::vector<std::string> providers;
};

// `root`: "/", or "/proc/PID/root". See attach/installed_providers.h for where it looks.
InstalledLibraries installed_libraries(const std::string& root);

}  // namespace sigma
