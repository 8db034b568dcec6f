// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
#include "attach/features.h"

#include <bpf/bpf.h>
#include <bpf/btf.h>
#include <bpf/libbpf.h>
#include <linux/perf_event.h>
#include <sys/auxv.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdlib>
#include <fstream>
#include <memory>

#include "attach/capabilities.h"
#include "attach/links.h"
#include "attach/seccomp_selftest.h"
#include "attach/trial.h"

namespace sigma {
namespace {

// clang-format off
constexpr auto kTable = std::to_array<FeatureRow>({
  {"ring_buffer",   &Features::ring_buffer,      true,  "BPF ring buffer"},
  {"cookie",        &Features::attach_cookie,    true,  "probes told apart by a cookie"},
  {"btf",           &Features::vmlinux_btf,      false, "kernel type information: process events, kernel hook"},
  {"perf",          &Features::perf_uprobe,      false, "one link a probe (slow to detach)"},
  {"multi",         &Features::uprobe_multi,     false, "one link for many probes"},
  {"session",       &Features::uprobe_session,   false, "entry and return in one program"},
  {"pid_filter",    &Features::multi_pid_filter, false, "multi links limited to one process by the kernel"},
  {"loop",          &Features::bpf_loop,         false, "lists of more than 32 work requests"},
  {"fentry",        &Features::uverbs_fentry,    false, "kernel hook on uverbs commands by fentry"},
  {"kprobe",        &Features::uverbs_kprobe,    false, "kernel hook on uverbs commands by kprobe"},
  {"return_seccomp", &Features::return_probe_under_seccomp, false, "return probes on processes under seccomp"},
});
// clang-format on

// A multi link on "/", which is no regular file: a kernel that knows multi links of this type says
// EBADF, one that does not, EINVAL.
int refused_link(uint32_t attach_type, pid_t pid) {
  const Fd program = load_empty_program(attach_type);
  if (!program) return -ENOTSUP;
  const uint64_t offsets[] = {0};
  UprobeMultiRequest request;
  request.program_fd = program.get();
  request.attach_type = attach_type;
  request.path = "/";
  request.offsets = offsets;
  request.pid = pid;
  UprobeLink link;
  return link_uprobe_multi(request, link);
}

// The fix that made `pid` mean a process (46ba0e49b642) also made -1 invalid; before, -1 was looked
// up. Only asked on a valid path, as the path is looked at first.
bool multi_pid_is_a_process(const OwnSite& site) {
  const Fd program = load_empty_program(kAttachUprobeMulti);
  if (!program) return false;
  const uint64_t offsets[] = {site.offset};
  UprobeMultiRequest request;
  request.program_fd = program.get();
  request.path = site.path;
  request.offsets = offsets;
  request.pid = -1;
  UprobeLink link;
  return link_uprobe_multi(request, link) == -EINVAL;
}

bool perf_works(const OwnSite& site) {
  const Fd program = load_empty_program(0);
  UprobeLink link;
  return program &&
         link_uprobe_perf(program.get(), site.path, site.offset, 0, getpid(), false, link) == 0;
}

constexpr const char* kUverbsFunction = "ib_uverbs_ioctl";

struct BtfDeleter {
  void operator()(btf* types) const { btf__free(types); }
};
using BtfPtr = std::unique_ptr<btf, BtfDeleter>;

// The descriptor of a module's BTF, as a program load wants it.
Fd module_btf_fd(const char* module) {
  uint32_t id = 0;
  while (bpf_btf_get_next_id(id, &id) == 0) {
    Fd fd(bpf_btf_get_fd_by_id(id));
    if (!fd) continue;
    char name[64] = {};
    bpf_btf_info info = {};
    info.name = reinterpret_cast<uintptr_t>(name);
    info.name_len = sizeof(name);
    uint32_t length = sizeof(info);
    if (bpf_obj_get_info_by_fd(fd.get(), &info, &length) == 0 && std::string_view(name) == module)
      return fd;
  }
  return Fd();
}

bool fentry_works() {
  const BtfPtr kernel(btf__load_vmlinux_btf());
  if (!kernel) return false;
  Fd module;
  const std::string function = uverbs_function();
  int type = btf__find_by_name_kind(kernel.get(), function.c_str(), BTF_KIND_FUNC);
  if (type < 0) {
    const BtfPtr types(btf__load_module_btf("ib_uverbs", kernel.get()));
    if (!types) return false;
    type = btf__find_by_name_kind(types.get(), function.c_str(), BTF_KIND_FUNC);
    module = module_btf_fd("ib_uverbs");
    if (type < 0 || !module) return false;
  }
  const bpf_insn instructions[] = {
      {.code = BPF_ALU64 | BPF_MOV | BPF_K, .dst_reg = BPF_REG_0, .src_reg = 0, .off = 0, .imm = 0},
      {.code = BPF_JMP | BPF_EXIT, .dst_reg = 0, .src_reg = 0, .off = 0, .imm = 0},
  };
  LIBBPF_OPTS(bpf_prog_load_opts, options, .expected_attach_type = BPF_TRACE_FENTRY,
              .attach_btf_id = static_cast<uint32_t>(type),
              .attach_btf_obj_fd = module ? static_cast<uint32_t>(module.get()) : 0);
  const Fd program(bpf_prog_load(BPF_PROG_TYPE_TRACING, "sigma_trial", "Dual BSD/GPL", instructions,
                                 2, &options));
  if (!program) return false;
  // Loading is not all: an architecture may lack trampolines, or the function may be out of bounds.
  return static_cast<bool>(Fd(bpf_raw_tracepoint_open(nullptr, program.get())));
}

bool kprobe_works() {
  int type = -1;
  std::ifstream("/sys/bus/event_source/devices/kprobe/type") >> type;
  if (type < 0) return false;
  perf_event_attr attributes = {};
  attributes.size = sizeof(attributes);
  attributes.type = static_cast<uint32_t>(type);
  const std::string function = uverbs_function();
  attributes.config1 = reinterpret_cast<uintptr_t>(function.c_str());
  return static_cast<bool>(Fd(static_cast<int>(
      syscall(SYS_perf_event_open, &attributes, -1, 0, -1, PERF_FLAG_FD_CLOEXEC))));
}

Features::Jit read_jit() {
  int value = -1;
  std::ifstream("/proc/sys/net/core/bpf_jit_enable") >> value;
  return value < 0 ? Features::Jit::unknown : value == 0 ? Features::Jit::off : Features::Jit::on;
}

// "none [integrity] confidentiality": the one in brackets holds.
std::string read_lockdown() {
  std::ifstream file("/sys/kernel/security/lockdown");
  for (std::string word; file >> word;)
    if (word.size() > 2 && word.front() == '[') return word.substr(1, word.size() - 2);
  return "";
}

// libbpf explains every refused trial on stderr; here refusals are answers.
class QuietLibbpf {
 public:
  QuietLibbpf() : previous_(libbpf_set_print(nullptr)) {}
  ~QuietLibbpf() { libbpf_set_print(previous_); }
  QuietLibbpf(const QuietLibbpf&) = delete;
  QuietLibbpf& operator=(const QuietLibbpf&) = delete;

 private:
  libbpf_print_fn_t previous_;
};

}  // namespace

std::span<const FeatureRow> feature_table() {
  return kTable;
}

std::string uverbs_function() {
  const char* other = getauxval(AT_SECURE) == 0 ? getenv("SIGMATRACE_UVERBS_HOOK") : nullptr;
  return other != nullptr && *other != '\0' ? other : kUverbsFunction;
}

void disable_features(Features& features, std::string_view names) {
  while (!names.empty()) {
    const size_t comma = names.find(',');
    const std::string_view name = names.substr(0, comma);
    for (const FeatureRow& row : kTable)
      if (row.name == name) features.*row.value = false;
    names = comma == std::string_view::npos ? std::string_view() : names.substr(comma + 1);
  }
}

Features Features::probe() {
  const QuietLibbpf quiet;
  const char* disabled = getenv("SIGMATRACE_DISABLE");
  Features features;
  features.ring_buffer = libbpf_probe_bpf_map_type(BPF_MAP_TYPE_RINGBUF, nullptr) == 1;
  features.attach_cookie =
      libbpf_probe_bpf_helper(BPF_PROG_TYPE_KPROBE, BPF_FUNC_get_attach_cookie, nullptr) == 1;
  features.bpf_loop = libbpf_probe_bpf_helper(BPF_PROG_TYPE_KPROBE, BPF_FUNC_loop, nullptr) == 1;
  features.vmlinux_btf = access("/sys/kernel/btf/vmlinux", R_OK) == 0;
  features.uprobe_multi = refused_link(kAttachUprobeMulti, 0) == -EBADF;
  features.uprobe_session = refused_link(kAttachUprobeSession, 0) == -EBADF;
  if (const Result<OwnSite> site = own_site(reinterpret_cast<const void*>(&Features::probe))) {
    features.multi_pid_filter = features.uprobe_multi && multi_pid_is_a_process(*site);
    features.perf_uprobe = perf_works(*site);
  }
  features.uverbs_fentry = features.vmlinux_btf && fentry_works();
  features.uverbs_kprobe = features.vmlinux_btf && kprobe_works();
  features.jit = read_jit();
  features.lockdown = read_lockdown();
  disable_features(features, disabled ? disabled : "");

  // With the form that will be used, so after what is disabled is known.
  const ReturnForm form = features.uprobe_session ? ReturnForm::session
                          : features.uprobe_multi ? ReturnForm::multi
                                                  : ReturnForm::perf;
  const SeccompVerdict verdict = sigma::return_probe_under_seccomp(form);
  features.return_probe_under_seccomp = verdict.survives;
  features.return_probe_detail = verdict.detail;
  disable_features(features, disabled ? disabled : "");
  return features;
}

Status require_features(const Features& features) {
  for (const FeatureRow& row : feature_table()) {
    if (!row.required || features.*row.value) continue;
    const bool locked = features.lockdown == "confidentiality";
    return Error{"this kernel cannot do what tracing needs: " + std::string(row.name) + " (" +
                     std::string(row.meaning) + ")",
                 locked ? "kernel lockdown is in confidentiality mode: boot without lockdown=confidentiality"
                        : "`sigmatrace doctor` says what is missing and how to mend it"};
  }
  if (!features.perf_uprobe && !features.uprobe_multi && perf_events_need_sys_admin())
    return Error{"CAP_SYS_ADMIN is missing: needed for probes, as kernel.perf_event_paranoid is above 2",
                 "run it with sudo, or once: sudo sysctl kernel.perf_event_paranoid=2"};
  if (!features.perf_uprobe && !features.uprobe_multi)
    return Error{"this kernel has no uprobes (CONFIG_UPROBE_EVENTS)", "`sigmatrace doctor` says more"};
  return {};
}

}  // namespace sigma
