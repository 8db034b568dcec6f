// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// bench report: operations a second from a trace to a report, and anonymous memory as the trace
// grows. Prints one JSON object per row, which scripts/bench gathers.
#include <algorithm>
#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include "analysis/report.h"
#include "analysis/rows.h"
#include "analysis/trace_pass.h"
#include "measure.h"
#include "replay_job.h"

using namespace sigma;
using namespace bench;

namespace {

constexpr uint64_t kBytesOfOperation = 300;  // in a trace, and some to spare

struct Outcome {
  double operations_per_s = 0;
  uint64_t anonymous = 0;  // at the end
};

Outcome report_on(const std::string& path, unsigned threads, uint64_t expected) {
  const uint64_t begin_ns = monotonic_now_ns();
  Rows rows({}, threads);
  ReportContext context;
  if (const Status read = add_trace(path, threads, rows, context); !read.ok())
    throw std::runtime_error(read.error().what);
  const Report report = make_report(rows, context);
  const std::string text = report_json(report);
  const double seconds = static_cast<double>(monotonic_now_ns() - begin_ns) * 1e-9;
  if (report.totals.operations != expected || text.empty())
    throw std::runtime_error("the report does not count what was written");
  return {static_cast<double>(expected) / seconds, anonymous_bytes()};
}

double rate_of(const std::string& path, unsigned threads, uint64_t operations) {
  std::vector<double> rates;
  for (int i = 0; i < 5; ++i)
    rates.push_back(report_on(path, threads, operations).operations_per_s);
  return estimate(rates).median;
}

}  // namespace

int main() {
  const ReplayJob job;
  const unsigned cores = std::max(1u, std::thread::hardware_concurrency());
  constexpr uint64_t kSmall = 1'000'000, kLarge = 50'000'000;
  job.write(job / "small", kSmall);
  const Outcome small = report_on(job / "small", cores, kSmall);
  const double rate = rate_of(job / "small", cores, kSmall);
  row("report.operations", rate, "operations/s, all cores", 5e6, rate >= 5e6);
  row("report.operations_one_core", rate_of(job / "small", 1, kSmall), "operations/s, one thread",
      -1, true);

  constexpr const char* kUnit = "x, anonymous, 50 M to 1 M operations";
  if (std::filesystem::space(job / "").available < kLarge * kBytesOfOperation) {
    row("report.memory_growth", 0, kUnit, 1.1, false, "no room for a trace of 50 M operations");
    return 0;
  }
  job.write(job / "large", kLarge);
  const Outcome large = report_on(job / "large", cores, kLarge);
  const double growth = static_cast<double>(large.anonymous) / static_cast<double>(small.anonymous);
  row("report.memory_growth", growth, kUnit, 1.1, growth <= 1.1);
  return 0;
}
