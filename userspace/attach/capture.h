// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Capture: the BPF programs, loaded, and their links. From attach() on records flow into the ring
// buffer whose map ring_map_fd() names.
//
//   SIGMA_ASSIGN(auto capture, Capture::load({.ring_bytes = 8 << 20}, features));
//   SIGMA_CHECK(capture->add_target(pid));
//   AttachReport report = capture->attach(plan, pid, {});
//
// Owned and called by one thread. Link forms, best first: session (entry and return in one hit),
// multi (one link for all probes of a program in a file), perf (one link a probe; slow to close, so
// they are closed in parallel). Which one is used is decided at the load from Features.
//
// Filtering is done by the kernel where its pid filter is sound, and always in BPF as well.
#pragma once

#include <sys/types.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "attach/features.h"
#include "base/result.h"
#include "bpf/config.h"
#include "resolve/resolve.h"

namespace sigma {

struct CaptureOptions {
  size_t ring_bytes = 8u << 20;  // rounded up to a power of two of pages
  // has_loop and has_sessions are set by load() from Features; the rest is the caller's.
  sigma_config config = {.selects = 0,
                         .follow_forks = 0,
                         .check_posts = 1,
                         .has_loop = 1,
                         .has_sessions = 0,
                         .reserved = {},
                         .selection = {}};
  int cgroup_fd = -1;  // of config.selection.by_cgroup
};

struct AttachPolicy {
  bool posts = true;            // probe the functions that post (off where rings tell)
  bool completions = true;      // probe poll_cq (off where the ring is observed)
  bool polls_alone = false;     // the other functions are probed already
  bool returns_allowed = true;  // false: return probes would kill the target (seccomp self-test)
  bool check_posts = true;      // false: save the return probe of posts (--no-post-check)
  bool library_control = true;  // probe execute_ioctl; ignored once a kernel hook is attached
};

enum class LinkForm : uint8_t { perf, multi, session };
std::string_view to_string(LinkForm form);

struct AttachedProbe {
  sigma_function function;
  LinkForm form;
  uint64_t file_offset;  // where the probe stands
  bool at_return;        // its return is seen as well
};

struct FailedProbe {
  sigma_function function;
  std::string reason;
};

struct AttachReport {
  std::string path;
  std::vector<AttachedProbe> attached;
  std::vector<FailedProbe> failed;  // not attached at all
  std::vector<FailedProbe>
      without_return;  // attached at the entry; the return probe was not to be had
};

enum class ControlHook : uint8_t { kernel_fentry, kernel_kprobe };
// The hook that this kernel gets, for loading its programs and for attaching them; none where the
// kernel has neither. kprobes first, though fexit is cheaper: a trampoline's program may be preempted,
// and is then skipped for whoever enters it on that CPU (__bpf_prog_enter_recur). On a preemptible 6.12
// with jobs setting up side by side, some commands of a hundred were lost. A kprobe's program runs with
// preemption off.
std::optional<ControlHook> control_hook_of(const Features& features);
std::string_view to_string(ControlHook hook);

class Capture {
 public:
  // Fails with a hint when the kernel refuses the programs (privilege, lockdown, missing feature).
  static Result<std::unique_ptr<Capture>> load(const CaptureOptions& options,
                                               const Features& features);
  ~Capture();  // detaches
  Capture(const Capture&) = delete;
  Capture& operator=(const Capture&) = delete;

  // The set of traced processes (tgids). Adding twice is no error; neither is removing a stranger.
  Status add_target(pid_t pid);
  Status remove_target(pid_t pid);
  // The governor's switch: a paused process pays for the hit and the filter only.
  Status pause_target(pid_t pid, bool paused);
  // Probe hits of a process so far, short by up to SIGMA_HITS_BATCH a queue pair; 0 for a stranger.
  uint64_t target_hits(pid_t pid) const;
  // Those in the set now: added by us, by fork (follow_forks), or at the first hit (selects).
  std::vector<pid_t> targets() const;

  // Attaches what the plan resolved. pid 0: in all processes that map the file. Never fails as a
  // whole.
  AttachReport attach(const LibraryPlan& plan, pid_t pid, const AttachPolicy& policy);
  // Hooks the kernel's ib_uverbs_ioctl: every uverbs command of every process passes there.
  Result<ControlHook> attach_control();
  // The same in ib_uverbs that was loaded anew: the old hook went with the old module.
  Result<ControlHook> renew_control();
  // exec, fork and exit of targets.
  Status attach_process_events();

  // Closes all links, or those made for one process (its data path only: the governor's pause, in
  // which set-up is still seen); 0: those made for all. Programs and maps stay; attach() may follow.
  void detach();
  void detach(pid_t pid, bool data_path_only = false);

  int ring_map_fd() const;
  int spare_events_map_fd() const;
  int queue_pairs_map_fd() const;
  // The array of SIGMA_RING_SLOTS slots that BPF and the queue observer share; null: not to be had.
  sigma_ring_slot* ring_slots() const;
  // mlx5: where the QP's doorbell record is, so that posts get their WQE index. 0 forgets it.
  Status set_doorbell(pid_t pid, uint64_t qp_ptr, uint32_t qp_num, uint64_t doorbell_addr);
  // The command that ends this queue copies the ring of this slot. `context`: as in sigma_uverbs.
  Status set_ring_slot(pid_t pid, uint64_t context, uint32_t handle, uint32_t slot);
  // Under the kernel's hook: by descriptor, the struct file * that sigma_uverbs.ucontext would name. Empty: not
  // to be had.
  std::map<int, uint64_t> open_files(pid_t pid) const;
  // Sums over the CPUs, indexed by enum sigma_counter.
  std::array<uint64_t, SIGMA_COUNTERS> counters() const;

  // Times that the kernel skipped one of our programs, because it was already running on that CPU
  // (bpf_prog_info.recursion_misses): what it would have reported is lost.
  uint64_t missed_runs() const;

  // The form that entry+return probes take, and that entry-only probes take.
  LinkForm return_form() const;
  LinkForm entry_form() const;

 private:
  struct Impl;
  explicit Capture(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace sigma
