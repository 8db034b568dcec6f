// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// When a process was made, and where it belongs: its job, its rank, its cgroup and container. By an allow-list: of a
// process's environment, which may hold secrets, only the variables named in process_facts.cpp are
// looked at, and nothing else of it is kept.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <string>
#include <string_view>

namespace sigma {

// "slurm_job_id", "rank", "cgroup", "container": what is known of these. Values are the process's
// own words, printable, at most kMaxFactBytes long.
using ProcessFacts = std::map<std::string, std::string>;
inline constexpr size_t kMaxFactBytes = 255;

// Empty when the process is gone or may not be read.
ProcessFacts process_facts(pid_t pid);

// When the process was made, as CLOCK_MONOTONIC; never later than it was, and earlier by a tick (10 ms) at most. 0: it
// is gone.
uint64_t process_start_ns(pid_t pid);

// Or is gone. Also that of a zombie.
bool first_thread_exits(pid_t pid);

// ---- the parts, pure functions of what /proc says; hostile input
// `environment`: NUL-separated NAME=VALUE.
void add_environment_facts(std::string_view environment, ProcessFacts& facts);
// `text`: of /proc/PID/cgroup.
void add_cgroup_facts(std::string_view text, ProcessFacts& facts);

}  // namespace sigma
