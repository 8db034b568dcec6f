// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// What tests of the report share: the report of a synthetic job, and finding one's way in it.
#pragma once

#include <string>
#include <vector>

#include "analysis/report.h"
#include "analysis_synthetic.h"
#include "catch.h"

namespace sigma::test {

inline constexpr uint64_t kStart = 1'000'000'000'000;

inline const Group* find_group(const Report& report, GroupBy by, const std::string& part) {
  for (const Group& group : report.groups.at(by))
    if (group.name.find(part) != std::string::npos) return &group;
  return nullptr;
}

inline std::vector<ReportFinding> findings(const Report& report, FindingKind kind) {
  std::vector<ReportFinding> out;
  for (const ReportFinding& finding : report.verdict)
    if (finding.kind == kind) out.push_back(finding);
  return out;
}

inline Report report_of(const Job& job, const ReportContext& context = {}) {
  return make_report(*rows_of(job), context);
}

inline void check_percentile(uint64_t measured, uint64_t truth) {
  INFO(measured << " against " << truth);
  CHECK(static_cast<double>(measured) == Approx(static_cast<double>(truth)).epsilon(0.01));
}

// All QPs alike, to four peers over one device.
inline void add_uniform_traffic(Job& job, size_t qps, size_t operations) {
  for (size_t i = 0; i < qps; ++i) {
    const size_t qp = job.add_qp({.peer = static_cast<uint8_t>(1 + i % 4)});
    job.stream(qp, kStart + job.between(0, 100'000), operations, 65536, 1310, 8, 0.4);
  }
}

}  // namespace sigma::test
