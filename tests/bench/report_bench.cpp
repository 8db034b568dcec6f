// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// bench report: operations a second from a trace to a report, the CPU time of each, and the most
// anonymous memory as the trace grows. Prints one JSON object per row, which scripts/bench gathers.
#include <algorithm>
#include <atomic>
#include <chrono>
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

// The most anonymous memory from its making to most(), by samples: the kernel keeps no such peak.
class AnonymousPeak {
 public:
  AnonymousPeak() : thread_([this] { sample(); }) {}
  ~AnonymousPeak() { stop(); }
  uint64_t most() {
    stop();
    return most_;
  }

 private:
  void sample() {
    while (!ended_) {
      most_ = std::max(most_, anonymous_bytes());
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
    most_ = std::max(most_, anonymous_bytes());
  }
  void stop() {
    ended_ = true;
    if (thread_.joinable()) thread_.join();
  }

  uint64_t most_ = 0;
  std::atomic<bool> ended_ = false;
  std::thread thread_;  // last: it begins at once
};

struct Outcome {
  double operations_per_s = 0;
  double cpu_ns = 0;  // of an operation, by all threads
};

Outcome report_on(const std::string& path, unsigned threads, uint64_t expected) {
  const uint64_t begin_ns = monotonic_now_ns(), begin_cpu_ns = process_cpu_ns();
  Rows rows({}, threads);
  ReportContext context;
  if (const Status read = add_trace(path, threads, rows, context); !read.ok())
    throw std::runtime_error(read.error().what);
  const Report report = make_report(rows, context);
  const std::string text = report_json(report);
  const double seconds = static_cast<double>(monotonic_now_ns() - begin_ns) * 1e-9;
  if (report.totals.operations != expected || text.empty())
    throw std::runtime_error("the report does not count what was written");
  const auto operations = static_cast<double>(expected);
  return {operations / seconds, static_cast<double>(process_cpu_ns() - begin_cpu_ns) / operations};
}

Outcome median_of(const std::string& path, unsigned threads, uint64_t operations) {
  std::vector<double> rates, cpu;
  for (int i = 0; i < 5; ++i) {
    const Outcome outcome = report_on(path, threads, operations);
    rates.push_back(outcome.operations_per_s);
    cpu.push_back(outcome.cpu_ns);
  }
  return {estimate(rates).median, estimate(cpu).median};
}

double peak_mib(const std::string& path, unsigned threads, uint64_t operations) {
  AnonymousPeak peak;
  report_on(path, threads, operations);
  return static_cast<double>(peak.most()) / (1 << 20);
}

}  // namespace

int main() {
  const ReplayJob job;
  const unsigned cores = std::max(1u, std::thread::hardware_concurrency());
  constexpr uint64_t kMillion = 1'000'000;
  const std::string small = job / "small";
  job.write(small, kMillion);
  report_on(small, cores, kMillion);  // the page cache, and this process's memory
  const Outcome all = median_of(small, cores, kMillion);
  row("report.operations", all.operations_per_s, "operations/s, all cores", 5e6,
      all.operations_per_s >= 5e6);
  row("report.cpu", all.cpu_ns, "ns CPU an operation, all cores", -1, true);
  const Outcome one = median_of(small, 1, kMillion);
  row("report.operations_one_core", one.operations_per_s, "operations/s, one thread", -1, true);
  row("report.cpu_one_core", one.cpu_ns, "ns CPU an operation, one thread", -1, true);

  const double small_mib = peak_mib(small, cores, kMillion);
  row("report.memory_1m", small_mib, "MiB anonymous, at most", -1, true);
  std::filesystem::remove_all(small);
  constexpr const char* kUnit = "x, anonymous, 50 M to 1 M operations";
  struct Size {
    const char* name;
    uint64_t operations;
  };
  double large_mib = 0;
  for (const Size& size : {Size{"report.memory_10m", 10 * kMillion}, {"report.memory_50m", 50 * kMillion}}) {
    if (std::filesystem::space(job / "").available < size.operations * kBytesOfOperation) {
      row("report.memory_growth", 0, kUnit, 1.1, false, "no room for a trace of 50 M operations");
      return 0;
    }
    const std::string large = job / "large";
    job.write(large, size.operations);
    large_mib = peak_mib(large, cores, size.operations);
    std::filesystem::remove_all(large);
    row(size.name, large_mib, "MiB anonymous, at most", -1, true);
  }
  row("report.memory_growth", large_mib / small_mib, kUnit, 1.1, large_mib <= 1.1 * small_mib);
  return 0;
}
