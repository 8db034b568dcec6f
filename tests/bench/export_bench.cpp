// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// bench export: records a second into a trace; out of it CSV rows, a copy of the trace (CTF) and
// Perfetto packets. Prints one JSON object per row, which scripts/bench gathers.
#include <filesystem>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "measure.h"
#include "output/csv.h"
#include "output/perfetto.h"
#include "replay_job.h"
#include "trace/copy.h"
#include "trace/replay.h"
#include "trace/trace_reader.h"

using namespace sigma;
using namespace bench;

namespace {

constexpr uint64_t kOperations = 1'000'000;
constexpr int kRounds = 5;

struct Median {
  double rate = 0;
  double cpu_ns = 0;  // of each, by all threads
};

// `measure` does something `count` times, and says how often a second.
Median median_of(double count, const std::function<double()>& measure) {
  std::vector<double> rates, cpu;
  for (int i = 0; i < kRounds; ++i) {
    const uint64_t begin_ns = process_cpu_ns();
    rates.push_back(measure());
    cpu.push_back(static_cast<double>(process_cpu_ns() - begin_ns) / count);
  }
  return {estimate(rates).median, estimate(cpu).median};
}

template <typename MakeSink>
double replay_rate(const std::string& path, const MakeSink& make_sink) {
  auto reader = TraceReader::open(path);
  if (!reader.ok()) throw std::runtime_error(reader.error().what);
  const uint64_t begin_ns = monotonic_now_ns();
  auto sink = make_sink((*reader)->meta().info);
  if (!sink.ok()) throw std::runtime_error(sink.error().what);
  Replay replay(**reader, **sink);
  replay.run(std::thread::hardware_concurrency() > 1 ? 1 : 0);  // as the command does
  (*sink)->finish();
  if ((*sink)->error()) throw std::runtime_error((*sink)->error()->what);
  return static_cast<double>(kOperations) * 1e9 /
         static_cast<double>(monotonic_now_ns() - begin_ns);
}

}  // namespace

int main() {
  const ReplayJob job;
  constexpr auto kCount = static_cast<double>(kOperations);
  const Median written =
      median_of(2 * kCount, [&] { return 2 * kCount / job.write(job / "trace", kOperations); });
  row("export.trace_written", written.rate, "records/s into a trace", 1e6, written.rate >= 1e6);
  const Median rows = median_of(kCount, [&] {
    return replay_rate(job / "trace", [&](const TraceInfo& info) {
      return CsvSink::create(job / "ops.csv", {info.node.node, UtcClock(info.start_clock)});
    });
  });
  row("export.csv_rows", rows.rate, "rows/s", 1e6, rows.rate >= 1e6);
  row("export.csv_cpu", rows.cpu_ns, "ns CPU a row, all threads", -1, true);
  const Median copied = median_of(2 * kCount, [&] {
    auto reader = TraceReader::open(job / "trace");
    if (!reader.ok()) throw std::runtime_error(reader.error().what);
    std::filesystem::remove_all(job / "copy");
    const uint64_t begin_ns = monotonic_now_ns();
    if (auto status = copy_trace(**reader, job / "copy"); !status.ok())
      throw std::runtime_error(status.error().what);
    return 2 * kCount * 1e9 / static_cast<double>(monotonic_now_ns() - begin_ns);
  });
  row("export.ctf", copied.rate, "records/s, of a copy in CTF", -1, true);
  row("export.ctf_cpu", copied.cpu_ns, "ns CPU a record, all threads", -1, true);
  const Median operations = median_of(kCount, [&] {
    return replay_rate(job / "trace", [&](const TraceInfo& info) {
      return PerfettoSink::create(job / "ops.pftrace", {info.node.node, info.start_clock});
    });
  });
  row("export.perfetto", operations.rate, "operations/s", -1, true);
  row("export.perfetto_cpu", operations.cpu_ns, "ns CPU an operation, all threads", -1, true);
  return 0;
}
