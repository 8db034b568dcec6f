// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Features: what this kernel can do for us. Each is found by trying it (a tiny program loaded, a
// link made on a function of our own), never by the kernel's version: distributions backport.
//
//   const Features features = Features::probe();   // ~10 ms; needs CAP_BPF and CAP_PERFMON
//   if (features.uprobe_multi) ...
//
// The environment variable SIGMATRACE_DISABLE=NAME[,NAME...] switches features off by the names of
// feature_table(), so that every fallback can be run on a kernel that would not need it.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "base/result.h"

namespace sigma {

struct Features {
  bool ring_buffer = false;     // BPF_MAP_TYPE_RINGBUF (5.8): required
  bool vmlinux_btf = false;     // /sys/kernel/btf/vmlinux: required by process events and fexit
  bool attach_cookie = false;   // bpf_get_attach_cookie (5.15): required
  bool perf_uprobe = false;     // perf_event_open on a uprobe: the fallback for links
  bool uprobe_multi = false;    // one link for many probes (6.6)
  bool uprobe_session = false;  // entry and return in one program (6.13)
  bool multi_pid_filter =
      false;  // the pid of a multi link means the process (6.10 and stables), not one thread
  bool bpf_loop = false;       // 5.17; without it lists beyond 32 are counted as truncated
  bool uverbs_fentry = false;  // ib_uverbs is loaded, has BTF and can be hooked by fentry/fexit
  bool uverbs_kprobe = false;  // ... by kprobes
  bool return_probe_under_seccomp = false;  // a return probe leaves a seccomp'd process alive
  std::string return_probe_detail;          // why not, for people; empty when it does

  enum class Jit { off, on, unknown } jit = Jit::unknown;
  std::string lockdown;  // "none", "integrity", "confidentiality"; empty: not built in

  // Tries everything. A feature whose trial fails for want of privilege reads as absent.
  static Features probe();
};

// Names of the switchable features, for doctor and for SIGMATRACE_DISABLE.
struct FeatureRow {
  std::string_view name;  // as in SIGMATRACE_DISABLE
  bool Features::*value;
  bool required;  // nothing can be traced without it
  std::string_view meaning;
};
std::span<const FeatureRow> feature_table();

// Fails, naming the first thing that tracing cannot do without, and what mends it.
Status require_features(const Features& features);

// The kernel's function that each uverbs command passes: (struct file *, unsigned int, unsigned long), the
// last one the command's address. "ib_uverbs_ioctl", or for tests the one that SIGMATRACE_UVERBS_HOOK names.
std::string uverbs_function();

// Clears the features that `names` (comma-separated) lists. Unknown names are ignored.
void disable_features(Features& features, std::string_view names);

}  // namespace sigma
