// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// The capabilities that we hold, and dropping those that are no longer needed.
// By raw system calls (capget, capset): capabilities are per thread, so limit_capabilities() must
// be called before threads are started, or by each of them.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "base/result.h"

namespace sigma {

enum class Capability : uint8_t {  // numbers of linux/capability.h
  dac_read_search = 2,
  net_admin = 12,
  sys_ptrace = 19,
  sys_admin = 21,
  sys_nice = 23,
  sys_resource = 24,
  perfmon = 38,
  bpf = 39,
  checkpoint_restore = 40,
};

struct CapabilityRow {
  Capability capability;
  std::string_view name;     // "CAP_BPF"
  std::string_view purpose;  // what we need it for
  bool required;             // attach is impossible without it (CAP_SYS_ADMIN stands in for some)
};
std::span<const CapabilityRow> capability_table();

class CapabilitySet {
 public:
  constexpr CapabilitySet() = default;
  constexpr explicit CapabilitySet(uint64_t bits) : bits_(bits) {}
  constexpr CapabilitySet with(Capability c) const { return CapabilitySet(bits_ | bit(c)); }
  constexpr bool has(Capability c) const { return (bits_ & bit(c)) != 0; }
  constexpr uint64_t bits() const { return bits_; }

 private:
  static constexpr uint64_t bit(Capability c) { return uint64_t{1} << static_cast<uint8_t>(c); }
  uint64_t bits_ = 0;
};

Result<CapabilitySet> effective_capabilities();

// Fails, naming the first missing capability and the command that mends it. CAP_SYS_ADMIN counts as
// CAP_BPF and CAP_PERFMON, as in the kernel.
Status require_capabilities(const CapabilitySet& held);

// Whether perf events (kprobes, and uprobes where the kernel has no multi links) are CAP_SYS_ADMIN's alone: so they
// are with kernel.perf_event_paranoid above 2 in kernels of Debian and Ubuntu (their patch "Allow further restriction
// of perf_event_open"), where that is the default. CAP_PERFMON does not count then.
bool perf_events_need_sys_admin();

// What attaching to further processes and reading them still needs.
CapabilitySet capabilities_while_tracing();

// Keeps of the calling thread's effective and permitted sets only `keep`; clears inheritable and
// ambient.
Status limit_capabilities(const CapabilitySet& keep);

}  // namespace sigma
