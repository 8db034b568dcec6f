// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// The traced processes: how they come and go, and what the probes may cost each of them.

#include <fmt/format.h>
#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <fstream>
#include <utility>

#include "attach/process_facts.h"
#include "attach/tracer.h"
#include "base/clock.h"
#include "base/text_field.h"

namespace sigma {
namespace {

// "Seccomp: 2" in /proc/PID/status: a filter is installed.
bool is_seccomp_filtered(pid_t pid) {
  std::ifstream in(fmt::format("/proc/{}/status", pid));
  for (std::string line; std::getline(in, line);)
    if (line.starts_with("Seccomp:")) return line.find('2') != std::string::npos;
  return false;
}

}  // namespace

std::string Tracer::command_of(pid_t pid) {
  std::ifstream in(fmt::format("/proc/{}/comm", pid));
  std::string comm;
  std::getline(in, comm);
  return comm;
}

// By their own records, or by the kernel as long as it is there: what it has done is told a while after it.
std::string Tracer::name_of(pid_t pid) const {
  const auto known = names_.find(pid);
  if (known != names_.end() && known->second.gone_ns != 0) return known->second.name;
  std::string name = command_of(pid);
  return name.empty() && known != names_.end() ? known->second.name : name;
}

// Its end has been told, and what is there has not come since.
bool Tracer::is_told_gone(pid_t pid) const {
  const auto known = names_.find(pid);
  return known != names_.end() && known->second.gone_ns != 0 && first_thread_exits(pid);
}

Status Tracer::add_process(pid_t pid) {
  if (is_told_gone(pid)) return Error{fmt::format("process {} has ended", pid)};
  Target target;
  target.pid = pid;
  target.pidfd.reset(static_cast<int>(syscall(SYS_pidfd_open, pid, 0)));
  if (!target.pidfd)
    return errno == ESRCH ? Error{fmt::format("there is no process {}", pid), "`ps -e` shows what runs"}
                          : Error{fmt::format("cannot follow process {}: {}", pid, errno_text(errno))};
  target.since_ns = monotonic_now_ns();
  target.start_ns = process_start_ns(pid);
  target.seccomp = is_seccomp_filtered(pid);
  target.governor = Governor({.budget = options_.budget, .ns_per_hit = ns_per_hit_});
  SIGMA_CHECK(capture_->add_target(pid));
  names_.insert_or_assign(pid, Name{command_of(pid)});
  Target& stored = targets_.insert_or_assign(pid, std::move(target)).first->second;
  look_at_libraries(stored);
  return {};
}

void Tracer::on_process(const sigma_process& record) {
  const auto pid = static_cast<pid_t>(record.h.pid);
  note_name(record);
  if (record.kind == SIGMA_PROCESS_EXEC) {
    rescan_.insert(pid);
    born_ns_[pid] = record.h.time_ns;
    if (auto it = targets_.find(pid); it != targets_.end()) {  // another program
      tell_not_found(it->second);
      it->second.looked = it->second.linked_in = it->second.functions_found = false;
      it->second.searches = 0;
    }
    if (observer_) observer_->on_process_end(record.h.pid, record.h.time_ns - 1);  // of the old one
  } else if (record.kind == SIGMA_PROCESS_FOUND) {
    rescan_.insert(pid);
  } else if (record.kind == SIGMA_PROCESS_FORK && options_.follow_forks) {
    const auto child = static_cast<pid_t>(record.child_pid);
    rescan_.insert(child);
    // A child has copies of what its parent made.
    const auto parent = targets_.find(pid);
    if (parent != targets_.end() && parent->second.waiting) born_ns_[child] = record.h.time_ns;
  } else if (record.kind == SIGMA_PROCESS_EXIT || record.kind == SIGMA_PROCESS_LEFT) {
    if (auto it = targets_.find(pid); it != targets_.end()) {
      Target& target = it->second;
      target.ended = record.h.time_ns >= target.start_ns;
      if (!target.ended) {  // the end is of the one that had this number before, and so is what the rings tell
        target.looked = false;
        rescan_.insert(pid);
      }
    }
    born_ns_.erase(pid);
    if (observer_) observer_->on_process_end(record.h.pid, record.h.time_ns);
  }
}

void Tracer::note_name(const sigma_process& record) {
  const auto pid = static_cast<pid_t>(record.h.pid);
  const std::string_view comm = text_of(record.comm);
  if (record.kind == SIGMA_PROCESS_EXEC) {
    names_.insert_or_assign(pid, Name{std::string(comm)});
  } else if (record.kind == SIGMA_PROCESS_EXIT) {
    Name& last = names_[pid];
    if (last.name.empty()) last.name = comm;  // of its last thread
    last.gone_ns = record.h.time_ns;
  } else if (record.kind == SIGMA_PROCESS_LEFT) {  // it runs on, under another name
    if (const auto known = names_.find(pid); known != names_.end()) known->second.gone_ns = record.h.time_ns;
  }
}

void Tracer::govern(Target& target, uint64_t now_ns) {
  const GovernorAction action = target.governor.sample(capture_->target_hits(target.pid), now_ns);
  if (action == GovernorAction::none) return;
  const bool pause = action == GovernorAction::pause;
  if (pause && to_ring_mode(target)) return;
  if (pause && target.governor.pauses() == 1)
    say_(fmt::format("process {}: probes cost {:.0f}% of a core, more than the budget of {:.0f}%: tracing in windows, "
                     "with pauses (--budget off traces all)",
                     target.pid, target.governor.last_cost() * 100, options_.budget * 100));
  if (!shared_probes_) {
    switch_data_path(target, !pause);
    return push_window(pause, target.pid, now_ns);
  }
  paused_targets_ += pause ? 1 : -1;
  if (pause ? paused_targets_ == 1 : paused_targets_ == 0) switch_shared_data_path(!pause, now_ns);
}

void Tracer::push_window(bool pause, pid_t pid, uint64_t now_ns) {
  sigma_window window{};
  window.h = {now_ns, SIGMA_WINDOW, sizeof window, 0, static_cast<__u32>(pid), 0};
  window.kind = pause ? SIGMA_WINDOW_PAUSE : SIGMA_WINDOW_RESUME;
  push(std::as_bytes(std::span(&window, 1)));
}

// Where the rings tell of posts as well, they do it alone from now on: nothing is missed.
bool Tracer::to_ring_mode(Target& target) {
  const auto serves = [&](const TracedLibrary& library) {
    return library.plan->kind == LibraryKind::provider &&
           (library.pid == target.pid || library.pid == 0);
  };
  const bool all_mlx5 = std::all_of(libraries_.begin(), libraries_.end(), [&](const TracedLibrary& library) {
    return !serves(library) || library.plan->name == "libmlx5" || library.report.attached.empty();
  });
  if (!observes() || shared_probes_ || target.older || !target.readable || !all_mlx5 || options_.posts != TracerOptions::Posts::automatic ||
      options_.completions == TracerOptions::Completions::probe || options_.completions == TracerOptions::Completions::both)
    return false;
  say_(fmt::format("process {}: probes on posts cost {:.0f}% of a core, more than the budget of {:.0f}%: its queues "
                   "tell of posts from now on, with times to within a sampling interval (--budget off keeps the probes)",
                   target.pid, target.governor.last_cost() * 100, options_.budget * 100));
  state(fmt::format("process {}: posts are read from its queues since the probes went beyond the budget",
                                    target.pid));
  target.ring_mode = true;
  target.governor = Governor({.budget = 0});
  switch_data_path(target, false);
  observer_->set_probed(static_cast<uint32_t>(target.pid), false, "budget");
  return true;
}

// The probes go, rather than a flag be set: a trap costs most of what a hit costs.
void Tracer::switch_data_path(Target& target, bool on) {
  if (!on) {
    capture_->detach(target.pid, /*data_path_only=*/true);
    return;
  }
  for (TracedLibrary& library : libraries_)
    if (library.pid == target.pid && library.plan->kind == LibraryKind::provider) {
      library.policy = with_rings(policy_for(&target), *library.plan, &target);
      library.report = capture_->attach(*library.plan, library.pid, library.policy);
    }
}

// Probes that serve all processes go for all of them, whichever is beyond its budget: the harm that a trace
// does is bounded first, what it sees comes after.
void Tracer::switch_shared_data_path(bool on, uint64_t now_ns) {
  if (!on) {
    capture_->detach(0, /*data_path_only=*/true);
    paused_since_ns_ = now_ns;
    ++counters_.governor_pauses;
  } else {
    for (TracedLibrary& library : libraries_) {
      if (library.plan->kind == LibraryKind::libibverbs) continue;
      LibraryPlan plan = *library.plan;
      if (library.file) plan.path = fmt::format("/proc/self/fd/{}", library.file.get());
      library.report = capture_->attach(plan, 0, library.policy);
    }
    paused_ns_ += now_ns - paused_since_ns_;
  }
  push_window(!on, 0, now_ns);
}

bool Tracer::has_exited(const Target& target) {
  pollfd waiter{target.pidfd.get(), POLLIN, 0};
  return ::poll(&waiter, 1, 0) == 1;
}

// It has, or will soon have. A process gives up its memory and its root folder a while before its end is told
// (do_exit: exit_mm, exit_fs, exit_notify): what it had mapped can no longer be opened by its names.
bool Tracer::is_ending(const Target& target) {
  char first;
  const bool has_no_root =
      readlink(fmt::format("/proc/{}/root", target.pid).c_str(), &first, 1) < 0 && errno == ENOENT;
  return has_no_root || has_exited(target);
}

// BPF tells of an end before the kernel shows it by the descriptor. Where it cannot (without process events), or has
// not seen it (before the process was a target), we do, when all that was in the ring by then has been told.
void Tracer::look_for_unseen_end(Target& target) {
  if (target.ended || !has_exited(target)) return;
  if (!target.gone_at)
    target.gone_at = ring_->produced();  // by the next look, what was kept aside has been read as well
  else if (ring_->position() >= *target.gone_at)
    tell_end(target);
}

void Tracer::tell_end(const Target& target) {
  sigma_process exit{};
  exit.h = {monotonic_now_ns(), SIGMA_PROCESS, sizeof exit, 0, static_cast<__u32>(target.pid), 0};
  exit.kind = SIGMA_PROCESS_EXIT;
  exit.exit_code = SIGMA_EXIT_UNKNOWN;
  name_of(target.pid).copy(exit.comm, sizeof exit.comm - 1);
  on_process(exit);
  push(std::as_bytes(std::span(&exit, 1)));
}

void Tracer::notice_ends() {
  std::erase_if(names_, [this](const auto& each) { return each.second.gone_ns != 0 && each.second.gone_ns < told_until_ns_; });
  for (auto it = targets_.begin(); it != targets_.end();) {
    Target& target = it->second;
    look_for_unseen_end(target);
    it = target.ended ? forget(it) : std::next(it);
  }
}

// What has ended: a trace of a whole machine sees processes without end.
std::map<pid_t, Tracer::Target>::iterator Tracer::forget(std::map<pid_t, Target>::iterator ended) {
  const auto& [pid, target] = *ended;
  if (!shared_probes_) {
    capture_->detach(pid);
    counters_.governor_pauses += target.governor.pauses();
    paused_ns_ += target.governor.paused_ns(monotonic_now_ns());
  } else if (target.governor.paused() && --paused_targets_ == 0) {
    switch_shared_data_path(true, monotonic_now_ns());
  }
  tell_not_found(target);
  // BPF has taken it out, and may have done so before we put it in.
  if (first_thread_exits(pid)) (void)capture_->remove_target(pid);
  {
    const std::lock_guard lock(registries_mutex_);
    registries_.erase(pid);
  }
  return targets_.erase(ended);
}

}  // namespace sigma
