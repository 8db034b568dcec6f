// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// The options of `sigmatrace attach`, most of which `run` has as well.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "attach/tracer.h"

namespace CLI {
class App;
}

namespace sigma {

// What the probes may cost processes that the user named, and those that a sweep found.
inline constexpr double kNamedBudgetPercent = 10, kSweepBudgetPercent = 2;

struct AttachOptions {
  // What to trace: these processes, or else all that meet the conditions, running and to come.
  std::vector<pid_t> pids;
  bool all = false;
  std::string comm;
  std::string cgroup;
  std::optional<uid_t> uid;  // narrows the others as well
  bool follow_forks = false;

  std::string output;  // empty: the summary only; "-": standard output
  std::optional<uint64_t> duration_ns;
  uint64_t max_size_bytes = 0;                       // of a trace directory; 0: without a bound
  std::optional<uint64_t> hang_ns = 10'000'000'000;  // a trace is marked after this; nullopt: never

  using Posts = TracerOptions::Posts;
  using Completions = TracerOptions::Completions;
  Posts posts = Posts::automatic;
  Completions completions = Completions::automatic;
  double observer_cpu_percent = 30;
  bool check_posts = true;

  // Of one core for each process; nullopt: no bound.
  std::optional<double> budget_percent = kNamedBudgetPercent;
  uint64_t ring_bytes = 8u << 20;
};

inline constexpr uint64_t kMinRingBytes = 16 * 1024;
inline constexpr uint64_t kMaxRingBytes = 1u << 30;

// -o names neither a CSV file nor standard output.
bool writes_trace_directory(const AttachOptions& options);

// Registers the options with the subcommand's parser, which fills `options`. It must outlive the
// parsing. Values out of range are usage errors. `of_running`: those that say which processes.
void add_attach_options(CLI::App& parser, AttachOptions& options, bool of_running = true);

}  // namespace sigma
