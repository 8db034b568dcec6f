// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
#include "attach/process_facts.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <optional>

#include "base/fd.h"
#include "base/human.h"

namespace sigma {
namespace {

constexpr size_t kMaxFileBytes = 4 << 20;  // an environment is at most a quarter of the stack limit

struct Variable {
  std::string_view name, fact;
};

// The allow-list. Of several variables for one fact the first one here counts: a launcher's own
// before the scheduler's, which is that of the step's first process under `mpirun`.
constexpr auto kVariables = std::to_array<Variable>({
    {"SLURM_JOB_ID", "slurm_job_id"},
    {"OMPI_COMM_WORLD_RANK", "rank"},
    {"PMIX_RANK", "rank"},
    {"PMI_RANK", "rank"},
    {"MV2_COMM_WORLD_RANK", "rank"},
    {"RANK", "rank"},  // torchrun
    {"SLURM_PROCID", "rank"},
});

std::string read_file(const std::string& path) {
  const Fd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  std::string text;
  std::array<char, 16384> part;
  while (fd && text.size() < kMaxFileBytes) {
    const ssize_t count = read(fd.get(), part.data(), part.size());
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) break;
    text.append(part.data(), static_cast<size_t>(count));
  }
  return text;
}

uint64_t clock_ns(clockid_t clock) {
  timespec now;
  clock_gettime(clock, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(now.tv_nsec);
}

// Of /proc/PID/stat, numbered as in proc(5); nothing when it is gone.
std::optional<uint64_t> stat_field(pid_t pid, int number) {
  const std::string text = read_file(fmt::format("/proc/{}/stat", pid));
  size_t at = text.rfind(')');  // the name before it may hold anything
  for (int field = 2; field < number && at != text.npos; field++) at = text.find(' ', at + 1);
  uint64_t value = 0;
  if (at == text.npos || std::from_chars(text.data() + at + 1, text.data() + text.size(), value).ec != std::errc{}) return {};
  return value;
}

std::string fact_text(std::string_view value) {
  std::string text = printable(value.substr(0, kMaxFactBytes));
  text.resize(std::min(text.size(), kMaxFactBytes));
  return text;
}

bool is_hex(std::string_view text) {
  return std::all_of(text.begin(), text.end(),
                     [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); });
}

// Container runtimes name a cgroup after the container, 64 hex digits: docker-ID.scope,
// cri-containerd-ID.scope, crio-ID.scope, libpod-ID.scope, or ID alone below docker/ and kubepods/.
// The innermost one is meant.
std::string_view container_in(std::string_view path) {
  constexpr size_t kIdDigits = 64;
  std::string_view found;
  for (size_t i = 0; i + kIdDigits <= path.size(); ++i) {
    const std::string_view candidate = path.substr(i, kIdDigits);
    const bool begins = i == 0 || path[i - 1] == '/' || path[i - 1] == '-';
    const char after = i + kIdDigits < path.size() ? path[i + kIdDigits] : '/';
    if (begins && (after == '/' || after == '.') && is_hex(candidate)) found = candidate;
  }
  return found;
}

template <typename F>
void for_each_part(std::string_view text, char end, F&& f) {
  while (!text.empty()) {
    const size_t at = text.find(end);
    f(text.substr(0, at));
    if (at == std::string_view::npos) return;
    text.remove_prefix(at + 1);
  }
}

}  // namespace

void add_environment_facts(std::string_view environment, ProcessFacts& facts) {
  std::array<std::string_view, kVariables.size()> values;
  for_each_part(environment, '\0', [&](std::string_view line) {
    for (size_t i = 0; i < kVariables.size(); ++i) {
      const std::string_view name = kVariables[i].name;
      if (values[i].empty() && line.size() > name.size() && line[name.size()] == '=' &&
          line.starts_with(name))
        values[i] = line.substr(name.size() + 1);
    }
  });
  for (size_t i = 0; i < kVariables.size(); ++i)
    if (!values[i].empty())
      facts.try_emplace(std::string(kVariables[i].fact), fact_text(values[i]));
}

void add_cgroup_facts(std::string_view text, ProcessFacts& facts) {
  // "0::PATH" is the unified hierarchy's; without it the longest path says most.
  std::string_view chosen;
  bool unified = false;
  for_each_part(text, '\n', [&](std::string_view line) {
    const size_t first = line.find(':');
    const size_t second = first == std::string_view::npos ? first : line.find(':', first + 1);
    if (second == std::string_view::npos) return;
    const std::string_view path = line.substr(second + 1);
    if (line.starts_with("0::") && path.size() > 1) {
      chosen = path;
      unified = true;
    } else if (!unified && path.size() > chosen.size()) {
      chosen = path;
    }
  });
  if (chosen.empty()) return;
  facts["cgroup"] = fact_text(chosen);
  if (const auto id = container_in(chosen); !id.empty())
    facts["container"] = std::string(id.substr(0, 12));
}

ProcessFacts process_facts(pid_t pid) {
  ProcessFacts facts;
  add_environment_facts(read_file(fmt::format("/proc/{}/environ", pid)), facts);
  add_cgroup_facts(read_file(fmt::format("/proc/{}/cgroup", pid)), facts);
  return facts;
}

uint64_t process_start_ns(pid_t pid) {
  const auto ticks = stat_field(pid, 22);  // since boot, suspends included
  if (!ticks) return 0;
  const auto tick_ns = 1'000'000'000 / static_cast<uint64_t>(sysconf(_SC_CLK_TCK));
  const uint64_t awake_ns = clock_ns(CLOCK_MONOTONIC);  // the first to be read: too early rather than too late
  const uint64_t suspended_ns = clock_ns(CLOCK_BOOTTIME) - awake_ns;
  const uint64_t boot_ns = *ticks * tick_ns;
  return boot_ns > suspended_ns ? boot_ns - suspended_ns : 0;
}

bool first_thread_exits(pid_t pid) {
  constexpr uint64_t kExiting = 0x4;  // PF_EXITING, linux/sched.h
  const auto flags = stat_field(pid, 9);
  return !flags || (*flags & kExiting) != 0;
}

}  // namespace sigma
