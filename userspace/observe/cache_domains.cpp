// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
#include "observe/cache_domains.h"

#include <fcntl.h>
#include <fmt/format.h>

#include <array>
#include <charconv>
#include <filesystem>

#include "base/fd.h"

namespace sigma {
namespace fs = std::filesystem;
namespace {

constexpr uint32_t kMostCaches = 16;  // of a CPU; there are three to five

std::optional<uint32_t> parse_number(std::string_view text) {
  uint32_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return number;
}

// The one line of a small file. Empty: there is none, or it is no such file.
std::optional<std::string> line_of(const std::string& path) {
  const Fd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  std::array<char, 4096> text{};
  const ssize_t got = file ? ::read(file.get(), text.data(), text.size()) : -1;
  if (got <= 0 || static_cast<size_t>(got) == text.size()) return std::nullopt;
  std::string line(text.data(), static_cast<size_t>(got));
  if (line.back() == '\n') line.pop_back();
  return line;
}

// Those that share the cache of the highest level that this CPU has. One that is its own only, or the first
// level's, says nothing that would help.
std::optional<Cpus> last_level(const std::string& cpu) {
  std::optional<Cpus> sharing;
  uint32_t highest = 1;
  for (uint32_t index = 0; index < kMostCaches; ++index) {
    const std::string cache = fmt::format("{}/cache/index{}", cpu, index);
    const auto level_line = line_of(cache + "/level");
    if (!level_line) break;
    const auto level = parse_number(*level_line);
    if (!level || *level <= highest) continue;
    const auto list = line_of(cache + "/shared_cpu_list");
    if (!list) continue;
    if (auto cpus = parse_cpu_list(*list)) {
      highest = *level;
      sharing = std::move(cpus);
    }
  }
  return sharing;
}

}  // namespace

std::optional<Cpus> parse_cpu_list(std::string_view text) {
  Cpus cpus;
  while (!text.empty()) {
    const size_t comma = text.find(',');
    const std::string_view range = text.substr(0, comma);
    const size_t dash = range.find('-');
    const auto first = parse_number(range.substr(0, dash));
    const auto last = dash == std::string_view::npos ? first : parse_number(range.substr(dash + 1));
    if (!first || !last || *last < *first || *last >= kMostCpus) return std::nullopt;
    for (uint32_t cpu = *first; cpu <= *last; ++cpu) cpus.insert(cpus.end(), cpu);
    if (comma == std::string_view::npos) return cpus;
    text.remove_prefix(comma + 1);
  }
  return std::nullopt;  // nothing, or a comma at the end
}

CacheDomains CacheDomains::read(const std::string& sysfs_root) {
  CacheDomains all;
  const std::string folder = sysfs_root + "/devices/system/cpu";
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    const std::string name = it->path().filename();
    if (!name.starts_with("cpu")) continue;
    if (const auto cpu = parse_number(std::string_view(name).substr(3)); cpu && *cpu < kMostCpus) all.cpus.insert(*cpu);
  }
  if (const auto list = line_of(folder + "/online"))
    if (const auto online = parse_cpu_list(*list))
      std::erase_if(all.cpus, [&](uint32_t cpu) { return !online->contains(cpu); });
  // What one says of itself and others is taken at its word, so that few files are read on large machines.
  const auto only_these = [&](Cpus cpus, uint32_t self, const auto& is_placed) {
    std::erase_if(cpus, [&](uint32_t cpu) { return cpu != self && (!all.cpus.contains(cpu) || is_placed(cpu)); });
    return cpus;
  };
  for (const uint32_t cpu : all.cpus) {
    const std::string at = fmt::format("{}/cpu{}", folder, cpu);
    if (!all.cores.contains(cpu)) {
      const auto list = line_of(at + "/topology/thread_siblings_list");
      auto siblings = list ? parse_cpu_list(*list) : std::nullopt;
      if (!siblings || !siblings->contains(cpu)) siblings = Cpus{cpu};
      const auto is_placed = [&](uint32_t other) { return all.cores.contains(other); };
      const Cpus core = only_these(std::move(*siblings), cpu, is_placed);
      for (const uint32_t sibling : core) all.cores[sibling] = core;
    }
    if (all.of(cpu)) continue;
    auto sharing = last_level(at);
    if (!sharing || !sharing->contains(cpu)) continue;
    const auto is_placed = [&](uint32_t other) { return all.of(other).has_value(); };
    all.domains.push_back(only_these(std::move(*sharing), cpu, is_placed));
  }
  return all;
}

std::optional<size_t> CacheDomains::of(uint32_t cpu) const {
  for (size_t i = 0; i < domains.size(); ++i)
    if (domains[i].contains(cpu)) return i;
  return std::nullopt;
}

}  // namespace sigma
