// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
#include "observe/thread_times.h"

#include <dirent.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <memory>

#include "base/fd.h"

namespace sigma {
namespace {

// So little that any thread that runs at all outweighs a thousand that do not.
constexpr double kAsleep = 1e-5;

double ticks_a_second() {
  static const long ticks = sysconf(_SC_CLK_TCK);
  return static_cast<double>(std::max(1L, ticks));
}

std::optional<ThreadStat> stat_of(int folder, const char* tid) {
  std::array<char, 280> path{};
  *fmt::format_to_n(path.data(), path.size() - 1, "{}/stat", tid).out = '\0';
  const Fd file(::openat(folder, path.data(), O_RDONLY | O_CLOEXEC));
  if (!file) return std::nullopt;
  std::array<char, 2048> text;
  const ssize_t got = ::read(file.get(), text.data(), text.size());
  if (got <= 0) return std::nullopt;
  return parse_thread_stat(std::string_view(text.data(), static_cast<size_t>(got)));
}

}  // namespace

std::optional<ThreadStat> parse_thread_stat(std::string_view line) {
  const size_t name_end = line.rfind(')');
  if (name_end == std::string_view::npos || name_end + 2 > line.size()) return std::nullopt;
  line.remove_prefix(name_end + 1);
  ThreadStat stat;
  for (int field = 3; field <= 39; ++field) {
    const size_t begin = line.find_first_not_of(' ');
    if (begin == std::string_view::npos) return std::nullopt;
    line.remove_prefix(begin);
    const std::string_view word = line.substr(0, line.find_first_of(" \n"));
    line.remove_prefix(word.size());
    if (field != 14 && field != 15 && field != 39) continue;
    uint64_t value = 0;
    const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), value);
    if (error != std::errc() || end != word.data() + word.size()) return std::nullopt;
    if (field != 39)
      stat.ticks += value;
    else if (value <= UINT32_MAX)
      stat.cpu = static_cast<uint32_t>(value);
    else
      return std::nullopt;
  }
  return stat;
}

ProcessUse ThreadTimes::read(uint32_t pid, uint64_t now_ns, size_t most) {
  ProcessUse use;
  const std::unique_ptr<DIR, int (*)(DIR*)> folder(::opendir(fmt::format("/proc/{}/task", pid).c_str()), ::closedir);
  if (!folder) return use;
  Process& process = processes_[pid];
  use.fresh = process.read_ns == 0;
  const double elapsed_s = use.fresh ? 0 : static_cast<double>(now_ns - process.read_ns) * 1e-9;
  process.read_ns = now_ns;
  while (const dirent* entry = ::readdir(folder.get())) {
    if (use.threads.size() >= most) break;
    const std::string_view name = entry->d_name;
    uint32_t tid = 0;
    const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), tid);
    if (error != std::errc() || end != name.data() + name.size()) continue;
    const auto stat = stat_of(::dirfd(folder.get()), entry->d_name);
    if (!stat) continue;
    // A thread that is new, or in the place of another one, has used all of it since.
    Thread& thread = process.threads[tid];
    const uint64_t before = thread.ticks <= stat->ticks ? thread.ticks : 0;
    const double used_s = static_cast<double>(stat->ticks - before) / ticks_a_second();
    const double share = elapsed_s > 0 ? std::min(1.0, used_s / elapsed_s) : 0;
    thread = {stat->ticks, thread.weight / 2 + share, now_ns};
    use.threads.push_back({stat->cpu, share, thread.weight + kAsleep});
  }
  std::erase_if(process.threads, [&](const auto& each) { return each.second.read_ns != now_ns; });
  return use;
}

void ThreadTimes::forget_before(uint64_t ns) {
  std::erase_if(processes_, [&](const auto& each) { return each.second.read_ns < ns; });
}

}  // namespace sigma
