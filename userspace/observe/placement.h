// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Placement: the thread that reads queues runs near the threads that write them.
//
// A request that is read from a core which shares no last-level cache with the thread that posts costs that
// thread 100 to 200 ns more, measured at 1 to 7 M requests/s: the median post took 160 ns instead of 40, and the
// rate fell to 0.80-0.83 of the untraced; from a core that shares it, to 0.99. On the other hand a reader that
// takes the poster's own core away costs more than that: where the traced threads leave no core of their cache
// free, the reader runs wherever the kernel puts it, as it does where there is nothing to choose.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/counters.h"
#include "observe/cache_domains.h"
#include "observe/thread_times.h"

namespace sigma {

// What is known at one time. Weights: of each cache domain, in parts of what was read.
struct PlacementRound {
  std::vector<double> weights;
  Cpus allowed;  // to this program
  Cpus busy;     // used by traced threads for more than half of the time
  bool active = false;  // enough is read to be worth it
};

// The decision, and nothing else.
class PlacementChoice {
 public:
  explicit PlacementChoice(const CacheDomains& domains) : domains_(&domains) {}
  // The CPUs to keep to from now on. Empty: all that are allowed.
  Cpus next(const PlacementRound& round);

 private:
  Cpus usable(size_t domain, const PlacementRound& round) const;
  std::optional<size_t> wish(const PlacementRound& round) const;

  const CacheDomains* domains_;
  std::optional<size_t> present_, wished_;
  int wished_for_ = 0, idle_for_ = 0;  // rounds
};

// Of one process, since it is traced. `ended`: it grows no more; the same number may stand for another one next.
struct QueueBytes {
  uint32_t pid = 0;
  uint64_t bytes = 0;
  bool ended = false;
};

// All calls by one thread, which is not the one that is placed. Where all CPUs share a cache, or nobody knows,
// no thread's times are read and nobody is moved.
class Placement {
 public:
  // `sysfs_root`: empty places nobody.
  explicit Placement(const std::string& sysfs_root);
  Placement(const Placement&) = delete;
  Placement& operator=(const Placement&) = delete;

  bool on() const { return !domains_.domains.empty(); }
  // Once a second is enough. `reader`: the thread to place, 0: none yet; `reader_cpu`: where it was last. Reads
  // the times of at most 512 threads, in some ms.
  void round(std::span<const QueueBytes> queues, pid_t reader, uint32_t reader_cpu, uint64_t now_ns);
  // What was read since the last round.
  void finish(std::span<const QueueBytes> queues, uint32_t reader_cpu);

  void add_to(Counters& counters) const;
  std::vector<std::string> statements() const;

 private:
  struct Process {
    uint64_t bytes = 0;           // as told last
    uint64_t lately = 0;          // read, fading
    std::vector<double> weights;  // of each domain, 1 in all; empty: not known
  };
  struct Read {
    Process* process;
    uint32_t pid;
    uint64_t bytes;  // since the last round
  };
  std::vector<Read> take(std::span<const QueueBytes> queues, std::optional<size_t> reader_domain);
  void look_at_threads(std::vector<Read>& reads, uint64_t now_ns, PlacementRound& round);
  void account(const Process& process, uint64_t bytes, std::optional<size_t> reader_domain);
  void apply(pid_t reader, const Cpus& allowed, const Cpus& wanted);

  CacheDomains domains_;
  PlacementChoice choice_;
  ThreadTimes times_;
  std::map<uint32_t, Process> processes_;
  uint64_t round_ns_ = 0;
  Cpus applied_;  // empty: all that are allowed
  bool refused_ = false;
  std::string refusal_;
  double near_bytes_ = 0, far_bytes_ = 0;
};

}  // namespace sigma
