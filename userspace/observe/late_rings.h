// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// LateRings: the mlx5 rings of one process that were there before the tracer.
//
//   LateRings late(pid, known);
//   late.begin(live, memory, ...);       // at the attach: what can be placed is
//   for (...) found = late.look();       // now and then: those that have been used since
//
// Queue pairs of libibverbs come from the heap scan, and so do those made by DevX; both are
// structures with unknown layouts (send_place.h). Of a DevX queue pair nobody knows which structure
// has its ring: each place in memory that holds its number may be in one (UCX's work queues are).
//
// A queue that cannot be placed is not guessed: its doorbell, wherever it is, has not moved yet or
// none is known. The words that could be it are watched; when one moves, its ring certifies itself,
// and is read from where the word stood at the attach.
//
// Reads present pages only, bounded; stops nothing. One thread at a time.
#pragma once

#include <memory>
#include <string>

#include "observe/known_fields.h"
#include "observe/late_cqs.h"
#include "observe/ring_specs.h"
#include "resolve/live_objects.h"

namespace sigma {

struct FoundSend {
  SendSpec spec;
  uint32_t handle = 0;
  uint64_t qp_ptr = 0;  // struct ibv_qp *; 0: made by DevX
};

struct FoundRings {
  std::vector<FoundCq> cqs;  // before the queue pairs that use them
  std::vector<FoundSend> sends;
  bool empty() const { return cqs.empty() && sends.empty(); }
};

struct LateLimits {
  uint64_t read_bytes = uint64_t{256} << 20;  // of structures and rings, each time
  ScanLimits scan{uint64_t{4} << 30, std::chrono::milliseconds(2000)};  // for numbers of DevX queues
  size_t watched = 1024;  // words that one look reads
};

class LateRings {
 public:
  // `known` outlives this; it learns.
  LateRings(pid_t pid, KnownFields& known, const LateLimits& limits = {});
  ~LateRings();

  // `build_id`: of the library that made the queues; empty: unknown.
  FoundRings begin(const LiveObjects& live, const std::string& build_id, uint64_t now_ns);
  FoundRings look(uint64_t now_ns);

  // A command has destroyed the object of this handle. It can be found no more, and its memory may be
  // another's soon; but it counts on as one that was not placed.
  void gone(uint64_t context, ObjectKind kind, uint32_t handle);

  // Nobody needs to find this queue pair: the preloaded library tells of it.
  void told_inside(uint64_t context, uint32_t number);
  // Likewise: the command that made it, then, was heard, if late. One of a later time made another one.
  void told_by_command(uint64_t context, uint32_t number, uint64_t made_ns);

  bool done() const;  // nothing left to look for
  size_t unplaced_qps() const;
  size_t unplaced_verbs_qps() const;  // of these, those that verbs made
  size_t unplaced_cqs() const;
  // Queue pairs made by DevX of whose completions none were found.
  size_t devx_without_completions() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace sigma
