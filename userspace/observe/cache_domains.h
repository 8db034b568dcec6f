// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// CacheDomains: which CPUs share a last-level cache, as sysfs says. A core of another domain reads what a
// thread has just written four times as slowly, and the thread pays for it with its next write.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace sigma {

using Cpus = std::set<uint32_t>;

constexpr uint32_t kMostCpus = 8192;  // the most that a kernel for x86-64 or arm64 is built for (NR_CPUS)

// "0-3,8,10-11", as the kernel writes it. Empty: it is anything else, or names a CPU beyond kMostCpus.
std::optional<Cpus> parse_cpu_list(std::string_view text);

struct CacheDomains {
  std::vector<Cpus> domains;        // no CPU in two of them
  std::map<uint32_t, Cpus> cores;   // of a CPU: those that share its core, itself among them
  Cpus cpus;                        // all that are online

  // devices/system/cpu below this root. No domains where it does not say, as on some virtual machines.
  static CacheDomains read(const std::string& sysfs_root);

  std::optional<size_t> of(uint32_t cpu) const;
  // All CPUs share one: it does not matter where anything runs.
  bool only_one() const { return domains.size() == 1 && domains.front() == cpus; }
};

}  // namespace sigma
