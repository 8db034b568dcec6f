// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// doctor: what this process may do, and what this kernel can.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <string_view>

#include "attach/capabilities.h"
#include "attach/features.h"
#include "cli/findings.h"

namespace sigma {
namespace {

// How to get what is missing. Kernel versions are upstream's, for orientation: distributions
// backport.
struct Remedy {
  bool Features::*feature;
  std::string_view mend;
};
constexpr auto kRemedies = std::to_array<Remedy>({
    {&Features::ring_buffer, "run a kernel of 5.8 or newer"},
    {&Features::vmlinux_btf, "run a kernel built with CONFIG_DEBUG_INFO_BTF=y"},
    {&Features::attach_cookie, "run a kernel of 5.15 or newer"},
    {&Features::perf_uprobe, "run a kernel built with CONFIG_UPROBES=y and CONFIG_PERF_EVENTS=y"},
    {&Features::uprobe_multi, "attach and detach take longer; kernels from 6.6 have it"},
    {&Features::uprobe_session, "calls whose return is seen cost more; kernels from 6.13 have it"},
    {&Features::multi_pid_filter, "other processes pay for probes, too; kernels from 6.10 have it"},
    {&Features::bpf_loop, "longer lists are counted, not read; kernels from 5.17 have it"},
    {&Features::uverbs_fentry,
     "modprobe ib_uverbs, where there are RDMA devices; libibverbs is probed instead"},
    {&Features::uverbs_kprobe,
     "modprobe ib_uverbs, where there are RDMA devices; libibverbs is probed instead"},
    {&Features::return_probe_under_seccomp,
     "refused posts of such processes are not told apart; kernels from 6.14 are safe"},
});

std::string remedy_for(bool Features::*feature) {
  const auto row = std::find_if(kRemedies.begin(), kRemedies.end(),
                                [&](const Remedy& r) { return r.feature == feature; });
  return std::string(row == kRemedies.end() ? "" : row->mend);
}

// How to come by a capability that is of use but not needed. Root lacks some in containers only.
std::string mend_capability(std::string_view name) {
  if (geteuid() != 0) return "run it by sudo";
  return fmt::format("start the container with --cap-add={}",
                     name.substr(std::string_view("CAP_").size()));
}

// Whether everything that an attach needs is there.
bool add_privileges(Findings& findings) {
  const auto held = effective_capabilities();
  if (!held.ok()) {
    findings.push_back(
        {"privileges", "capabilities", Verdict::problem, held.error().what, held.error().hint});
    return false;
  }
  const Status enough = require_capabilities(*held);
  for (const CapabilityRow& row : capability_table()) {
    const bool have = held->has(row.capability);
    // CAP_SYS_ADMIN stands in for some, so a missing one is only a problem when the set is.
    const Verdict missing = row.required && !enough.ok() ? Verdict::problem : Verdict::note;
    findings.push_back({"privileges", std::string(row.name), have ? Verdict::ok : missing,
                        std::string(row.purpose),
                        have                          ? ""
                        : missing == Verdict::problem ? enough.error().hint
                                                      : mend_capability(row.name)});
  }
  return enough.ok();
}

void add_features(Findings& findings, const Features& features) {
  for (const FeatureRow& row : feature_table()) {
    const bool have = features.*row.value;
    const Verdict missing = row.required ? Verdict::problem : Verdict::note;
    Finding finding{"kernel", std::string(row.name), have ? Verdict::ok : missing,
                    std::string(row.meaning), have ? "" : remedy_for(row.value)};
    if (row.value == &Features::return_probe_under_seccomp && !have)
      finding.detail = features.return_probe_detail;
    findings.push_back(std::move(finding));
  }
}

void add_settings(Findings& findings, const Features& features) {
  switch (features.jit) {
    case Features::Jit::on:
      findings.push_back({"kernel", "jit", Verdict::ok, "BPF programs run compiled", ""});
      break;
    case Features::Jit::off:
      findings.push_back({"kernel", "jit", Verdict::note,
                          "BPF programs are interpreted: each probe costs several times more",
                          "sysctl net.core.bpf_jit_enable=1"});
      break;
    case Features::Jit::unknown:
      findings.push_back({"kernel", "jit", Verdict::note,
                          "whether BPF programs are compiled cannot be read here", ""});
      break;
  }
  if (perf_events_need_sys_admin()) {
    const auto held = effective_capabilities();
    const bool may = held.ok() && held->has(Capability::sys_admin);
    findings.push_back({"kernel", "perf_events", may ? Verdict::ok : features.uprobe_multi ? Verdict::note : Verdict::problem,
                        "kernel.perf_event_paranoid is above 2: probes by perf events need CAP_SYS_ADMIN",
                        may ? "" : "run it by sudo, or: sudo sysctl kernel.perf_event_paranoid=2"});
  }
  const bool confidential = features.lockdown == "confidentiality";
  findings.push_back(
      {"kernel", "lockdown", confidential ? Verdict::problem : Verdict::ok,
       confidential ? "confidentiality: the kernel keeps BPF programs from reading what probes need"
       : features.lockdown.empty() ? "not built in"
                                   : features.lockdown,
       confidential ? "boot with lockdown=integrity or less, or without Secure Boot" : ""});
}

}  // namespace

void add_kernel_findings(Findings& findings) {
  const bool privileged = add_privileges(findings);
  const Features features = Features::probe();
  if (privileged)
    add_features(findings, features);
  else
    findings.push_back({"kernel", "features", Verdict::note,
                        "not tried: that needs the privileges above", "sudo sigmatrace doctor"});
  add_settings(findings, features);
}

}  // namespace sigma
