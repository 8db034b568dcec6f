// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Tracer: from process ids to a stream of records in order of time.
//
//   SIGMA_ASSIGN(auto tracer, Tracer::start(options, features, on_record, say));
//   while (!tracer->ended()) { wait(tracer->interval()); SIGMA_CHECK(tracer->poll()); }
//   tracer->stop();
//
// Loads the programs, finds and probes the libraries of each target (also those it maps later), reads
// what is already there (queue pairs older than the attach), drains the ring, follows forks, keeps the
// budget. Owned and called by one thread; never stops or signals a target.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "attach/capture.h"
#include "attach/features.h"
#include "attach/governor.h"
#include "attach/library_watch.h"
#include "attach/nic_clock_source.h"
#include "attach/pace.h"
#include "attach/rdma_sysfs.h"
#include "attach/reorder.h"
#include "attach/ring_reader.h"
#include "attach/selection.h"
#include "attach/spare_events.h"
#include "base/counters.h"
#include "base/fd.h"
#include "base/result.h"
#include "observe/observer.h"
#include "resolve/live_objects.h"
#include "resolve/proc_maps.h"
#include "resolve/resolver.h"

namespace sigma {

struct TracerOptions {
  std::vector<pid_t> pids;
  std::optional<Selection> selection;  // instead of pids: those that run and those to come
  bool follow_forks = false;
  bool check_posts = true;   // see refused posts by a return probe
  // Who tells: the probes, or the rings in memory. Rings are mlx5's; elsewhere, and where rings older
  // than the attach were not found, probes tell whatever is asked. `automatic`: posts by probes, completions by rings;
  // `both`: by rings, and polls tell when each was picked up;
  // posts that no probe tells of are read from memory as well.
  enum class Posts : uint8_t { automatic, probe, ring };
  enum class Completions : uint8_t { automatic, probe, ring, both, off };
  Posts posts = Posts::automatic;
  Completions completions = Completions::automatic;
  double observer_cpu = 0.30;  // share of a core
  size_t ring_bytes = 8u << 20;
  double budget = 0.10;      // share of a core per process; 0: no governor
  std::chrono::milliseconds drain_delay{0};  // slows the reader down, to test loss
};

// One file's probes in one process (pid 0: in all).
struct TracedLibrary {
  pid_t pid = 0;
  std::string mapped_as;  // the path as the target sees it
  std::shared_ptr<const LibraryPlan> plan;
  AttachReport report;
  AttachPolicy policy;
  dev_t device = 0;  // of the file: its path is another for each process
  uint64_t inode = 0;
  Fd file{};  // where probes are shared: they come back after a pause, when the process by whose files
              // the path goes may be gone
};

class Tracer {
 public:
  using OnRecord = std::function<void(std::span<const std::byte>)>;
  using Say = std::function<void(std::string_view line)>;

  // Fails when a pid does not exist or nothing at all can be attached; says what it does by `say`.
  static Result<std::unique_ptr<Tracer>> start(const TracerOptions& options, const Features& features,
                                               OnRecord on_record, Say say);
  ~Tracer();
  Tracer(const Tracer&) = delete;
  Tracer& operator=(const Tracer&) = delete;

  // Drains the ring once and looks after the targets.
  Status poll();
  // How long to wait before the next poll: short while records flow.
  std::chrono::nanoseconds interval() const;
  // Every target has ended, and no other is waited for.
  bool ended() const;
  // Takes the probes out, reads the rest and passes everything on. Idempotent.
  void stop();

  // Adds the attacher's part of the coverage statement.
  void add_to(Counters& counters) const;
  const std::vector<TracedLibrary>& libraries() const { return libraries_; }
  // As it is, or was called last: of a process that has ended, until its end has been passed on.
  std::string name_of(pid_t pid) const;
  // Facts about the coverage that are no numbers, for people.
  std::vector<std::string> statements() const;

 private:
  static constexpr double kSearchShare = 0.25;  // of a core, for searches of processes' memory while others are traced
  struct Target {
    pid_t pid = 0;
    Fd pidfd;
    uint64_t since_ns = 0;          // when tracing it began
    bool seccomp = false;           // its system calls are filtered
    bool waiting = true;            // has mapped no RDMA library yet
    bool looked = false;            // its libraries were looked at before
    bool scan_due = false;          // its memory is searched when it is its turn
    bool linked_in = false;         // has libibverbs linked in, whose functions are not found yet
    bool functions_found = false;   // by its own objects
    size_t searches = 0;            // for these
    std::string command;            // likewise, its name
    uint64_t start_ns = 0;          // of the process, not later than it was; 0: unknown
    bool ended = false;             // which the session knows, or will
    std::optional<uint64_t> gone_at;  // what is before this position in the ring may tell of the end that we see
    bool older = false;             // has queues made before the attach whose rings were not found
    bool readable = true;           // its memory can be read
    bool ring_mode = false;         // its probes on posts were too dear: the rings tell
    Governor governor{GovernorOptions{}};
  };
  struct Name {
    std::string name;
    uint64_t gone_ns = 0;  // 0: it runs
  };
  struct FileKey {
    pid_t pid;  // 0: probes for all processes
    dev_t device;
    uint64_t inode;
    auto operator<=>(const FileKey&) const = default;
  };

  Tracer(const TracerOptions& options, const Features& features, OnRecord on_record, Say say);
  Status open();
  void start_observer();
  bool reads_completions() const;
  bool observes() const { return observer_ != nullptr; }
  void push(std::span<const std::byte> record);
  Observer::Deliver push_run();
  void tell_spare_events(uint64_t position);
  void on_ring_record(std::span<const std::byte> record);
  void on_host_ring(sigma_ring& ring);
  std::vector<sigma_clock_sample> read_clocks(uint64_t now_ns);
  bool state(std::string fact);
  void announce();
  void tell_searches();

  // The traced processes: tracer_targets.cpp.
  Status add_process(pid_t pid);
  bool is_told_gone(pid_t pid) const;
  void on_process(const sigma_process& record);
  void note_name(const sigma_process& record);
  void notice_ends();
  void look_for_unseen_end(Target& target);
  void tell_end(const Target& target);
  std::map<pid_t, Target>::iterator forget(std::map<pid_t, Target>::iterator target);
  void look_after_hook();
  void govern(Target& target, uint64_t now_ns);
  void push_window(bool pause, pid_t pid, uint64_t now_ns);
  bool to_ring_mode(Target& target);
  void switch_data_path(Target& target, bool on);
  void switch_shared_data_path(bool on, uint64_t now_ns);
  static bool has_exited(const Target& target);
  static bool is_ending(const Target& target);
  static std::string command_of(pid_t pid);

  // The files that processes map: tracer_libraries.cpp.
  pid_t scope_of(const Target& target) const;
  AttachPolicy policy_for(const Target* target) const;
  AttachPolicy with_rings(AttachPolicy policy, const LibraryPlan& plan, const Target* target) const;
  void look_at_libraries(Target& target);
  bool look_at_program(Target& target);
  void find_linked_in(Target& target);
  void tell_not_found(const Target& target);
  void attach_installed(pid_t pid, const std::string& root, const AttachPolicy& policy);
  bool attach_file(const AttachPolicy& policy, const std::string& path, const std::string& libibverbs,
                   const FileKey& key, std::string mapped_as, const Target* target);
  bool attach_plan(const AttachPolicy& policy, const std::shared_ptr<const LibraryPlan>& plan, pid_t scope,
                   std::string mapped_as, const Target* target);
  void add_probes_for_older(const Target& target, const FileKey& key);
  void tell_uncovered(const FileKey& file);
  bool is_probed(const FileKey& file, const ResolvedFunction& function) const;

  // What was made before the attach: tracer_older.cpp.
  void find_older_objects(Target& target, const std::string& libibverbs);
  void find_older_rings(Target& target, const LiveObjects& objects);
  void probe_older(Target& target);
  void attach_live_functions(Target& target, const LiveObjects& objects, const std::string& libibverbs);
  // Which rings the library preloaded into a process reads itself. By any thread.
  std::map<std::pair<std::string, uint32_t>, uint8_t> told_by_library(pid_t pid);
  void find_older_gpu_queues(const Target& target, const std::vector<Mapping>& maps, const std::string& path,
                             const std::string& mapped_as);
  void find_peers(const Target& target);
  void look_at_kernel_users();

  // System-wide traces: tracer_selection.cpp.
  Status open_selection();
  void find_selected();
  void on_library_of_stranger(const LibraryEvent& event);
  void search_due(Target& target);
  void search_next(uint64_t now_ns);
  uint64_t born_ns(pid_t pid) const;

  TracerOptions options_;
  Features features_;
  OnRecord on_record_;
  Say say_;
  bool shared_probes_;  // one set of probes for all processes; the filter is BPF's alone
  std::unique_ptr<Capture> capture_;
  std::unique_ptr<RingReader> ring_;
  std::unique_ptr<SpareEvents> spare_;
  // Where the preloaded GPU library has its registry, by process; the observer's thread asks.
  std::mutex registries_mutex_;
  std::map<pid_t, uint64_t> registries_;
  DeviceNames device_names_;  // before the observer, whose thread may ask
  std::unique_ptr<Observer> observer_;
  std::optional<LibraryWatch> watch_;
  Reorder reorder_;
  Resolver resolver_;
  std::map<pid_t, Target> targets_;
  std::map<pid_t, Name> names_;
  uint64_t told_until_ns_ = 0;  // what is older has been passed on
  std::map<FileKey, uint64_t> attached_;     // when its probes were in place
  std::map<pid_t, uint64_t> born_ns_;        // memory known to have been empty then
  std::vector<TracedLibrary> libraries_;
  std::set<const LibraryPlan*> told_;  // of these, what is not covered was said
  std::set<pid_t> rescan_;
  bool announced_ = false;
  std::vector<std::unique_ptr<NicClockSource>> clocks_;
  uint64_t clocks_due_ns_ = 0;
  uint64_t clock_interval_ns_ = 0;
  std::optional<ProcessSelector> selector_;
  std::map<std::tuple<dev_t, uint64_t, std::string>, LibraryKind> kinds_;  // of files that strangers mapped
  std::map<std::pair<dev_t, uint64_t>, bool> linked_in_;  // programs: is libibverbs a part of them
  // Processes whose memory is still to be searched: for objects older than the trace, or for the functions of an
  // RDMA library that is linked in. One after another, and by at most a part of a core.
  std::deque<pid_t> scans_;
  Pace pace_{kSearchShare};
  size_t paused_targets_ = 0;     // where probes are shared: the data path is out while it is not 0
  uint64_t paused_since_ns_ = 0;
  uint64_t paused_ns_ = 0;        // of processes that have ended; where probes are shared, of all
  std::optional<ControlHook> control_hook_;
  uint64_t uverbs_module_ = 0;  // the one that the hook is in
  int hook_tries_ = 0;          // to set it in one that was loaded anew
  bool process_events_ = false;
  double ns_per_hit_ = 1000;
  uint64_t last_care_ns_ = 0, last_search_ns_ = 0;
  size_t last_drained_ = 0;
  uint64_t last_record_ns_ = 0;  // of the ring buffer
  uint64_t watch_losses_ = 0;
  std::map<std::string, size_t> kernel_users_;  // their queue pairs, by "nvme_rdma on mlx5_0"
  bool stopped_ = false;
  Counters counters_;
  std::vector<std::string> statements_;
};

}  // namespace sigma
