// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// A trace directory into what a report is made from, in one pass.
//
//   Rows rows({}, threads);
//   ReportContext context;
//   for (path : traces) SIGMA_CHECK(add_trace(path, threads, rows, context));
//   Report report = make_report(rows, context);
//
// With several threads packets are decoded ahead, the calling thread goes through the records, and others
// match posts and completions and count (session.h, rows.h): the result is the same for any number.
#pragma once

#include <string>

#include "analysis/report.h"
#include "analysis/rows.h"
#include "base/result.h"

namespace sigma {

Status add_trace(const std::string& path, unsigned threads, Rows& rows, ReportContext& context);

}  // namespace sigma
