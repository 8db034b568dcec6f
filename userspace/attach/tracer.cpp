// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// The order of things at the start of a trace matters:
//   1. process events and the control plane, so that no object made from now on is missed;
//   2. the data path's probes, library by library;
//   3. only then the search for older objects: what is made in between is seen by both, and the
//      session knows an object that a command announced from one that was merely found.
#include "attach/tracer.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <utility>

#include "attach/calibrate.h"
#include "attach/gpu_registry.h"
#include "attach/installed_libraries.h"
#include "attach/probe_table.h"
#include "attach/provider_choice.h"
#include "attach/rdma_netlink.h"
#include "attach/rdma_sysfs.h"
#include "base/clock.h"
#include "resolve/classify.h"
#include "session/wqe_blocks.h"

namespace sigma {
namespace {

constexpr size_t kManyTargets = 4;
constexpr uint64_t kCareEveryNs = 50'000'000;  // targets' ends, budgets
// Devices' clocks are read often at first, when nothing is known of their rates.
constexpr uint64_t kFirstClockIntervalNs = 2'000'000;
constexpr uint64_t kClockIntervalNs = 250'000'000;
constexpr uint64_t kSearchEveryNs = 1'000'000'000;  // for processes, where nothing tells of them
constexpr size_t kMaxStatements = 500;
constexpr std::chrono::milliseconds kBusyInterval{1};
constexpr std::chrono::milliseconds kIdleInterval{10};

std::string command_of(pid_t pid) {
  std::ifstream in(fmt::format("/proc/{}/comm", pid));
  std::string comm;
  std::getline(in, comm);
  return comm;
}

// "Seccomp: 2" in /proc/PID/status: a filter is installed.
bool is_seccomp_filtered(pid_t pid) {
  std::ifstream in(fmt::format("/proc/{}/status", pid));
  for (std::string line; std::getline(in, line);)
    if (line.starts_with("Seccomp:")) return line.find('2') != std::string::npos;
  return false;
}

// Of a file that cannot be opened there is its name only.
bool is_named_as_verbs(std::string_view path) {
  const std::string_view name = path.substr(path.rfind('/') + 1);
  return name.find("ibverbs") != name.npos || name.find("-rdmav") != name.npos || name.starts_with("libmlx5") ||
         name.starts_with("libmlx4") || name.starts_with("libefa");
}

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

}  // namespace

Tracer::Tracer(const TracerOptions& options, const Features& features, OnRecord on_record, Say say)
    : options_(options),
      features_(features),
      on_record_(std::move(on_record)),
      say_(std::move(say)),
      shared_probes_(options.follow_forks || options.selection || (options.pids.size() > kManyTargets && !features.uprobe_multi)),
      reorder_([this](std::span<const std::byte> record) { on_record_(record); }) {}

Tracer::~Tracer() = default;

Result<std::unique_ptr<Tracer>> Tracer::start(const TracerOptions& options, const Features& features,
                                              OnRecord on_record, Say say) {
  std::unique_ptr<Tracer> tracer(new Tracer(options, features, std::move(on_record), std::move(say)));
  SIGMA_CHECK(tracer->open());
  return tracer;
}

Status Tracer::open() {
  // Links are descriptors: some 30 a process where the kernel has no multi links.
  rlimit files;
  if (getrlimit(RLIMIT_NOFILE, &files) == 0) {
    files.rlim_cur = files.rlim_max;
    setrlimit(RLIMIT_NOFILE, &files);
  }
  CaptureOptions capture_options;
  capture_options.ring_bytes = options_.ring_bytes;
  capture_options.config.follow_forks = options_.follow_forks;
  capture_options.config.check_posts = options_.check_posts;
  if (options_.selection) {
    SIGMA_ASSIGN(selector_, ProcessSelector::open(*options_.selection));
    capture_options.config.selects = 1;
    capture_options.config.selection = selector_->for_bpf();
    capture_options.cgroup_fd = selector_->cgroup_fd();
  }
  SIGMA_ASSIGN(capture_, Capture::load(capture_options, features_));
  SIGMA_ASSIGN(ring_, RingReader::open(capture_->ring_map_fd(),
                                       [this](std::span<const std::byte> record) { on_ring_record(record); }));

  start_observer();
  if (options_.budget > 0) {
    if (auto cost = calibrate(features_); cost.ok()) ns_per_hit_ = options_.check_posts ? cost->checked_ns : cost->post_ns;
  }

  process_events_ = capture_->attach_process_events().ok();
  if (!process_events_) state("process events are not available: forks and exec are noticed late or not at all");
  if (auto hook = capture_->attach_control(); hook.ok()) control_hook_ = *hook;
  if (auto watch = LibraryWatch::open({}); watch.ok())
    watch_.emplace(*std::move(watch));
  else
    state("libraries mapped later are found by polling: " + watch.error().what);

  if (options_.completions != TracerOptions::Completions::off) clocks_ = NicClockSource::open_all(statements_);
  for (const sigma_clock_sample& sample : read_clocks(monotonic_now_ns()))
    push(std::as_bytes(std::span(&sample, 1)));
  for (const pid_t pid : options_.pids) SIGMA_CHECK(add_process(pid));
  if (selector_) SIGMA_CHECK(open_selection());
  announce();
  return {};
}

Status Tracer::add_process(pid_t pid) {
  Target target;
  target.pid = pid;
  target.pidfd.reset(static_cast<int>(syscall(SYS_pidfd_open, pid, 0)));
  if (!target.pidfd)
    return errno == ESRCH ? Error{fmt::format("there is no process {}", pid), "`ps -e` shows what runs"}
                          : Error{fmt::format("cannot follow process {}: {}", pid, errno_text(errno))};
  target.since_ns = monotonic_now_ns();
  target.seccomp = is_seccomp_filtered(pid);
  target.governor = Governor({.budget = options_.budget, .ns_per_hit = ns_per_hit_});
  SIGMA_CHECK(capture_->add_target(pid));
  Target& stored = targets_.insert_or_assign(pid, std::move(target)).first->second;
  look_at_libraries(stored);
  return {};
}

// Probes limited to a process cost the others nothing; shared ones serve children to come, and are few
// where every probe is a link, a descriptor and 50 ms at its end.
pid_t Tracer::scope_of(const Target& target) const { return shared_probes_ ? 0 : target.pid; }

bool Tracer::reads_completions() const {
  using Completions = TracerOptions::Completions;
  return options_.completions == Completions::ring || options_.completions == Completions::automatic;
}

// Where nobody asks for what stands in memory, nobody reads it.
void Tracer::start_observer() {
  using Posts = TracerOptions::Posts;
  if (options_.posts != Posts::ring && !reads_completions()) return;
  ObserverOptions options;
  options.policy.read_posts = options_.posts != Posts::probe;
  options.policy.probes_tell = options_.posts != Posts::ring;
  options.policy.read_completions = reads_completions();
  options.cpu_share = options_.observer_cpu;
  options.lane = static_cast<uint32_t>(std::max(1L, sysconf(_SC_NPROCESSORS_CONF)));
  options.slots = capture_->ring_slots();
  if (options.slots == nullptr) {
    state("mlx5 queues are not read from memory: the map that BPF shares cannot be mapped");
    return;
  }
  // Under the kernel's hook commands name a file, which an older queue's context does not tell.
  options.on_slot = [this](uint32_t pid, uint64_t context, uint32_t handle, uint32_t slot) {
    return !control_hook_ && capture_->set_ring_slot(static_cast<pid_t>(pid), context, handle, slot).ok();
  };
  options.device_of_node = device_of_node;
  options.on_doorbell = [this](uint32_t pid, uint64_t qp_ptr, uint32_t qp_num, uint64_t doorbell_addr) {
    (void)capture_->set_doorbell(static_cast<pid_t>(pid), qp_ptr, qp_num, doorbell_addr);
  };
  observer_ = std::make_unique<Observer>(options);
}

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
  if (reads_completions()) policy.completions = false;
  return policy;
}

// Probes every RDMA library that the target maps and that is not probed yet.
void Tracer::look_at_libraries(Target& target) {
  auto maps = read_maps(target.pid);
  if (has_exited(target)) return;
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
      if (is_named_as_verbs(mapping.path) && !has_exited(target) &&
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
    scans_.push_back(target.pid);
    target.scan_due = true;
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
  const size_t before = libraries_.size();
  target.older = true;
  find_older_objects(target, "");
  const bool probed = libraries_.size() > before;
  if (!probed) ++counters_.libraries_unresolved;
  state(fmt::format("process {} ({}): libibverbs is linked into the program: {}", target.pid, command_of(target.pid),
                    probed ? "what its queue pairs at the attach used is traced, functions that only later ones use are not"
                           : "it had no queue pairs to find its functions by, so that its operations are not traced"));
  say_(statements_.back());
  return true;
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

// False when `target`, by whose files the path goes, is gone.
bool Tracer::attach_file(const AttachPolicy& policy, const std::string& path, const std::string& libibverbs,
                         const FileKey& key, std::string mapped_as, const Target* target) {
  if (!attached_.emplace(key, UINT64_MAX).second) {
    if (target) add_probes_for_older(*target, key);
    return true;
  }
  auto plan = resolver_.plan(path, libibverbs, mapped_as);
  if (target && has_exited(*target)) {  // what fails now fails because the process is gone, and says nothing of the file
    attached_.erase(key);
    return false;
  }
  if (!plan.ok()) {
    ++counters_.libraries_unresolved;
    state(fmt::format("{}: {}", path, plan.error().what));
    say_(fmt::format("{}: not covered: {}", path, plan.error().what));
    return true;
  }
  attach_plan(policy, *plan, key.pid, std::move(mapped_as), target);
  attached_[key] = monotonic_now_ns();
  return true;
}

void Tracer::attach_plan(const AttachPolicy& base, const std::shared_ptr<const LibraryPlan>& plan, pid_t scope,
                         std::string mapped_as, const Target* target) {
  const AttachPolicy policy = with_rings(base, *plan, target);
  AttachReport report = capture_->attach(*plan, scope, policy);
  if (!report.failed.empty() && target && has_exited(*target)) return;
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
}

// Queues that GPUs post to and that were set up before: to whom they lead. What they carry, the library
// itself begins to tell.
void Tracer::find_older_gpu_queues(const Target& target, const std::vector<Mapping>& maps, const std::string& path,
                                   const std::string& mapped_as) {
  const auto plan = resolver_.plan(path, "", mapped_as);
  if (!plan.ok() || (*plan)->registry_offset == 0) return;
  const uint64_t address = address_in_process(maps, mapped_as, (*plan)->registry_offset);
  const auto memory = RemoteMemory::open(target.pid);
  if (address == 0 || !memory.ok()) return;
  const auto queues = read_gpu_registry(*memory, address);
  if (!queues.ok()) {
    if (!has_exited(target)) state(fmt::format("process {}: {}", target.pid, queues.error().what));
    return;
  }
  for (sigma_qp_peer& peer : to_peer_records(*queues, target.since_ns)) {
    peer.h.pid = peer.h.tid = static_cast<uint32_t>(target.pid);
    push(std::as_bytes(std::span(&peer, 1)));
  }
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

// Objects made before the attach: what the heap holds, and the peers that the kernel knows. Their records
// are stamped with the time of the attach, so that they come before the first post: nothing has been
// passed on yet while a trace starts.
void Tracer::find_older_objects(Target& target, const std::string& libibverbs) {
  auto objects = find_live_objects(target.pid, {});
  // The search took time: make room in the ring, without passing anything on.
  (void)ring_->drain();
  if (has_exited(target)) return;
  if (!objects.ok()) {
    state(fmt::format("process {}: objects made before the attach are unknown: {}", target.pid,
                                      objects.error().what));
    return probe_older(target);
  }
  if (!objects->totals.complete)
    state(fmt::format("process {}: only a part of its memory was searched for older objects", target.pid));
  for (const LiveContext& context : objects->contexts)
    if (context.inherited)
      counters_.qps_inherited += static_cast<uint64_t>(
          std::count_if(objects->qps.begin(), objects->qps.end(),
                        [&](const LiveQp& qp) { return qp.context == context.address; }));
  if (objects->ambiguous > 0)
    state(fmt::format("process {}: {} older objects could not be told from freed ones and are left out",
                                      target.pid, objects->ambiguous));
  attach_live_functions(target, *objects, libibverbs);
  for (const auto& record : to_records(*objects, target.since_ns)) push(record);
  // Where no command of the library is hooked nothing would tell a ring's end, and posts at probes have no
  // index by which both are known to be one: probes alone tell then.
  if (observer_ && !libibverbs.empty()) find_older_rings(target, *objects);
  if (!objects->qps.empty()) find_peers(target);
}

// Their rings, as far as they can be told now. Where some cannot, probes tell of all.
void Tracer::find_older_rings(Target& target, const LiveObjects& objects) {
  const OlderQueues older = observer_->add_older(objects, monotonic_now_ns());
  (void)ring_->drain();
  if (older.unplaced > 0 || older.cqs_unplaced > 0) probe_older(target);
}

void Tracer::probe_older(Target& target) {
  target.older = true;
  for (const TracedLibrary& library : libraries_)
    if (library.pid == scope_of(target)) add_probes_for_older(target, {library.pid, library.device, library.inode});
}

// The live route: functions that the process's own contexts and queue pairs point to, and that the file
// alone did not tell.
void Tracer::attach_live_functions(Target& target, const LiveObjects& objects, const std::string& libibverbs) {
  std::map<std::string, std::pair<std::string, std::vector<LivePointer>>> files;
  for (const LiveFunction& function : objects.functions) {
    auto path = reachable_path(target.pid, function.mapping);
    if (!path.ok() || resolver_.classify(*path) == LibraryKind::libibverbs) continue;
    auto& [mapped_as, pointers] = files[*path];
    mapped_as = function.mapping.path;
    pointers.push_back({function.function, function.file_offset});
  }
  const pid_t scope = scope_of(target);
  for (const auto& [path, file] : files) {
    auto plan = resolver_.plan_from_live(path, libibverbs, file.second, file.first);
    if (!plan.ok()) continue;
    struct stat status;
    if (stat(path.c_str(), &status) != 0) continue;
    const FileKey key{scope, status.st_dev, status.st_ino};
    auto missing = std::make_shared<LibraryPlan>(**plan);
    std::erase_if(missing->functions, [&](const ResolvedFunction& function) { return is_probed(key, function); });
    missing->unresolved.clear();
    if (!missing->functions.empty()) attach_plan(policy_for(&target), missing, scope, file.first, &target);
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

void Tracer::find_peers(const Target& target) {
  auto resources = read_rdma_resources({});
  if (!resources.ok()) {
    state("peers of queue pairs made before the attach are unknown: " + resources.error().what);
    return;
  }
  if (const size_t kernel = resources->kernel_qps(); kernel > 0 && kernel_qps_ != kernel) {
    kernel_qps_ = kernel;
    state(fmt::format("{} queue pairs of kernel users (NVMe-oF, Lustre, ...) are not traced", kernel));
  }
  const auto wanted = static_cast<uint32_t>(target.pid);
  for (const sigma_qp_peer& peer : peer_records(*resources, std::span(&wanted, 1), target.since_ns))
    push(std::as_bytes(std::span(&peer, 1)));
}

// Our own records take the same way as those of the ring.
void Tracer::push(std::span<const std::byte> record) { reorder_.push(record); }

void Tracer::on_ring_record(std::span<const std::byte> record) {
  const auto* header = reinterpret_cast<const sigma_header*>(record.data());
  last_record_ns_ = header->time_ns;
  if (header->type == SIGMA_RING_DRAIN) {
    if (observer_) observer_->on_drain(record);
    return;
  }
  if (header->type == SIGMA_PROCESS && record.size() >= sizeof(sigma_process))
    on_process(*reinterpret_cast<const sigma_process*>(record.data()));
  if (observer_ && header->type == SIGMA_UVERBS) observer_->on_uverbs(record);
  if (observer_ && header->type == SIGMA_POST && record.size() >= sizeof(sigma_post)) {
    const auto& post = *reinterpret_cast<const sigma_post*>(record.data());
    observer_->on_post(post, mlx5_wqe_blocks(post).value_or(uint16_t{0}));
  }
  if (header->type == SIGMA_RING && record.size() >= sizeof(sigma_ring)) {
    sigma_ring ring;
    std::memcpy(&ring, record.data(), sizeof ring);
    if (ring.tier == 1) return on_host_ring(ring);
  }
  push(record);
}

// A queue in host memory is read from outside, if it is: the library only says that a GPU posts to it.
void Tracer::on_host_ring(sigma_ring& ring) {
  if (observer_ && observer_->on_gpu_ring(ring)) return;
  ring.mode = SIGMA_RING_SETUP;
  ring.tier = 0;
  constexpr std::string_view kReason = "not read from outside";
  static_assert(kReason.size() < sizeof ring.reason);
  kReason.copy(ring.reason, sizeof ring.reason - 1);
  push(std::as_bytes(std::span(&ring, 1)));
}

void Tracer::on_process(const sigma_process& record) {
  const auto pid = static_cast<pid_t>(record.h.pid);
  if (record.kind == SIGMA_PROCESS_EXEC) {
    rescan_.insert(pid);
    born_ns_[pid] = record.h.time_ns;
    if (auto it = targets_.find(pid); it != targets_.end()) it->second.looked = false;  // another program
  } else if (record.kind == SIGMA_PROCESS_FOUND) {
    rescan_.insert(pid);
  } else if (record.kind == SIGMA_PROCESS_FORK && options_.follow_forks) {
    const auto child = static_cast<pid_t>(record.child_pid);
    rescan_.insert(child);
    // A child has copies of what its parent made.
    const auto parent = targets_.find(pid);
    if (parent != targets_.end() && parent->second.waiting) born_ns_[child] = record.h.time_ns;
  } else if (record.kind == SIGMA_PROCESS_EXIT || record.kind == SIGMA_PROCESS_LEFT) {
    if (auto it = targets_.find(pid); it != targets_.end()) it->second.ended = true;
    born_ns_.erase(pid);
    if (observer_) observer_->on_process_end(record.h.pid, record.h.time_ns);
  }
}

Status Tracer::poll() {
  if (stopped_) return {};
  if (options_.drain_delay.count() > 0) {
    const timespec delay{options_.drain_delay.count() / 1000, (options_.drain_delay.count() % 1000) * 1'000'000};
    nanosleep(&delay, nullptr);
  }
  // Read before the drain and pushed after it: then few records that are newer, or none, come later.
  const auto clock_samples = read_clocks(monotonic_now_ns());
  const uint64_t now_ns = monotonic_now_ns();  // before the drain: see Reorder::release
  SIGMA_ASSIGN(last_drained_, ring_->drain());
  for (const sigma_clock_sample& sample : clock_samples) push(std::as_bytes(std::span(&sample, 1)));
  if (watch_) {
    watch_->read([this](const LibraryEvent& event) {
      if (targets_.contains(event.pid))
        rescan_.insert(event.pid);
      else if (selector_)
        on_library_of_stranger(event);
    });
    // After a loss nobody knows which process mapped what.
    if (watch_->lost() != watch_losses_) {
      watch_losses_ = watch_->lost();
      for (const auto& [pid, target] : targets_) rescan_.insert(pid);
      if (selector_) find_selected();
    }
  } else if (selector_ && now_ns - last_search_ns_ > kSearchEveryNs) {
    last_search_ns_ = now_ns;
    find_selected();
  }
  for (const pid_t pid : std::exchange(rescan_, {})) {
    auto it = targets_.find(pid);
    if (it != targets_.end() && !it->second.ended)
      look_at_libraries(it->second);
    else if (it == targets_.end() && (options_.follow_forks || selector_))
      (void)add_process(pid);  // it may have ended already
  }
  scan_next();
  if (now_ns - last_care_ns_ > kCareEveryNs) {
    last_care_ns_ = now_ns;
    notice_ends();
    for (auto& [pid, target] : targets_) {
      if (target.ended) continue;
      govern(target, now_ns);
      if (!watch_ && target.waiting) rescan_.insert(pid);
    }
  }
  // What is still in the ring buffer comes before what the rings told since.
  const bool whole = last_drained_ < RingReader::kMaxRecords;
  if (observer_) observer_->take([this](std::span<const std::byte> record) { push(record); }, whole ? now_ns : 0);
  reorder_.release(whole ? now_ns : std::min(now_ns, last_record_ns_));
  return {};
}

// Session fits them (session/nic_clock.h): live and replay see the same readings.
std::vector<sigma_clock_sample> Tracer::read_clocks(uint64_t now_ns) {
  std::vector<sigma_clock_sample> samples;
  if (clocks_.empty() || now_ns < clocks_due_ns_) return samples;
  clock_interval_ns_ = std::clamp(2 * clock_interval_ns_, kFirstClockIntervalNs, kClockIntervalNs);
  clocks_due_ns_ = now_ns + clock_interval_ns_;
  std::erase_if(clocks_, [&](const auto& clock) {
    const auto sample = clock->sample();
    if (sample)
      samples.push_back(*sample);
    else
      state(fmt::format("the clock of {} can no longer be read", clock->device()));
    return !sample;
  });
  return samples;
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
      options_.completions == TracerOptions::Completions::probe)
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

// What has ended is forgotten: a trace of a whole machine sees processes without end.
void Tracer::notice_ends() {
  for (auto it = targets_.begin(); it != targets_.end();) {
    const pid_t pid = it->first;
    Target& target = it->second;
    if (!target.ended && !has_exited(target)) {
      ++it;
      continue;
    }
    if (!target.ended && !process_events_) {
      sigma_process exit{};
      exit.h = {monotonic_now_ns(), SIGMA_PROCESS, sizeof exit, 0, static_cast<__u32>(pid), 0};
      exit.kind = SIGMA_PROCESS_EXIT;
      push(std::as_bytes(std::span(&exit, 1)));
    }
    if (!shared_probes_) {
      capture_->detach(pid);
      counters_.governor_pauses += target.governor.pauses();
      paused_ns_ += target.governor.paused_ns(monotonic_now_ns());
    } else if (target.governor.paused() && --paused_targets_ == 0) {
      switch_shared_data_path(true, monotonic_now_ns());
    }
    if (!process_events_) (void)capture_->remove_target(pid);
    born_ns_.erase(pid);
    it = targets_.erase(it);
  }
}

// A fact about the coverage; each once, and not without end. True when it was new.
bool Tracer::state(std::string fact) {
  if (statements_.size() >= kMaxStatements || std::find(statements_.begin(), statements_.end(), fact) != statements_.end())
    return false;
  statements_.push_back(std::move(fact));
  if (statements_.size() == kMaxStatements) statements_.push_back("more of this kind is left out");
  return true;
}

std::chrono::nanoseconds Tracer::interval() const { return last_drained_ > 0 ? kBusyInterval : kIdleInterval; }

bool Tracer::ended() const { return targets_.empty() && !selector_; }

void Tracer::stop() {
  if (stopped_) return;
  capture_->detach();
  // To the end: nothing adds to it any more.
  for (auto drained = ring_->drain(); !drained.ok() || *drained > 0; drained = ring_->drain())
    if (!drained.ok()) {
      state(drained.error().what);
      break;
    }
  if (observer_) observer_->stop([this](std::span<const std::byte> record) { push(record); });
  reorder_.flush();
  stopped_ = true;
}

void Tracer::announce() {
  size_t probes = 0;
  for (const TracedLibrary& library : libraries_) probes += library.report.attached.size();
  for (const auto& [pid, target] : targets_) {
    if (selector_) break;
    if (target.waiting)
      say_(fmt::format("process {} ({}) has not loaded libibverbs yet: waiting for it", pid, command_of(pid)));
    if (target.seccomp && !features_.return_probe_under_seccomp)
      say_(fmt::format("process {} runs under seccomp, where this kernel's return probes would kill it: without "
                       "completions by probe and without the check of refused posts",
                       pid));
  }
  if (shared_probes_ && !features_.return_probe_under_seccomp) {
    state("this kernel's return probes kill processes under seccomp, and the probes are in all processes that use "
          "these libraries: without completions by probe and without the check of refused posts");
    say_(statements_.back());
  }
  const std::string control = control_hook_ ? fmt::format("control plane by {}", to_string(*control_hook_))
                                            : std::string("control plane by libibverbs");
  const std::string others = options_.selection ? fmt::format(" of {}, and those to come", options_.selection->text()) : "";
  say_(fmt::format("attached: {} process{}{}, {} probes in {} file{}, {}", targets_.size(),
                   targets_.size() == 1 ? "" : "es", others, probes, libraries_.size(),
                   libraries_.size() == 1 ? "" : "s", control));
}

void Tracer::add_to(Counters& counters) const {
  const auto bpf = capture_->counters();
  counters.records_attempted += bpf[SIGMA_COUNT_ATTEMPTS];
  counters.records_dropped += bpf[SIGMA_COUNT_DROPPED];
  counters.probe_hits += bpf[SIGMA_COUNT_HITS];
  counters.probe_hits_filtered += bpf[SIGMA_COUNT_FILTERED];
  counters.reads_unreadable += bpf[SIGMA_COUNT_UNREADABLE];
  counters.calls_without_entry += bpf[SIGMA_COUNT_NO_ENTRY];
  counters.calls_not_tracked += bpf[SIGMA_COUNT_ENTRY_FULL];
  counters.work_requests_omitted += bpf[SIGMA_COUNT_WR_OMITTED];
  counters.completions_omitted += bpf[SIGMA_COUNT_WC_OMITTED];
  counters.gpu_batches_refused += bpf[SIGMA_COUNT_GPU_REFUSED];
  counters.gpu_records_over_rate += bpf[SIGMA_COUNT_GPU_OVER_RATE];
  counters.program_runs_missed += capture_->missed_runs();
  if (observer_) observer_->add_to(counters);
  counters.records_consumed += ring_->consumed();
  counters.records_malformed += ring_->malformed();
  counters.records_late += reorder_.late();
  counters.libraries_unresolved += counters_.libraries_unresolved;
  counters.functions_unresolved += counters_.functions_unresolved;
  counters.probes_failed += counters_.probes_failed;
  counters.return_probes_refused += counters_.return_probes_refused;
  counters.qps_inherited += counters_.qps_inherited;
  const uint64_t now_ns = monotonic_now_ns();
  counters.governor_pauses += counters_.governor_pauses;
  uint64_t paused_ns = paused_ns_;
  if (shared_probes_) {
    if (paused_targets_ > 0) paused_ns += now_ns - paused_since_ns_;
  } else {
    for (const auto& [pid, target] : targets_) {
      counters.governor_pauses += target.governor.pauses();
      paused_ns += target.governor.paused_ns(now_ns);
    }
  }
  counters.paused_ms += paused_ns / 1'000'000;
}

std::vector<std::string> Tracer::statements() const {
  std::vector<std::string> all = statements_;
  if (observer_)
    for (std::string& line : observer_->statements()) all.push_back(std::move(line));
  return all;
}

}  // namespace sigma
