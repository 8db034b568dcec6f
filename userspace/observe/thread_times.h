// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// ThreadTimes: what the threads of a few processes have used of the CPUs since they were read last, and where
// they ran last, from /proc/PID/task/*/stat.
//
// By one thread. A thread read costs 7 to 10 us of CPU, nearly all in the kernel: a process of 64 0.4 to 0.6 ms.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string_view>
#include <vector>

namespace sigma {

// Of one line of /proc/PID/task/TID/stat: fields 14, 15 and 39 (proc(5)).
struct ThreadStat {
  uint64_t ticks = 0;  // user and system time since its start; sysconf(_SC_CLK_TCK) a second
  uint32_t cpu = 0;    // that it ran on last
};
// Empty: it is no such line. The name may contain anything, blanks and parentheses too.
std::optional<ThreadStat> parse_thread_stat(std::string_view line);

struct ThreadUse {
  uint32_t cpu = 0;    // that it ran on last
  double share = 0;    // of a core, since it was read last
  double weight = 0;   // how much it runs lately; never 0: one that mostly sleeps may post all the same
};

struct ProcessUse {
  bool fresh = false;  // read for the first time: shares and weights say nothing yet
  std::vector<ThreadUse> threads;
};

class ThreadTimes {
 public:
  // At most `most` threads of the process, the oldest ones. Without threads: it has gone, or forbids it.
  ProcessUse read(uint32_t pid, uint64_t now_ns, size_t most);
  bool knows(uint32_t pid) const { return processes_.contains(pid); }
  // Those that were read before this time: when they are read again, they are fresh.
  void forget_before(uint64_t ns);

 private:
  struct Thread {
    uint64_t ticks = 0;
    double weight = 0;
    uint64_t read_ns = 0;
  };
  struct Process {
    uint64_t read_ns = 0;
    std::map<uint32_t, Thread> threads;
  };
  std::map<uint32_t, Process> processes_;
};

}  // namespace sigma
