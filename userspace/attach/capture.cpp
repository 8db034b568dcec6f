// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
#include "attach/capture.h"

#include <bpf/bpf.h>
#include <bpf/libbpf.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cerrno>
#include <cstdarg>
#include <cstdio>
#include <cstring>
#include <functional>
#include <map>
#include <set>
#include <span>
#include <tuple>

#include "attach/attach_plan.h"
#include "attach/links.h"
#include "attach/probe_table.h"
#include "bpf/ring_slots.h"

// The generated skeleton names the types of config.h.
#include "sigmatrace_bpf.skel.h"

namespace sigma {
namespace {

constexpr size_t kRingSlotsBytes = SIGMA_RING_SLOTS * sizeof(sigma_ring_slot);

struct SkeletonDeleter {
  void operator()(sigmatrace_bpf* skeleton) const { sigmatrace_bpf__destroy(skeleton); }
};
using SkeletonPtr = std::unique_ptr<sigmatrace_bpf, SkeletonDeleter>;

struct BpfLinkDeleter {
  void operator()(bpf_link* link) const { bpf_link__destroy(link); }
};
using BpfLinkPtr = std::unique_ptr<bpf_link, BpfLinkDeleter>;

// The last lines that libbpf printed in this thread: the verifier's reason for a refusal.
thread_local std::string libbpf_said;

int remember_libbpf(enum libbpf_print_level level, const char* format, va_list arguments) {
  if (level != LIBBPF_WARN) return 0;
  // The verifier's log comes as one message, its reason at the end.
  va_list again;
  va_copy(again, arguments);
  const int length = vsnprintf(nullptr, 0, format, again);
  va_end(again);
  if (length <= 0) return 0;
  std::string line(static_cast<size_t>(length), '\0');
  vsnprintf(line.data(), line.size() + 1, format, arguments);
  constexpr size_t kKeep = 2048;
  libbpf_said += line;
  if (libbpf_said.size() > kKeep) libbpf_said.erase(0, libbpf_said.size() - kKeep);
  return 0;
}

class ListenToLibbpf {
 public:
  ListenToLibbpf() : previous_(libbpf_set_print(remember_libbpf)) { libbpf_said.clear(); }
  ~ListenToLibbpf() { libbpf_set_print(previous_); }
  ListenToLibbpf(const ListenToLibbpf&) = delete;
  ListenToLibbpf& operator=(const ListenToLibbpf&) = delete;

 private:
  libbpf_print_fn_t previous_;
};

Error load_error(int errnum, const Features& features) {
  std::string what = "the kernel refused the BPF programs: " + errno_text(errnum);
  if (errnum == EPERM && !features.lockdown.empty() && features.lockdown != "none")
    return {what, "kernel lockdown is \"" + features.lockdown +
                      "\": tracing needs \"none\" or \"integrity\""};
  if (errnum == EPERM) return {what, "run it with sudo (needs CAP_BPF and CAP_PERFMON)"};
  if (errnum == ENOMEM) return {what, "choose a smaller --ring-size, or raise the memory limit"};
  return {what,
          libbpf_said.empty() ? "sigmatrace doctor says what this kernel lacks" : libbpf_said};
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
    if (is_any(name, {"uverbs_fentry", "uverbs_fexit"}))
      load = features.uverbs_fentry;
    else if (is_any(name, {"uverbs_kprobe", "uverbs_kretprobe"}))
      load = features.uverbs_kprobe && !features.uverbs_fentry;
    else if (is_any(name, {"process_exec", "process_fork", "process_exit"}))
      load = features.vmlinux_btf;
    bpf_program__set_autoload(program, load);
  }
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

std::string attach_reason(int error) {
  switch (-error) {
    case ESRCH:
      return "the process is gone";
    case ENOENT:
      return "the file is gone, or this kernel has no uprobes";
    case EINVAL:
      return "the kernel refused the probe: invalid argument";
    case EPERM:
    case EACCES:
      return "not permitted (needs CAP_PERFMON and CAP_BPF)";
    case 524:  // ENOTSUPP of the kernel
    case EOPNOTSUPP:
      return "the kernel cannot probe this instruction";
    default:
      return errno_text(-error);
  }
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

std::string_view to_string(ControlHook hook) {
  return hook == ControlHook::kernel_fentry ? "ib_uverbs_ioctl by fentry"
                                            : "ib_uverbs_ioctl by kprobe";
}

struct Capture::Impl {
  Impl() = default;
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;
  ~Impl() {
    if (ring_slots != nullptr) munmap(ring_slots, kRingSlotsBytes);
  }

  Features features;
  LinkForms forms = {LinkForm::perf, LinkForm::perf};
  sigma_config config = {};
  SkeletonPtr skeleton;
  sigma_ring_slot* ring_slots = nullptr;  // mapped, once asked for

  // One probe is placed once, however often the caller asks: (device, inode, offset, pid, program).
  using Place = std::tuple<dev_t, ino_t, uint64_t, pid_t, const char*>;
  struct HeldLink {
    UprobeLink link;
    pid_t pid;
    bool data_path;
    std::vector<Place> places;
  };
  std::vector<HeldLink> links;
  std::set<Place> places;
  std::vector<BpfLinkPtr> kernel_links;
  bool kernel_control = false;
  uint32_t changes = 0;

  int program_fd(const char* name) const {
    return bpf_program__fd(bpf_object__find_program_by_name(skeleton->obj, name));
  }
  pid_t link_pid(LinkForm form, pid_t pid) const {
    return form == LinkForm::perf || features.multi_pid_filter ? pid : 0;
  }

  // By its number in the map `cq_layouts`, from 1; as many as providers are probed.
  std::vector<sigma_cq_layout> cq_layouts;
  uint64_t number_of(const sigma_cq_layout& layout);

  struct Group;
  std::vector<int> attach_group(const Group& group);
  void close_if(const std::function<bool(const HeldLink&)>& which);
  // Whether every command of every process is seen in the kernel; BPF relies on it.
  void set_kernel_control(bool seen) {
    kernel_control = seen;
    std::atomic_ref(skeleton->bss->kernel_control).store(seen);
  }
  // What BPF remembers of queue pairs is to be looked at again (see epoch and generation in
  // maps.h).
  void new_generation() { std::atomic_ref(skeleton->data->generation).fetch_add(1); }
  void new_epoch() {
    std::atomic_ref(skeleton->data->epoch).fetch_add(1);
    new_generation();
  }

  enum class Change { add, pause, resume, probes };
  Status change_target(pid_t pid, Change change);
  Status attach_program(bpf_program* program);
};

// Probes of one program in one file, by one link where the form allows.
struct Capture::Impl::Group {
  const char* program;
  LinkForm form;
  bool at_return;
  const std::string* path;
  dev_t device;
  ino_t inode;
  pid_t pid;
  std::vector<const PlannedProbe*> probes;
};

// One answer a probe: 0 or -errno. All by one link; when that is refused, singly, so that one bad
// site does not cost the others.
std::vector<int> Capture::Impl::attach_group(const Group& group) {
  std::vector<int> answers(group.probes.size(), 0);
  const pid_t pid = link_pid(group.form, group.pid);
  const int fd = program_fd(group.program);
  auto place_of = [&](const PlannedProbe& probe) {
    return Place{group.device, group.inode, probe.offset, pid, group.program};
  };
  auto hold = [&](UprobeLink link, std::vector<Place> held) {
    const sigma_function function = group.probes.front()->row->function;
    const bool control = function == SIGMA_FN_EXECUTE_IOCTL ||
                         function == SIGMA_FN_CLOSE_DEVICE || function == SIGMA_FN_GPU_EMIT;
    places.insert(held.begin(), held.end());
    links.push_back({std::move(link), pid, !control, std::move(held)});
  };
  // Only the library's own function has one, and it is alone in its file.
  const uint64_t counter = group.probes.front()->counter_offset;
  auto link_some = [&](std::span<const uint64_t> offsets, std::span<const uint64_t> cookies,
                       UprobeLink& link) {
    if (group.form == LinkForm::perf)
      return link_uprobe_perf(fd, *group.path, offsets[0],
                              cookies[0] | static_cast<uint64_t>(pid) << SIGMA_COOKIE_PID_SHIFT, pid,
                              group.at_return, link, counter);
    UprobeMultiRequest request;
    request.program_fd = fd;
    request.attach_type =
        group.form == LinkForm::session ? kAttachUprobeSession : kAttachUprobeMulti;
    request.path = *group.path;
    request.offsets = offsets;
    request.cookies = cookies;
    if (counter != 0) request.counter_offsets = {&counter, 1};
    request.pid = pid;
    request.at_return = group.at_return;
    return link_uprobe_multi(request, link);
  };

  std::vector<size_t> todo;
  std::vector<uint64_t> offsets, cookies;
  std::vector<Place> wanted;
  for (size_t i = 0; i < group.probes.size(); i++) {
    const PlannedProbe& probe = *group.probes[i];
    const Place place = place_of(probe);
    if (places.count(place) || std::find(wanted.begin(), wanted.end(), place) != wanted.end())
      continue;
    todo.push_back(i);
    offsets.push_back(probe.offset);
    cookies.push_back(probe.cookie);
    wanted.push_back(place);
  }
  if (todo.empty()) return answers;

  if (group.form != LinkForm::perf) {
    UprobeLink link;
    const int error = link_some(offsets, cookies, link);
    if (error == 0) {
      hold(std::move(link), std::move(wanted));
      return answers;
    }
    if (todo.size() == 1) {
      answers[todo[0]] = error;
      return answers;
    }
  }
  for (size_t n = 0; n < todo.size(); n++) {
    UprobeLink link;
    answers[todo[n]] =
        link_some(std::span(offsets).subspan(n, 1), std::span(cookies).subspan(n, 1), link);
    if (answers[todo[n]] == 0) hold(std::move(link), {wanted[n]});
  }
  return answers;
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
  impl_->new_generation();
  if (result == 0 || errno == ENOENT) return {};
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

// ---- links
// ----------------------------------------------------------------------------------------

// 0: none, or no room for more; then only the public fields of its completions are read.
uint64_t Capture::Impl::number_of(const sigma_cq_layout& layout) {
  if (layout.kind == SIGMA_CQ_NONE) return 0;
  for (size_t i = 0; i < cq_layouts.size(); ++i)
    if (memcmp(&cq_layouts[i], &layout, sizeof layout) == 0) return i + 1;
  const auto number = static_cast<uint32_t>(cq_layouts.size() + 1);
  if (number >= SIGMA_MAX_CQ_LAYOUTS) return 0;
  if (bpf_map_update_elem(bpf_map__fd(skeleton->maps.cq_layouts), &number, &layout, BPF_ANY))
    return 0;
  cq_layouts.push_back(layout);
  return number;
}

AttachReport Capture::attach(const LibraryPlan& library, pid_t pid, const AttachPolicy& given) {
  AttachReport report;
  report.path = library.path;
  AttachPolicy policy = given;
  if (impl_->kernel_control) policy.library_control = false;
  if (!impl_->config.check_posts) policy.check_posts = false;
  AttachPlan plan = plan_probes(library, policy, impl_->forms);
  report.failed = std::move(plan.failed);
  report.without_return = std::move(plan.without_return);
  for (PlannedProbe& probe : plan.probes)
    if (probe.row->function == SIGMA_FN_START_POLL || probe.row->function == SIGMA_FN_NEXT_POLL)
      probe.cookie |= impl_->number_of(library.cq_layout) << SIGMA_COOKIE_LAYOUT_SHIFT;

  struct stat file = {};
  if (stat(library.path.c_str(), &file) < 0) {
    const std::string reason = library.path + ": " + errno_text(errno);
    for (const PlannedProbe& probe : plan.probes)
      report.failed.push_back({probe.row->function, reason});
    return report;
  }

  auto attach_all = [&](bool returns) {
    std::map<std::pair<const char*, LinkForm>, Impl::Group> groups;
    for (const PlannedProbe& probe : plan.probes) {
      const char* program = returns ? probe.at_return : probe.entry;
      if (!program) continue;
      Impl::Group& group = groups[{program, probe.form}];
      if (group.probes.empty())
        group = {program, probe.form, returns, &library.path, file.st_dev, file.st_ino, pid, {}};
      group.probes.push_back(&probe);
    }
    std::map<const PlannedProbe*, int> errors;
    for (const auto& [key, group] : groups) {
      const std::vector<int> answers = impl_->attach_group(group);
      for (size_t i = 0; i < answers.size(); i++)
        if (answers[i] != 0) errors[group.probes[i]] = answers[i];
    }
    return errors;
  };

  // Returns first: once an entry claims that its return is seen, it must be.
  const auto without_return = attach_all(true);
  std::vector<PlannedProbe> remaining;
  for (PlannedProbe& probe : plan.probes) {
    const auto error = without_return.find(&probe);
    if (error != without_return.end()) {
      const std::string reason = attach_reason(error->second);
      if (!drop_return(probe, impl_->forms)) {
        report.failed.push_back({probe.row->function, reason});
        continue;
      }
      report.without_return.push_back({probe.row->function, reason});
    }
    remaining.push_back(probe);
  }
  plan.probes = std::move(remaining);
  settle_batches(plan.probes);

  const auto failed = attach_all(false);
  for (const PlannedProbe& probe : plan.probes) {
    const auto error = failed.find(&probe);
    if (error != failed.end())
      report.failed.push_back({probe.row->function, attach_reason(error->second)});
    else
      report.attached.push_back(
          {probe.row->function, probe.form, probe.offset, probe.sees_return()});
  }
  return report;
}

Status Capture::Impl::attach_program(bpf_program* program) {
  const ListenToLibbpf listen;
  bpf_link* link = bpf_program__attach(program);
  if (!link) {
    const int errnum = errno;
    return Error{
        fmt::format("{} cannot be attached: {}", bpf_program__name(program), errno_text(errnum)),
        libbpf_said};
  }
  kernel_links.emplace_back(link);
  return {};
}

Result<ControlHook> Capture::attach_control() {
  Impl& impl = *impl_;
  const auto& programs = impl.skeleton->progs;
  // kprobes first, though fexit is cheaper: a trampoline's program may be preempted, and is then skipped
  // for whoever enters it on that CPU (__bpf_prog_enter_recur). On a preemptible 6.12 with jobs setting
  // up side by side, some commands of a hundred were lost. A kprobe's program runs with preemption off.
  if (impl.features.uverbs_kprobe) {
    SIGMA_CHECK(impl.attach_program(programs.uverbs_kretprobe));
    SIGMA_CHECK(impl.attach_program(programs.uverbs_kprobe));
    impl.set_kernel_control(true);
    return ControlHook::kernel_kprobe;
  }
  if (impl.features.uverbs_fentry) {
    SIGMA_CHECK(impl.attach_program(programs.uverbs_fexit));
    SIGMA_CHECK(impl.attach_program(programs.uverbs_fentry));
    impl.set_kernel_control(true);
    return ControlHook::kernel_fentry;
  }
  return Error{"the kernel's ib_uverbs_ioctl cannot be hooked",
               "modprobe ib_uverbs; libibverbs is probed instead"};
}

uint64_t Capture::missed_runs() const {
  uint64_t missed = 0;
  bpf_program* program = nullptr;
  bpf_object__for_each_program(program, impl_->skeleton->obj) {
    bpf_prog_info info{};
    __u32 size = sizeof(info);
    const int fd = bpf_program__fd(program);
    if (fd >= 0 && bpf_obj_get_info_by_fd(fd, &info, &size) == 0) missed += info.recursion_misses;
  }
  return missed;
}

Status Capture::attach_process_events() {
  if (!impl_->features.vmlinux_btf)
    return Error{"process events need /sys/kernel/btf/vmlinux",
                 "use a kernel with CONFIG_DEBUG_INFO_BTF"};
  const auto& programs = impl_->skeleton->progs;
  SIGMA_CHECK(impl_->attach_program(programs.process_exec));
  SIGMA_CHECK(impl_->attach_program(programs.process_fork));
  SIGMA_CHECK(impl_->attach_program(programs.process_exit));
  // Without it the last moments of queues that nobody destroys are lost, and counted.
  (void)impl_->attach_program(programs.rings_exit);
  return {};
}

// All at once: each close waits for grace periods, which the others then share.
void Capture::Impl::close_if(const std::function<bool(const HeldLink&)>& which) {
  std::vector<UprobeLink> doomed;
  std::vector<HeldLink> kept;
  for (HeldLink& held : links) {
    if (which(held)) {
      for (const Place& place : held.places) places.erase(place);
      doomed.push_back(std::move(held.link));
    } else {
      kept.push_back(std::move(held));
    }
  }
  links = std::move(kept);
  close_links(std::move(doomed));
}

void Capture::detach() {
  impl_->close_if([](const Impl::HeldLink&) { return true; });
  impl_->kernel_links.clear();
  impl_->set_kernel_control(false);
  impl_->new_epoch();
}

void Capture::detach(pid_t pid, bool data_path_only) {
  // A return whose probe is gone leaves its call pending; should the probes come back, it is void.
  if (!data_path_only) impl_->new_epoch();  // commands go unseen from here on
  for (const pid_t each : pid != 0 ? std::vector<pid_t>{pid} : targets())
    (void)impl_->change_target(each, Impl::Change::probes);
  impl_->close_if([&](const Impl::HeldLink& held) {
    return held.pid == pid && (held.data_path || !data_path_only);
  });
}

// ---- maps
// -----------------------------------------------------------------------------------------

int Capture::ring_map_fd() const {
  return bpf_map__fd(impl_->skeleton->maps.records);
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
