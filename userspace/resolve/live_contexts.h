// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// struct ibv_context in another process's memory: the root of everything that live_objects.h finds.
//
// A context is recognised by four things together:
//   1. abi_compat is all ones, and the word before the context is a plausible sizeof(verbs_context);
//   2. the function pointers of ibv_context_ops that inline functions call, and every function pointer
//      of the verbs_context in front, lead into executable mappings of files (or are null in the
//      latter). free() overwrites the first of these, so that most closed contexts fail here;
//   3. cmd_fd is open;
//   4. cmd_fd is a uverbs node: then that is enough (FdEvidence::uverbs). It may be something else, as
//      under an emulated device: then the ibv_device must be convincing as well: a printable name,
//      a node name "uverbsN" and an absolute sysfs path, all terminated (FdEvidence::device_record).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "resolve/remote_memory.h"

namespace sigma {

enum class FdEvidence : uint8_t { uverbs, device_record };

struct LiveContext {
  uint64_t address = 0;
  std::string device;  // ibv_device.name; empty when it could not be read
  int cmd_fd = -1;
  std::string fd_target;  // what /proc/PID/fd/N links to
  FdEvidence evidence = FdEvidence::uverbs;
  uint64_t poll_cq = 0, post_send = 0, post_recv = 0, post_srq_recv = 0;  // addresses
  // The context was made by an ancestor and came here by fork(), with all its objects: they are
  // that ancestor's (see find_owner).
  bool inherited = false;
  pid_t owner = 0;  // the process that made it: this one, or the ancestor
};

// Scans for contexts. `memory` must be fresh.
std::vector<LiveContext> find_contexts(const RemoteMemory& memory, const ScanLimits& limits,
                                       ScanTotals& totals);

// The context at `address` as it is now, if one is there.
std::optional<LiveContext> read_context(const RemoteMemory& memory, uint64_t address);

// What identifies an object across processes: a device's QP numbers and handles name one object
// only.
struct ObjectIdentity {
  uint64_t address = 0;
  uint32_t handle = 0, number = 0;
};

// The oldest living ancestor of memory.pid() that has this very context: one at the same address
// with the same functions and descriptor number, where both descriptors are one open file (kcmp).
// Where the kernel has no kcmp, one of `qps` at the same address with the same number and handle in
// both decides: two processes that open a device on their own never share these. Returns
// memory.pid() when there is none: then the process made it, or its maker is gone.
pid_t find_owner(const RemoteMemory& memory, const LiveContext& context,
                 const std::vector<ObjectIdentity>& qps);

// Does `address` point into an executable mapping of a file?
bool is_code(const RemoteMemory& memory, uint64_t address);

}  // namespace sigma
