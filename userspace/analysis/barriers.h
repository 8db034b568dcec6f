// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Barriers: epochs in which every rank signals to all its peers.
//
// The n-th small signal (write, atomic or immediate) that a process sends through each of its
// signalling queue pairs makes its n-th round; its arrival is the round's first post. Rounds are
// barrier epochs only if they behave like that: no process begins a round before every process has
// begun the one before. Traffic that is merely small and frequent fails this as soon as the
// processes drift. Of posts that are known within an interval (queues read from memory) two may be told
// in the wrong order: that is held against a round only where the intervals rule the right one out, or
// where they are as long as what the round would tell.
//
// Two processes that answer each other in turn are no barrier, though their rounds are in step: of
// two, each must have been the last now and then.
//
// Memory: the first kMaxRounds rounds; `beyond` tells that there were more.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "base/histogram.h"
#include "session/operation.h"

namespace sigma {

struct BarrierRank {
  uint32_t node = 0, pid = 0;
  uint64_t last = 0;    // epochs in which it was the last to arrive
  Histogram behind_ns;  // its arrival after the first one's
};

struct BarrierEpoch {
  uint64_t begin_ns = 0;   // the first arrival
  uint64_t spread_ns = 0;  // last minus first arrival
  size_t last = 0;         // index in ranks
};

struct Barriers {
  uint64_t epochs = 0;  // 0: none found
  bool beyond = false;  // there were more, which were not looked at
  Histogram spread_ns;
  std::vector<BarrierRank> ranks;
  std::vector<BarrierEpoch> widest;  // at most kWidest, the widest first
  static constexpr size_t kWidest = 10;
};

class BarrierFinder {
 public:
  static constexpr uint64_t kMaxBytes = 64;
  static constexpr uint64_t kMinEpochs = 4;
  static constexpr size_t kMaxRounds = 1 << 20;  // of all processes together

  // Small, and not unsignalled: a candidate.
  static bool is_signal(Opcode opcode, std::optional<uint64_t> bytes, std::optional<bool> signaled);
  // The n-th signal, from 0, of one of the process's rows: posted at `post_ns` +- `error_ns`.
  void on_signal(uint32_t node, uint32_t pid, uint64_t n, uint64_t post_ns, uint64_t error_ns);

  Barriers find() const;

  // Processes that signal.
  using Id = std::pair<uint32_t, uint32_t>;  // node, pid
  std::vector<Id> processes() const;

 private:
  struct Round {
    uint64_t first_ns = UINT64_MAX;
    uint64_t earliest_ns = UINT64_MAX, latest_ns = UINT64_MAX;  // that the first one can have been
    uint32_t signals = 0;
  };
  struct Process {
    std::vector<Round> rounds;
    uint32_t rows = 0;  // that signal
  };

  std::map<Id, Process> processes_;
  Id last_id_;
  Process* last_ = nullptr;
  size_t round_count_ = 0;
  bool beyond_ = false;
};

}  // namespace sigma
