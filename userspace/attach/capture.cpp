// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
#include "attach/capture.h"

#include <bpf/bpf.h>
#include <bpf/libbpf.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cerrno>
#include <cstring>
#include <initializer_list>

#include "attach/capture_impl.h"
#include "attach/libbpf_log.h"
#include "attach/probe_table.h"

namespace sigma {
namespace {

Error load_error(int errnum, const Features& features) {
  std::string what = "the kernel refused the BPF programs: " + errno_text(errnum);
  if (errnum == EPERM && !features.lockdown.empty() && features.lockdown != "none")
    return {what, "kernel lockdown is \"" + features.lockdown +
                      "\": tracing needs \"none\" or \"integrity\""};
  if (errnum == EPERM) return {what, "run it with sudo (needs CAP_BPF and CAP_PERFMON)"};
  if (errnum == ENOMEM) return {what, "choose a smaller --ring-size, or raise the memory limit"};
  return {what,
          ListenToLibbpf::said().empty() ? "sigmatrace doctor says what this kernel lacks" : ListenToLibbpf::said()};
}

LinkForms choose_forms(const Features& features, const sigma_config& config) {
  // A multi link whose pid filter is unsound would have to hit every process; prefer perf links
  // then.
  const bool multi = features.uprobe_multi &&
                     (features.multi_pid_filter || config.selects || !features.perf_uprobe);
  if (!multi) return {LinkForm::perf, LinkForm::perf};
  return {LinkForm::multi, features.uprobe_session ? LinkForm::session : LinkForm::multi};
}

bool is_any(const char* name, std::initializer_list<const char*> names) {
  return std::any_of(names.begin(), names.end(),
                     [name](const char* other) { return strcmp(name, other) == 0; });
}

// Which programs this kernel is given, and for which kind of link.
void configure_programs(bpf_object* object, const Features& features, LinkForms forms) {
  bpf_program* program = nullptr;
  bpf_object__for_each_program(program, object) {
    const char* name = bpf_program__name(program);
    bool load = true;
    if (is_any(name, {"uverbs_kprobe", "uverbs_kretprobe"}))
      load = control_hook_of(features) == ControlHook::kernel_kprobe;
    else if (is_any(name, {"uverbs_fentry", "uverbs_fexit"}))
      load = control_hook_of(features) == ControlHook::kernel_fentry;
    else if (is_any(name, {"open_files"}))
      load = control_hook_of(features).has_value();
    else if (is_any(name, {"process_exec", "process_fork", "process_exit"}))
      load = features.vmlinux_btf;
    bpf_program__set_autoload(program, load);
  }
  // Their sections name ib_uverbs_ioctl.
  if (control_hook_of(features) == ControlHook::kernel_fentry && uverbs_function() != "ib_uverbs_ioctl")
    for (const char* name : {"uverbs_fentry", "uverbs_fexit"})
      (void)bpf_program__set_attach_target(bpf_object__find_program_by_name(object, name), 0,
                                           uverbs_function().c_str());
  const bool sessions = forms.with_return == LinkForm::session;
  auto set_form = [object](const char* name, LinkForm form, bool load) {
    bpf_program* uprobe = name ? bpf_object__find_program_by_name(object, name) : nullptr;
    if (!uprobe) return;
    bpf_program__set_autoload(uprobe, load);
    if (form == LinkForm::multi)
      bpf_program__set_expected_attach_type(uprobe,
                                            static_cast<bpf_attach_type>(kAttachUprobeMulti));
    else if (form == LinkForm::session)
      bpf_program__set_expected_attach_type(uprobe,
                                            static_cast<bpf_attach_type>(kAttachUprobeSession));
  };
  for (const ProbeRow& row : probe_table()) {
    const bool entry = !sessions || row.return_use != ReturnUse::required;
    set_form(row.entry, forms.entry, entry);
    set_form(row.at_return, forms.entry, !sessions);
    set_form(row.session, LinkForm::session, sessions);
  }
}

size_t ring_size(size_t bytes) {
  const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  return std::bit_ceil(std::max(bytes, page));
}

}  // namespace

std::string_view to_string(LinkForm form) {
  switch (form) {
    case LinkForm::perf:
      return "perf";
    case LinkForm::multi:
      return "multi";
    case LinkForm::session:
      return "session";
  }
  return "";
}

std::optional<ControlHook> control_hook_of(const Features& features) {
  if (features.uverbs_kprobe) return ControlHook::kernel_kprobe;
  if (features.uverbs_fentry) return ControlHook::kernel_fentry;
  return std::nullopt;
}

std::string_view to_string(ControlHook hook) {
  return hook == ControlHook::kernel_fentry ? "ib_uverbs_ioctl by fentry"
                                            : "ib_uverbs_ioctl by kprobe";
}

Capture::Capture(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Capture::~Capture() {
  detach();
}

Result<std::unique_ptr<Capture>> Capture::load(const CaptureOptions& options,
                                               const Features& features) {
  if (!features.ring_buffer || !features.attach_cookie)
    return Error{"this kernel's BPF lacks ring buffers or attach cookies",
                 "Linux 5.15 or later is needed"};
  if (!features.uprobe_multi && !features.perf_uprobe)
    return Error{"uprobes cannot be attached",
                 "run it with sudo; the kernel needs CONFIG_UPROBE_EVENTS"};

  auto impl = std::make_unique<Impl>();
  impl->features = features;
  impl->config = options.config;
  impl->config.has_loop = features.bpf_loop;
  impl->forms = choose_forms(features, options.config);
  impl->config.has_sessions = impl->forms.with_return == LinkForm::session;

  const ListenToLibbpf listen;
  impl->skeleton.reset(sigmatrace_bpf__open());
  if (!impl->skeleton) return load_error(errno, features);
  // The whole struct at once: a member forgotten here would silently keep its default.
  impl->skeleton->rodata->config = impl->config;
  bpf_map__set_max_entries(impl->skeleton->maps.records,
                           static_cast<uint32_t>(ring_size(options.ring_bytes)));
  configure_programs(impl->skeleton->obj, features, impl->forms);
  if (const int error = sigmatrace_bpf__load(impl->skeleton.get()))
    return load_error(-error, features);
  if (options.cgroup_fd >= 0) {
    const uint32_t key = 0;
    const auto cgroup = static_cast<uint32_t>(options.cgroup_fd);
    if (bpf_map_update_elem(bpf_map__fd(impl->skeleton->maps.selected_cgroup), &key, &cgroup, BPF_ANY))
      return Error{"the kernel does not take the cgroup: " + errno_text(errno)};
  }
  return std::unique_ptr<Capture>(new Capture(std::move(impl)));
}

// ---- targets
// --------------------------------------------------------------------------------------

// A per-CPU map: BPF adds to `hits` on its own CPU without contention, `flags` are the same on all.
// Every change gets a number, so that BPF does not take a call that began before it for one that
// began after.
Status Capture::Impl::change_target(pid_t pid, Change change) {
  const int map = bpf_map__fd(skeleton->maps.targets);
  const auto key = static_cast<uint32_t>(pid);
  std::vector<sigma_target> values(static_cast<size_t>(libbpf_num_possible_cpus()));
  const bool known = bpf_map_lookup_elem(map, &key, values.data()) == 0;
  if (known == (change == Change::add)) return {};
  changes++;
  for (sigma_target& value : values) {
    if (!known) value = {};
    uint32_t paused = value.flags & SIGMA_TARGET_PAUSED;
    if (change == Change::pause) paused = SIGMA_TARGET_PAUSED;
    if (change == Change::resume) paused = 0;
    value.flags = changes * SIGMA_TARGET_CHANGE | paused;
  }
  const int result = bpf_map_update_elem(map, &key, values.data(), known ? BPF_EXIST : BPF_NOEXIST);
  const int errnum = errno;
  new_generation();
  if (result == 0) return {};
  if (errnum == EEXIST || errnum == ENOENT) return {};  // BPF was first: a fork, an exit
  if (errnum == E2BIG)
    return Error{"too many processes are traced at once", "narrow the selection"};
  return Error{fmt::format("process {} cannot be added: {}", pid, errno_text(errnum))};
}

Status Capture::add_target(pid_t pid) {
  return impl_->change_target(pid, Impl::Change::add);
}

Status Capture::pause_target(pid_t pid, bool paused) {
  return impl_->change_target(pid, paused ? Impl::Change::pause : Impl::Change::resume);
}

Status Capture::remove_target(pid_t pid) {
  const auto key = static_cast<uint32_t>(pid);
  const int result = bpf_map_delete_elem(bpf_map__fd(impl_->skeleton->maps.targets), &key);
  if (result != 0 && errno == ENOENT) return {};
  impl_->new_generation();
  if (result == 0) return {};
  return Error{fmt::format("process {} cannot be removed: {}", pid, errno_text(errno))};
}

uint64_t Capture::target_hits(pid_t pid) const {
  const auto key = static_cast<uint32_t>(pid);
  std::vector<sigma_target> values(static_cast<size_t>(libbpf_num_possible_cpus()));
  if (bpf_map_lookup_elem(bpf_map__fd(impl_->skeleton->maps.targets), &key, values.data()))
    return 0;
  uint64_t hits = 0;
  for (const sigma_target& value : values) hits += value.hits;
  return hits;
}

std::vector<pid_t> Capture::targets() const {
  std::vector<pid_t> pids;
  const int map = bpf_map__fd(impl_->skeleton->maps.targets);
  const uint32_t limit = bpf_map__max_entries(impl_->skeleton->maps.targets);
  // Entries come and go meanwhile: a walk that is thrown back to the start must still end.
  uint32_t key = 0;
  for (int error = bpf_map_get_next_key(map, nullptr, &key);
       error == 0 && pids.size() < 2 * size_t{limit}; error = bpf_map_get_next_key(map, &key, &key))
    pids.push_back(static_cast<pid_t>(key));
  std::sort(pids.begin(), pids.end());
  pids.erase(std::unique(pids.begin(), pids.end()), pids.end());
  return pids;
}

// ---- maps
// -----------------------------------------------------------------------------------------

int Capture::ring_map_fd() const {
  return bpf_map__fd(impl_->skeleton->maps.records);
}
int Capture::spare_events_map_fd() const {
  return bpf_map__fd(impl_->skeleton->maps.spare_events);
}
sigma_ring_slot* Capture::ring_slots() const {
  if (impl_->ring_slots == nullptr) {
    void* at = mmap(nullptr, kRingSlotsBytes, PROT_READ | PROT_WRITE, MAP_SHARED,
                    bpf_map__fd(impl_->skeleton->maps.ring_slots), 0);
    if (at != MAP_FAILED) impl_->ring_slots = static_cast<sigma_ring_slot*>(at);
  }
  return impl_->ring_slots;
}
int Capture::queue_pairs_map_fd() const {
  return bpf_map__fd(impl_->skeleton->maps.queue_pairs);
}
LinkForm Capture::return_form() const {
  return impl_->forms.with_return;
}
LinkForm Capture::entry_form() const {
  return impl_->forms.entry;
}

Status Capture::set_doorbell(pid_t pid, uint64_t qp_ptr, uint32_t qp_num, uint64_t doorbell_addr) {
  const sigma_queue_pair_key key = {
      .tgid = static_cast<uint32_t>(pid), .reserved = 0, .qp_ptr = qp_ptr};
  sigma_queue_pair value = {};
  if (bpf_map_lookup_elem(queue_pairs_map_fd(), &key, &value) != 0 || value.qp_num != qp_num)
    value = {};
  value.qp_num = qp_num;
  value.doorbell = doorbell_addr;
  if (bpf_map_update_elem(queue_pairs_map_fd(), &key, &value, BPF_ANY) == 0) return {};
  return Error{fmt::format("queue pair {} of process {}: {}", qp_num, pid, errno_text(errno))};
}

Status Capture::set_ring_slot(pid_t pid, uint64_t context, uint32_t handle, uint32_t slot) {
  const sigma_ring_key key = {
      .tgid = static_cast<uint32_t>(pid), .handle = handle, .ucontext = context};
  if (bpf_map_update_elem(bpf_map__fd(impl_->skeleton->maps.ring_objects), &key, &slot, BPF_NOEXIST) == 0)
    return {};
  return Error{fmt::format("queue {} of process {}: {}", handle, pid, errno_text(errno))};
}

std::map<int, uint64_t> Capture::open_files(pid_t pid) const {
  std::map<int, uint64_t> files;
  bpf_program* program = impl_->skeleton->progs.open_files;
  if (bpf_program__fd(program) < 0) return files;
  bpf_iter_link_info info{};
  info.task.pid = static_cast<uint32_t>(pid);
  LIBBPF_OPTS(bpf_iter_attach_opts, options, .link_info = &info, .link_info_len = sizeof(info));
  BpfLinkPtr link(bpf_program__attach_iter(program, &options));
  // Before 6.1 (f0d74c4da1f0) it could not be limited to a process; the program looks itself.
  if (!link) link.reset(bpf_program__attach_iter(program, nullptr));
  if (!link) return files;
  impl_->skeleton->bss->files_of = static_cast<uint32_t>(pid);
  const Fd reader(bpf_iter_create(bpf_link__fd(link.get())));
  if (!reader) return files;
  std::array<sigma_open_file, 64> rows;
  for (size_t have = 0;;) {
    const ssize_t got = read(reader.get(), reinterpret_cast<char*>(rows.data()) + have, sizeof(rows) - have);
    if (got <= 0) return files;
    have += static_cast<size_t>(got);
    const size_t whole = have / sizeof(rows[0]);
    for (size_t i = 0; i < whole; ++i) files[static_cast<int>(rows[i].fd)] = rows[i].file;
    have -= whole * sizeof(rows[0]);
    if (have > 0) std::memmove(rows.data(), &rows[whole], have);
  }
}

std::array<uint64_t, SIGMA_COUNTERS> Capture::counters() const {
  std::array<uint64_t, SIGMA_COUNTERS> sums = {};
  std::vector<std::array<uint64_t, SIGMA_COUNTERS>> cpus(
      static_cast<size_t>(libbpf_num_possible_cpus()));
  const uint32_t key = 0;
  if (bpf_map_lookup_elem(bpf_map__fd(impl_->skeleton->maps.counters), &key, cpus.data()))
    return sums;
  for (const auto& cpu : cpus)
    for (size_t i = 0; i < sums.size(); i++) sums[i] += cpu[i];
  return sums;
}

}  // namespace sigma
