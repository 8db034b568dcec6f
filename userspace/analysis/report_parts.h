// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// The parts that make_report is made of and that have a file of their own. For report*.cpp alone.
#pragma once

#include <cstddef>
#include <cstdint>

#include "analysis/report.h"
#include "analysis/row_names.h"

namespace sigma {

inline constexpr uint64_t kMinOperations = 30;  // below these a comparison says little

// report_stragglers.cpp: who is slow among its like, and whose path fell. Adds to the verdict.
void find_stragglers(Report& report, const Rows& rows, const RowNames& names);

// report_trouble.cpp. Each adds to the verdict.
void add_errors(Report& report, const Rows& rows, const RowNames& names);
void add_pending(Report& report, const Rows& rows, const RowNames& names, const ReportContext& context);
void add_ports(Report& report, const Rows& rows, const ReportContext& context);
void judge_config(Report& report);

}  // namespace sigma
