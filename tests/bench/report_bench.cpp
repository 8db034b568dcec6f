// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// bench report: operations a second from a trace to a report, and anonymous memory as the trace
// grows. Prints one JSON object per row, which scripts/bench gathers.
#include <string>
#include <vector>

#include "analysis/report.h"
#include "analysis/rows.h"
#include "measure.h"
#include "replay_job.h"
#include "trace/replay.h"
#include "trace/trace_reader.h"

using namespace sigma;
using namespace bench;

namespace {

struct Outcome {
  double operations_per_s = 0;
  uint64_t anonymous = 0;  // at the end of the pass
};

Outcome report_on(const std::string& path, uint64_t expected) {
  const uint64_t begin_ns = monotonic_now_ns();
  auto reader = TraceReader::open(path);
  if (!reader.ok()) throw std::runtime_error(reader.error().what);
  Rows rows;
  const UtcClock clock((*reader)->meta().info.start_clock);
  rows.begin_trace((*reader)->meta().info.node.node, clock);
  Replay replay(**reader, rows);
  replay.run();
  const uint64_t anonymous = anonymous_bytes();
  const TraceInfo info = replay.info();
  ReportContext context;
  for (const auto& qp : info.queue_pairs) context.queue_pairs.emplace_back(0, qp);
  const Report report = make_report(rows, context);
  const std::string text = report_json(report);
  const double seconds = static_cast<double>(monotonic_now_ns() - begin_ns) * 1e-9;
  if (report.totals.operations != expected || text.empty())
    throw std::runtime_error("the report does not count what was written");
  return {static_cast<double>(expected) / seconds, anonymous};
}

}  // namespace

int main() {
  const ReplayJob job;
  constexpr uint64_t kSmall = 1'000'000, kLarge = 8'000'000;  // the large one is 2 GB on disk
  job.write(job / "small", kSmall);
  std::vector<double> rates;
  Outcome small;
  for (int i = 0; i < 5; ++i) {
    small = report_on(job / "small", kSmall);
    rates.push_back(small.operations_per_s);
  }
  const double rate = estimate(rates).median;
  row("report.operations", rate, "operations/s", 5e6, rate >= 5e6);

  job.write(job / "large", kLarge);
  const Outcome large = report_on(job / "large", kLarge);
  const double growth = static_cast<double>(large.anonymous) / static_cast<double>(small.anonymous);
  row("report.memory_growth", growth, "x, anonymous, 8 M to 1 M operations", 1.1, growth <= 1.1);
  return 0;
}
