// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// The order of things at the start of a trace matters:
//   1. process events and the control plane, so that no object made from now on is missed;
//   2. the data path's probes, library by library;
//   3. only then the search for older objects: what is made in between is seen by both, and the
//      session knows an object that a command announced from one that was merely found.
#include "attach/tracer.h"

#include <fmt/format.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "attach/calibrate.h"
#include "attach/rdma_sysfs.h"
#include "base/clock.h"
#include "session/wqe_blocks.h"

namespace sigma {
namespace {

constexpr size_t kManyTargets = 4;
constexpr int kHookTries = 20;  // 50 ms apart
constexpr uint64_t kCareEveryNs = 50'000'000;  // targets' ends, budgets
// Devices' clocks are read often at first, when nothing is known of their rates.
constexpr uint64_t kFirstClockIntervalNs = 2'000'000;
constexpr uint64_t kClockIntervalNs = 250'000'000;
constexpr uint64_t kSearchEveryNs = 1'000'000'000;  // for processes, where nothing tells of them
constexpr size_t kMaxStatements = 500;
constexpr std::chrono::milliseconds kBusyInterval{1};
constexpr std::chrono::milliseconds kIdleInterval{10};

// Another number for each time that it is loaded; 0: it is not there.
uint64_t uverbs_module() {
  struct stat status;
  return stat("/sys/module/ib_uverbs", &status) == 0 ? status.st_ino : 0;
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
                                       [this](std::span<const std::byte> record) {
                                         if (!spare_->empty()) tell_spare_events(ring_->position());
                                         on_ring_record(record);
                                       }));
  SIGMA_ASSIGN(spare_, SpareEvents::open(capture_->spare_events_map_fd()));

  if (options_.budget > 0) {
    if (auto cost = calibrate(features_); cost.ok()) ns_per_hit_ = options_.check_posts ? cost->checked_ns : cost->post_ns;
  }

  process_events_ = capture_->attach_process_events().ok();
  if (!process_events_) state("process events are not available: forks and exec are noticed late or not at all");
  uverbs_module_ = uverbs_module();
  if (auto hook = capture_->attach_control(); hook.ok())
    control_hook_ = *hook;
  else if (control_hook_of(features_))
    state("the kernel's hook on uverbs commands failed, set-up is told by libibverbs: " + hook.error().what);
  look_at_kernel_users();
  start_observer();
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

bool Tracer::reads_completions() const {
  using Completions = TracerOptions::Completions;
  return options_.completions == Completions::ring || options_.completions == Completions::automatic ||
         options_.completions == Completions::both;
}

// Where nobody asks for what stands in memory, nobody reads it.
void Tracer::start_observer() {
  using Posts = TracerOptions::Posts;
  if (options_.posts != Posts::ring && !reads_completions()) return;
  ObserverOptions options;
  options.policy.read_posts = options_.posts != Posts::probe;
  options.policy.probes_tell = options_.posts != Posts::ring;
  options.policy.read_completions = reads_completions();
  options.policy.polls_probed = options_.completions == TracerOptions::Completions::both;
  options.cpu_share = options_.observer_cpu;
  options.lane = static_cast<uint32_t>(std::max(1L, sysconf(_SC_NPROCESSORS_CONF)));
  options.cpu_sysfs = sysfs_root_of_cpus();
  options.slots = capture_->ring_slots();
  if (options.slots == nullptr) {
    state("mlx5 queues are not read from memory: the map that BPF shares cannot be mapped");
    return;
  }
  // Under the kernel's hook commands name a file, which an older queue's context does not tell.
  if (control_hook_) options.files_of = [this](uint32_t pid) { return capture_->open_files(static_cast<pid_t>(pid)); };
  options.on_slot = [this](uint32_t pid, uint64_t name, uint32_t handle, uint32_t slot) {
    return capture_->set_ring_slot(static_cast<pid_t>(pid), name, handle, slot).ok();
  };
  options.told_by_library = [this](uint32_t pid) { return told_by_library(static_cast<pid_t>(pid)); };
  options.on_doorbell = [this](uint32_t pid, uint64_t qp_ptr, uint32_t qp_num, uint64_t doorbell_addr) {
    (void)capture_->set_doorbell(static_cast<pid_t>(pid), qp_ptr, qp_num, doorbell_addr);
  };
  if (options.policy.polls_probed)
    state("polls of mlx5 are probed beside the completions in memory, to tell when each was picked up: every poll takes a "
          "trap, also one that finds nothing");
  observer_ = std::make_unique<Observer>(options);
}

// Our own records take the same way as those of the ring.
void Tracer::push(std::span<const std::byte> record) { reorder_.push(record); }
Observer::Deliver Tracer::push_run() {
  return [this](RecordBuffer::Run& run) { reorder_.push_run(run.bytes, run.last_ns); };
}

// What is before this position in the ring has been told.
void Tracer::tell_spare_events(uint64_t position) {
  while (const auto event = spare_->take(position)) on_ring_record(std::as_bytes(std::span(&*event, 1)));
}

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
  // What a program without libraries has set up now tells which functions it will use.
  if (header->type == SIGMA_UVERBS)
    if (const auto it = targets_.find(static_cast<pid_t>(header->pid)); it != targets_.end() && it->second.linked_in)
      search_due(it->second);
  if (observer_ && header->type == SIGMA_POST && record.size() >= sizeof(sigma_post)) {
    const auto& post = *reinterpret_cast<const sigma_post*>(record.data());
    observer_->on_post(post, mlx5_wqe_blocks(post).value_or(uint16_t{0}));
  }
  if (header->type == SIGMA_RING && record.size() >= sizeof(sigma_ring)) {
    sigma_ring ring;
    std::memcpy(&ring, record.data(), sizeof ring);
    if (ring.tier == 1) return on_host_ring(ring);
    if (observer_ && ring.event == SIGMA_RING_BEGIN) observer_->on_ring_inside(ring);
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

Status Tracer::poll() {
  if (stopped_) return {};
  if (options_.drain_delay.count() > 0) {
    const timespec delay{options_.drain_delay.count() / 1000, (options_.drain_delay.count() % 1000) * 1'000'000};
    nanosleep(&delay, nullptr);
  }
  // Read before the drain and pushed after it: then few records that are newer, or none, come later.
  const auto clock_samples = read_clocks(monotonic_now_ns());
  const uint64_t now_ns = monotonic_now_ns();  // before the drain: see Reorder::release
  SIGMA_CHECK(spare_->read());
  SIGMA_ASSIGN(last_drained_, ring_->drain());
  tell_spare_events(ring_->position());
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
    if (it != targets_.end() && it->second.ended) {  // this one has its number
      forget(it);
      it = targets_.end();
    }
    if (it != targets_.end())
      look_at_libraries(it->second);
    else if (options_.follow_forks || selector_)
      (void)add_process(pid);  // it may have ended already
  }
  search_next(now_ns);
  if (now_ns - last_care_ns_ > kCareEveryNs) {
    last_care_ns_ = now_ns;
    notice_ends();
    look_after_hook();
    if (observer_) observer_->place(now_ns);
    for (auto& [pid, target] : targets_) {
      if (target.ended) continue;
      govern(target, now_ns);
      if (!watch_ && target.waiting) rescan_.insert(pid);
    }
  }
  // What is still in the ring buffer comes before what the rings told since.
  const bool whole = last_drained_ < RingReader::kMaxRecords;
  if (observer_) observer_->take(push_run(), whole ? now_ns : 0);
  const uint64_t drained_ns = whole ? now_ns : std::min(now_ns, last_record_ns_);
  reorder_.release(drained_ns);
  told_until_ns_ = drained_ns - std::min(drained_ns, kReorderWindowNs);
  return {};
}

// A kprobe keeps no module: unloaded, it takes the probes in it along, and they do not come back with it.
void Tracer::look_after_hook() {
  const uint64_t module = control_hook_ ? uverbs_module() : 0;
  if (!control_hook_ || module == uverbs_module_) return;
  std::string fact = "ib_uverbs was unloaded: what is set up until its hook is set again is unknown";
  if (module != 0) {
    const auto hook = capture_->renew_control();
    if (!hook.ok() && ++hook_tries_ < kHookTries) return;  // it is being loaded
    hook_tries_ = 0;
    fact = hook.ok() ? "ib_uverbs was loaded anew and is hooked again: what was set up in the moment before is unknown"
                     : "ib_uverbs was loaded anew, what has been set up since is unknown (attach anew): " + hook.error().what;
  }
  uverbs_module_ = module;
  say_(fact);
  state(std::move(fact));
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
  look_at_kernel_users();
  tell_searches();
  capture_->detach();
  // To the end: nothing adds to it any more.
  if (const auto read = spare_->read(); !read.ok()) state(read.error().what);
  for (auto drained = ring_->drain(); !drained.ok() || *drained > 0; drained = ring_->drain())
    if (!drained.ok()) {
      state(drained.error().what);
      break;
    }
  tell_spare_events(UINT64_MAX);
  for (const auto& [pid, target] : targets_)
    if (!target.ended && has_exited(target)) tell_end(target);
  if (observer_) observer_->stop(push_run());
  reorder_.flush();
  stopped_ = true;
}

// Of the searches, where they were staggered.
void Tracer::tell_searches() {
  for (const auto& [pid, target] : targets_) tell_not_found(target);
  const auto waiting = std::count_if(targets_.begin(), targets_.end(), [](const auto& each) { return each.second.scan_due; });
  if (waiting > 0)
    state(fmt::format("{} processes: what they made before the attach is unknown: the trace ended before their memory was searched",
                      waiting));
  if (pace_.pieces() > 0)
    state(fmt::format("memory of {} running processes searched, one after another, in {:.2f} s of CPU (at most {:.0f}% of a core)",
                      pace_.pieces(), static_cast<double>(pace_.worked_ns()) * 1e-9, kSearchShare * 100));
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
  announced_ = true;
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
  counters.records_consumed += ring_->consumed() + spare_->consumed();
  counters.records_malformed += ring_->malformed();
  counters.records_late += reorder_.late();
  counters.libraries_unresolved += counters_.libraries_unresolved;
  counters.functions_unresolved += counters_.functions_unresolved;
  counters.probes_failed += counters_.probes_failed;
  counters.return_probes_refused += counters_.return_probes_refused;
  counters.qps_inherited += counters_.qps_inherited;
  for (const auto& [user, count] : kernel_users_) counters.qps_of_kernel += count;
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
  if (!kernel_users_.empty()) {
    std::string users;
    for (const auto& [user, count] : kernel_users_) users += fmt::format("{}{} ({})", users.empty() ? "" : ", ", user, count);
    all.push_back("kernel users with queue pairs of their own: " + users);
  }
  if (observer_)
    for (std::string& line : observer_->statements()) all.push_back(std::move(line));
  return all;
}

}  // namespace sigma
