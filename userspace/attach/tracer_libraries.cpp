// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// The files that a process maps, or will map: which of their functions are probed for whom.

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <utility>

#include "attach/installed_libraries.h"
#include "attach/probe_table.h"
#include "attach/provider_choice.h"
#include "attach/rdma_sysfs.h"
#include "attach/tracer.h"
#include "base/clock.h"
#include "gpu_interpose/registry.h"
#include "resolve/classify.h"

namespace sigma {
namespace {

// Of a file that cannot be opened there is its name only.
bool is_named_as_verbs(std::string_view path) {
  const std::string_view name = path.substr(path.rfind('/') + 1);
  return name.find("ibverbs") != name.npos || name.find("-rdmav") != name.npos || name.starts_with("libmlx5") ||
         name.starts_with("libmlx4") || name.starts_with("libefa");
}

// Of a program with libibverbs linked in that makes no queue pairs, each of its commands would be a reason to look again.
constexpr size_t kMaxSearches = 100;

// A byte of its program text, as the queue observer would read its queues; else errno says why not.
bool can_read(pid_t pid, const std::vector<Mapping>& maps) {
  for (const Mapping& mapping : maps) {
    if (!mapping.readable || !mapping.executable || mapping.path.empty()) continue;
    char byte;
    iovec local{&byte, 1}, remote{reinterpret_cast<void*>(mapping.start), 1};
    return process_vm_readv(pid, &local, 1, &remote, 1, 0) == 1 || (errno != EPERM && errno != ENOSYS);
  }
  return true;
}

// A process that ends has lost its memory for a while before it is seen to have ended.
bool still_maps(pid_t pid, const Mapping& mapping) {
  const auto maps = read_maps(pid);
  if (!maps.ok()) return false;
  const Mapping* now = find_mapping(*maps, mapping.start);
  return now != nullptr && now->inode == mapping.inode && now->device == mapping.device;
}

}  // namespace

// Probes limited to a process cost the others nothing; shared ones serve children to come, and are few
// where every probe is a link, a descriptor and 50 ms at its end.
pid_t Tracer::scope_of(const Target& target) const { return shared_probes_ ? 0 : target.pid; }

AttachPolicy Tracer::policy_for(const Target* target) const {
  AttachPolicy policy;
  policy.completions = options_.completions != TracerOptions::Completions::off;
  policy.check_posts = options_.check_posts;
  // Shared probes are in every process that maps the file: some of those may be filtered.
  policy.returns_allowed = features_.return_probe_under_seccomp || (!shared_probes_ && target && !target->seccomp);
  policy.library_control = !control_hook_;
  return policy;
}

// What the library's rings tell needs no probe, where those of queues older than the attach were all found.
// `target`: nullptr where the probes are for processes to come.
AttachPolicy Tracer::with_rings(AttachPolicy policy, const LibraryPlan& plan, const Target* target) const {
  if (!observes() || plan.name != "libmlx5" || (target && (target->older || !target->readable))) return policy;
  policy.posts = options_.posts != TracerOptions::Posts::ring && !(target && target->ring_mode);
  if (reads_completions() && options_.completions != TracerOptions::Completions::both) policy.completions = false;
  return policy;
}

// Probes every RDMA library that the target maps and that is not probed yet.
void Tracer::look_at_libraries(Target& target) {
  auto maps = read_maps(target.pid);
  if (is_ending(target)) return;
  if (!maps.ok()) {
    state(maps.error().what);
    return;
  }
  struct Found {
    FileKey key;
    std::string path, mapped_as;
    LibraryKind kind;
  };
  std::vector<Found> found;
  std::set<std::pair<dev_t, uint64_t>> seen;
  const pid_t scope = scope_of(target);
  const std::vector<SysfsDevice> devices = rdma_devices();
  for (const Mapping& mapping : *maps) {
    if (!mapping.executable || mapping.inode == 0 || !seen.emplace(mapping.device, mapping.inode).second) continue;
    auto path = reachable_path(target.pid, mapping);
    if (!path.ok()) {
      if (is_named_as_verbs(mapping.path) && still_maps(target.pid, mapping) && !is_ending(target) &&
          state(fmt::format("{} ({})", path.error().what, path.error().hint)))
        ++counters_.libraries_unresolved;
      continue;
    }
    const LibraryKind kind = resolver_.classify(*path);
    // libibverbs maps every provider it has while it looks for the one that fits.
    if (kind == LibraryKind::other || (kind == LibraryKind::provider && !may_serve(mapping.path, devices))) continue;
    // Device and inode as stat() tells them: on overlayfs the maps name another device.
    struct stat status;
    if (stat(path->c_str(), &status) != 0) continue;
    found.push_back({{scope, status.st_dev, status.st_ino}, *path, mapping.path, kind});
  }
  std::string libibverbs;
  bool has_provider = false;
  for (const Found& file : found) {
    if (file.kind == LibraryKind::libibverbs) libibverbs = file.path;
    if (file.kind == LibraryKind::provider) has_provider = true;
  }
  // What it has was made under our eyes, if its memory is younger than the probes.
  const uint64_t born = born_ns(target.pid);
  const bool all_seen = std::all_of(found.begin(), found.end(), [&](const Found& file) {
    const auto probed = attached_.find(file.key);
    return probed != attached_.end() && probed->second < born;
  });
  if (!target.looked && observes() && !can_read(target.pid, *maps)) {
    target.readable = false;
    state(fmt::format("process {}: its memory cannot be read ({}): its queues are seen by probes only",
                                      target.pid, errno_text(errno)));
  }
  for (const Found& file : found) {
    if (!attach_file(policy_for(&target), file.path, libibverbs, file.key, file.mapped_as, &target)) return;
    if (file.kind == LibraryKind::gpu_library && !target.looked)
      find_older_gpu_queues(target, *maps, file.path, file.mapped_as);
    tell_uncovered(file.key);
  }
  // Providers come with the first ibv_get_device_list: probes on the installed ones are in place before.
  if (!has_provider) attach_installed(target.pid, fmt::format("/proc/{}/root", target.pid), policy_for(&target));
  target.waiting = libibverbs.empty();
  if (found.empty() && look_at_program(target)) return;
  // Only what was there at the first look can be older than the attach.
  if (std::exchange(target.looked, true) || !has_provider || all_seen) return;
  if (selector_) {
    search_due(target);
  } else {
    find_older_objects(target, libibverbs);
  }
}

// True when the program has libibverbs linked in: then its functions are not to be told by the file, and those are
// probed that its own queue pairs point to.
bool Tracer::look_at_program(Target& target) {
  const std::string path = fmt::format("/proc/{}/exe", target.pid);
  struct stat status;
  if (stat(path.c_str(), &status) != 0) return false;
  struct stat own;  // a command that `run` holds back: not yet what it will be
  if (stat("/proc/self/exe", &own) == 0 && own.st_dev == status.st_dev && own.st_ino == status.st_ino) return false;
  const auto [known, fresh] = linked_in_.try_emplace({status.st_dev, status.st_ino}, false);
  if (fresh) known->second = has_verbs_linked_in(path);
  if (!known->second) return false;
  target.waiting = false;
  if (std::exchange(target.looked, true)) return true;
  target.older = target.linked_in = true;
  target.command = command_of(target.pid);
  find_linked_in(target);
  if (!target.linked_in) return true;
  if (control_hook_) {
    say_(fmt::format("process {} ({}): libibverbs is linked into the program: waiting for its first queue pairs, to find its "
                     "functions by", target.pid, target.command));
  } else {
    tell_not_found(target);
    target.linked_in = false;
  }
  return true;
}

// The functions that its queue pairs point to. The kernel's hook tells when it has made some; without it there is
// one search, at the attach.
void Tracer::find_linked_in(Target& target) {
  const bool first = target.searches++ == 0;
  if (target.searches > kMaxSearches) return;
  target.since_ns = monotonic_now_ns();
  find_older_objects(target, "");
  if (!target.functions_found) return;
  target.linked_in = false;
  state(fmt::format("process {} ({}): libibverbs is linked into the program: what its queue pairs {} used is traced{}, functions "
                    "that only later ones use are not",
                    target.pid, target.command, first ? "at the attach" : "had first",
                    first ? "" : " from the moment on when these were found"));
  say_(statements_.back());
}

void Tracer::tell_not_found(const Target& target) {
  if (!target.linked_in) return;
  ++counters_.libraries_unresolved;
  state(fmt::format("process {} ({}): libibverbs is linked into the program: it had no queue pairs to find its functions by, so that "
                    "its operations are not traced", target.pid, target.command));
  say_(statements_.back());
}

// Probes the files that a process would map, in its own root, before it does: no race. `pid`: whose probes
// they are, where they are not shared.
void Tracer::attach_installed(pid_t pid, const std::string& root, const AttachPolicy& policy) {
  const InstalledLibraries installed = installed_libraries(root);
  const pid_t scope = shared_probes_ ? 0 : pid;
  const std::vector<SysfsDevice> devices = rdma_devices();
  std::vector<std::string> files;
  for (const std::string& provider : installed.providers)
    if (may_serve(provider, devices)) files.push_back(provider);
  if (!installed.libibverbs.empty()) files.push_back(installed.libibverbs);
  // Our own for GPUs, so that a command which preloads it is seen from its first queue on.
  std::error_code error;
  const auto own = std::filesystem::read_symlink("/proc/self/exe", error).parent_path().parent_path() / "lib" / SIGMA_GPU_LIBRARY;
  if (shared_probes_ && std::filesystem::exists(own, error)) files.push_back(own);
  const auto target = targets_.find(pid);
  for (const std::string& path : files) {
    struct stat status;
    if (stat(path.c_str(), &status) != 0) continue;
    attach_file(policy, path, installed.libibverbs, {scope, status.st_dev, status.st_ino},
                path.starts_with(root + "/") ? path.substr(root.size()) : path, target == targets_.end() ? nullptr : &target->second);
  }
}

// False when `target`, by whose files the path goes, is going: what fails then says nothing of the file, which the
// next process that maps it is asked for again.
bool Tracer::attach_file(const AttachPolicy& policy, const std::string& path, const std::string& libibverbs,
                         const FileKey& key, std::string mapped_as, const Target* target) {
  if (!attached_.emplace(key, UINT64_MAX).second) {
    if (target) add_probes_for_older(*target, key);
    return true;
  }
  auto plan = resolver_.plan(path, libibverbs, mapped_as);
  if (target && is_ending(*target)) {
    attached_.erase(key);
    return false;
  }
  if (!plan.ok()) {
    ++counters_.libraries_unresolved;
    state(fmt::format("{}: {}", path, plan.error().what));
    say_(fmt::format("{}: not covered: {}", path, plan.error().what));
    return true;
  }
  if (!attach_plan(policy, *plan, key.pid, std::move(mapped_as), target)) {
    attached_.erase(key);
    return false;
  }
  attached_[key] = monotonic_now_ns();
  // Of a whole machine's processes that would be a line for each container.
  const size_t probes = libraries_.back().report.attached.size();
  if (announced_ && target && !selector_ && probes > 0)
    say_(fmt::format("process {}: {} is probed from now on: {} probe{}", target->pid, libraries_.back().plan->name, probes,
                     probes == 1 ? "" : "s"));
  return true;
}

// False, and nothing is counted, when `target` is going and some were refused. Those that are in place stay: a next
// attach adds what is missing.
bool Tracer::attach_plan(const AttachPolicy& base, const std::shared_ptr<const LibraryPlan>& plan, pid_t scope,
                         std::string mapped_as, const Target* target) {
  const AttachPolicy policy = with_rings(base, *plan, target);
  AttachReport report = capture_->attach(*plan, scope, policy);
  if (!report.failed.empty() && target && is_ending(*target)) return false;
  for (const FailedProbe& probe : report.failed)
    state(fmt::format("{}: {} is not probed: {}", plan->name, to_string(probe.function), probe.reason));
  for (const FailedProbe& probe : report.without_return)
    state(fmt::format("{}: the return of {} is not seen: {}", plan->name, to_string(probe.function), probe.reason));
  counters_.functions_unresolved += plan->unresolved.size();
  counters_.probes_failed += report.failed.size();
  counters_.return_probes_refused += report.without_return.size();
  struct stat status = {};
  stat(plan->path.c_str(), &status);
  libraries_.push_back({scope, std::move(mapped_as), plan, std::move(report), policy, status.st_dev, status.st_ino});
  if (shared_probes_) libraries_.back().file = Fd(::open(plan->path.c_str(), O_PATH | O_CLOEXEC));
  return true;
}

// Probes that serve several processes were chosen for one whose rings are all known.
void Tracer::add_probes_for_older(const Target& target, const FileKey& key) {
  for (TracedLibrary& library : libraries_) {
    if (library.pid != key.pid || library.device != key.device || library.inode != key.inode) continue;
    AttachPolicy policy = with_rings(policy_for(&target), *library.plan, &target);
    if (policy.completions <= library.policy.completions && policy.posts <= library.policy.posts) return;
    if (policy.posts == library.policy.posts) {
      policy.polls_alone = true;
    } else {  // what is there stays; what it told, the session has by its index
      policy.completions &= !library.policy.completions;
    }
    library.policy.posts |= policy.posts;
    library.policy.completions |= policy.completions;
    const AttachReport report = capture_->attach(*library.plan, key.pid, policy);
    counters_.probes_failed += report.failed.size();
    library.report.attached.insert(library.report.attached.end(), report.attached.begin(), report.attached.end());
    return;
  }
}

// Of a file that a target uses: which functions are not covered, and why. Once a plan.
void Tracer::tell_uncovered(const FileKey& file) {
  for (const TracedLibrary& library : libraries_) {
    if (FileKey{library.pid, library.device, library.inode} != file || !told_.insert(library.plan.get()).second) continue;
    std::map<std::string, std::string> functions;  // by the reason
    for (const UnresolvedFunction& each : library.plan->unresolved) {
      std::string& list = functions[each.reason];
      list += fmt::format("{}{}", list.empty() ? "" : ", ", to_string(each.function));
    }
    for (const auto& [reason, list] : functions) {
      std::string fact = fmt::format("{}: not covered: {}: {}", library.plan->name, list, reason);
      say_(fact);
      state(std::move(fact));
    }
  }
}

bool Tracer::is_probed(const FileKey& file, const ResolvedFunction& function) const {
  for (const TracedLibrary& library : libraries_) {
    if (FileKey{library.pid, library.device, library.inode} != file) continue;
    for (const ResolvedFunction& known : library.plan->functions)
      if (known.function == function.function && known.file_offset == function.file_offset) return true;
  }
  return false;
}

}  // namespace sigma
