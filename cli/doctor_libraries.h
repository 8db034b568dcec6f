// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// doctor: the installed libibverbs and providers, and what can be probed in each.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "base/terminal.h"
#include "cli/findings.h"
#include "resolve/resolve.h"

namespace sigma {

// The plans of all that is installed, libibverbs first; what could not be read becomes a finding.
std::vector<LibraryPlan> plan_installed_libraries(Findings& findings);

// One finding for each.
void add_library_findings(const std::vector<LibraryPlan>& plans, Findings& findings);

// Where the functions are probed: as a table, those alike in one row; and each as JSON.
std::string probe_table_text(const std::vector<LibraryPlan>& plans, const Style& style);
nlohmann::ordered_json library_json(const LibraryPlan& plan);

}  // namespace sigma
