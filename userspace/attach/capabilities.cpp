// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
#include "attach/capabilities.h"

#include <fmt/format.h>
#include <linux/capability.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <fstream>

namespace sigma {
namespace {

// clang-format off
constexpr auto kTable = std::to_array<CapabilityRow>({
  {Capability::bpf,                "CAP_BPF",                "loading BPF programs and maps",                             true},
  {Capability::perfmon,            "CAP_PERFMON",            "attaching probes and reading the job's memory in BPF",      true},
  {Capability::sys_ptrace,         "CAP_SYS_PTRACE",         "reading /proc and memory of processes of other users",      true},
  {Capability::dac_read_search,    "CAP_DAC_READ_SEARCH",    "opening what other users' processes have mapped",            false},
  {Capability::checkpoint_restore, "CAP_CHECKPOINT_RESTORE", "libraries that were replaced or deleted (map_files)",       false},
  {Capability::net_admin,          "CAP_NET_ADMIN",          "peers of queue pairs older than the attach (RDMA netlink)", false},
  {Capability::sys_nice,           "CAP_SYS_NICE",           "real-time priority of the queue observer",                  false},
  {Capability::sys_resource,       "CAP_SYS_RESOURCE",       "memory limits of kernels before 5.11",                      false},
});
// clang-format on

using CapabilityData = std::array<__user_cap_data_struct, 2>;

Result<CapabilityData> read_sets() {
  __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3, .pid = 0};
  CapabilityData data = {};
  if (syscall(SYS_capget, &header, data.data()) < 0) return Error{"capget: " + errno_text(errno)};
  return data;
}

uint64_t join(uint32_t low, uint32_t high) {
  return low | uint64_t{high} << 32;
}

}  // namespace

std::span<const CapabilityRow> capability_table() {
  return kTable;
}

Result<CapabilitySet> effective_capabilities() {
  SIGMA_ASSIGN(const CapabilityData data, read_sets());
  return CapabilitySet(join(data[0].effective, data[1].effective));
}

Status require_capabilities(const CapabilitySet& held) {
  for (const CapabilityRow& row : kTable) {
    if (!row.required || held.has(row.capability)) continue;
    const bool covered = row.capability == Capability::bpf || row.capability == Capability::perfmon;
    if (covered && held.has(Capability::sys_admin)) continue;
    return Error{fmt::format("{} is missing: needed for {}", row.name, row.purpose),
                 "run it with sudo, or once: sudo setcap "
                 "cap_bpf,cap_perfmon,cap_sys_ptrace,cap_dac_read_search,cap_checkpoint_restore,"
                 "cap_net_admin+ep "
                 "$(command -v sigmatrace)"};
  }
  return {};
}

bool perf_events_need_sys_admin() {
  int level = 0;
  std::ifstream("/proc/sys/kernel/perf_event_paranoid") >> level;
  return level > 2;
}

CapabilitySet capabilities_while_tracing() {
  CapabilitySet keep;
  for (const CapabilityRow& row : kTable)
    if (row.capability != Capability::sys_resource) keep = keep.with(row.capability);
  if (perf_events_need_sys_admin()) keep = keep.with(Capability::sys_admin);  // for links to come
  return keep;
}

Status limit_capabilities(const CapabilitySet& keep) {
  SIGMA_ASSIGN(CapabilityData data, read_sets());
  for (size_t i = 0; i < data.size(); i++) {
    const auto word = static_cast<uint32_t>(keep.bits() >> (32 * i));
    data[i].permitted &= word;
    data[i].effective &= word;
    data[i].inheritable = 0;
  }
  // Ambient ones would come back at an exec; a kernel without ambient sets has none to clear.
  prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0);
  __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3, .pid = 0};
  if (syscall(SYS_capset, &header, data.data()) < 0) return Error{"capset: " + errno_text(errno)};
  return {};
}

}  // namespace sigma
