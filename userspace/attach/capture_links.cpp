// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Probes and hooks of Capture: placed once each, by as few links as the kernel allows, closed together.

#include <bpf/bpf.h>
#include <bpf/libbpf.h>
#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <map>
#include <span>

#include "attach/capture_impl.h"
#include "attach/libbpf_log.h"
#include "attach/probe_table.h"

namespace sigma {
namespace {

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

Status Capture::Impl::attach_program(bpf_program* program, std::vector<BpfLinkPtr>& held) {
  const ListenToLibbpf listen;
  return keep(program, bpf_program__attach(program), held);
}

Status Capture::Impl::keep(bpf_program* program, bpf_link* link, std::vector<BpfLinkPtr>& held) {
  if (!link) {
    const int errnum = errno;
    return Error{
        fmt::format("{} cannot be attached: {}", bpf_program__name(program), errno_text(errnum)),
        ListenToLibbpf::said()};
  }
  held.emplace_back(link);
  return {};
}

Result<ControlHook> Capture::attach_control() {
  const auto& programs = impl_->skeleton->progs;
  const std::optional<ControlHook> hook = control_hook_of(impl_->features);
  if (!hook)
    return Error{"the kernel's ib_uverbs_ioctl cannot be hooked",
                 "modprobe ib_uverbs; libibverbs is probed instead"};
  auto& links = impl_->control_links;
  if (*hook == ControlHook::kernel_kprobe) {
    const ListenToLibbpf listen;
    const std::string function = uverbs_function();
    for (const bool at_return : {true, false}) {
      bpf_program* program = at_return ? programs.uverbs_kretprobe : programs.uverbs_kprobe;
      SIGMA_CHECK(impl_->keep(program, bpf_program__attach_kprobe(program, at_return, function.c_str()), links));
    }
  } else {
    SIGMA_CHECK(impl_->attach_program(programs.uverbs_fexit, links));
    SIGMA_CHECK(impl_->attach_program(programs.uverbs_fentry, links));
  }
  impl_->set_kernel_control(true);
  return *hook;
}

Result<ControlHook> Capture::renew_control() {
  impl_->control_links.clear();
  impl_->set_kernel_control(false);
  impl_->new_epoch();  // commands went unseen
  return attach_control();
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
  SIGMA_CHECK(impl_->attach_program(programs.process_exec, impl_->kernel_links));
  SIGMA_CHECK(impl_->attach_program(programs.process_fork, impl_->kernel_links));
  SIGMA_CHECK(impl_->attach_program(programs.process_exit, impl_->kernel_links));
  // Without these the last moments of queues that nobody destroys are lost, and counted.
  (void)impl_->attach_program(programs.rings_exit, impl_->kernel_links);
  (void)impl_->attach_program(programs.rings_exec, impl_->kernel_links);
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
  impl_->control_links.clear();
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

}  // namespace sigma
