// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Selection: which processes a system-wide trace is of. BPF decides at each process's first hit
// (sigma_selection of bpf/config.h); here the same question is answered from /proc, to find those
// that run already and those whose libraries have no probes yet.
#pragma once

#include <sys/types.h>

#include <functional>
#include <optional>
#include <string>

#include "base/fd.h"
#include "base/result.h"
#include "bpf/config.h"

namespace sigma {

// All conditions that are set must hold; none: every process.
struct Selection {
  std::string comm;    // of the process's first thread; at most 15 bytes, as the kernel keeps it
  std::string cgroup;  // a cgroup v2 folder: the processes below it
  std::optional<uid_t> uid;  // the real one

  // "all processes", "processes named x of user 4711": for people.
  std::string text() const;
};

class ProcessSelector {
 public:
  // Fails when the cgroup is none.
  static Result<ProcessSelector> open(const Selection& selection);

  // False as well when the process is gone, or is this one.
  bool matches(pid_t pid) const;
  // For each running process that matches.
  void for_each(const std::function<void(pid_t)>& visit) const;

  // For the BPF programs. The cgroup's descriptor is -1 where none is asked for.
  sigma_selection for_bpf() const;
  int cgroup_fd() const { return cgroup_ ? cgroup_.get() : -1; }

 private:
  explicit ProcessSelector(const Selection& selection) : selection_(selection) {}

  Selection selection_;
  Fd cgroup_;
  std::string cgroup_path_;  // as /proc/PID/cgroup names it, from the hierarchy's root
};

// The real uid of a process; nothing when it is gone.
std::optional<uid_t> uid_of(pid_t pid);

}  // namespace sigma
