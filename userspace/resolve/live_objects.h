// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// The verbs objects that a running process made before the tracer came: found in its heap, without
// stopping it and without touching a page that is not in memory (resolve/remote_memory.h).
//
//   SIGMA_ASSIGN(LiveObjects live, find_live_objects(pid, {}));
//   for (auto& record : to_records(live, now_ns)) session.on_record(record);
//   for (auto& function : live.functions) ...  // (file, offset) for the resolver's live route
//
// How: contexts are recognised by themselves (resolve/live_contexts.h); everything else by its
// back-pointers, with the offsets of libibverbs' public ABI, which inline functions bake into
// applications. A word that equals a context's address begins an object, or is somebody's pointer
// to it. It is a QP when a PD and CQs that point back to the same context stand where a QP has
// them, an MR likewise. CQs and SRQs are those that a QP names.
//
// What it reports was there twice, at two reads with the whole scan between. Objects that were
// freed but not overwritten are told by glibc's heap (resolve/glibc_heap.h); under another
// allocator such an object can be taken for a living one, so `in_heap` says which are certain, and
// RDMA netlink knows.
//
// Beside them what looks like libmlx5's own objects: queue pairs made by DevX (struct
// mlx5dv_devx_obj, whose type and number say so), and CQs that no QP names. The latter are
// candidates only: whoever uses them looks at what they hold.
//
// Not found: objects in pages that are swapped out (totals.absent_bytes), in shared mappings and on
// the main stack; SRQs that no QP uses; XRC receive QPs, which name nothing; MRs of libraries older
// than rdma-core 20.
//
// Speed: 0.25 s of CPU per GiB read (a 2-core guest); the resident memory is read twice, and heaps
// of small chunks that hold objects once more.

#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"
#include "bpf/config.h"
#include "bpf/records.h"
#include "resolve/live_contexts.h"
#include "resolve/proc_maps.h"
#include "resolve/remote_memory.h"

namespace sigma {

struct LiveQp {
  uint64_t address = 0, context = 0, pd = 0, send_cq = 0, recv_cq = 0, srq = 0;
  uint32_t handle = 0, qp_num = 0;
  uint32_t state =
      0;              // enum ibv_qp_state; the library's copy, which can be older than the kernel's
  uint32_t type = 0;  // enum ibv_qp_type
  bool extended = false;  // has ibv_wr_* pointers (struct ibv_qp_ex)
  bool in_heap = false;   // glibc says that it is allocated
};

struct LiveCq {
  uint64_t address = 0, context = 0, channel = 0;
  uint32_t handle = 0;
  int32_t entries = 0;
  bool in_heap = false;  // of loose_cqs: glibc says that it is allocated
};

struct LiveSrq {
  uint64_t address = 0, context = 0, pd = 0;
  uint32_t handle = 0;
};

// A queue pair made by DevX: what libmlx5 keeps of it.
struct LiveDevxQp {
  uint64_t address = 0, context = 0;
  uint32_t handle = 0, qp_num = 0;
  bool in_heap = false;
};

struct LiveMr {
  uint64_t address = 0, context = 0, pd = 0;
  uint64_t start = 0, length = 0;  // as registered
  uint32_t handle = 0, lkey = 0, rkey = 0;
  bool in_heap = false;
};

// A data-path function of some context or QP. Slots that a provider left empty point to libibverbs'
// own "not supported" functions: these are reported too, and are recognised by the file.
struct LiveFunction {
  sigma_function function;
  Mapping mapping;           // for reachable_path()
  uint64_t file_offset = 0;  // of the function's entry in mapping.path
  uint32_t uses = 0;         // contexts or QPs that point to it
};

struct LiveObjects {
  pid_t pid = 0;
  std::vector<LiveContext> contexts;
  std::vector<LiveQp> qps;
  std::vector<LiveCq> cqs;        // that QPs name
  std::vector<LiveCq> loose_cqs;  // candidates that none names
  std::vector<LiveDevxQp> devx_qps;
  std::vector<LiveSrq> srqs;
  std::vector<LiveMr> mrs;
  std::vector<LiveFunction> functions;

  ScanTotals totals;
  uint64_t scan_ns = 0;
  uint32_t freed = 0;      // looked like objects, but glibc had them free, or they were mere copies
  uint32_t changed = 0;    // were different or gone at the second look
  uint32_t ambiguous = 0;  // not reported: two with one handle, and nothing to tell which one lives
};

struct LiveScanLimits {
  ScanLimits scan;
  size_t max_candidates = size_t{4} << 20;  // words that equal a context's address; 72 bytes each
};

// Fails when the process is gone or may not be read. No objects is not a failure. When a limit
// ended the scan, totals.complete is false and what was found until then is returned.
Result<LiveObjects> find_live_objects(pid_t pid, const LiveScanLimits& limits);

// sigma_context, sigma_qp_seen (SIGMA_QP_BY_SCAN) and sigma_mr_seen records of the objects that
// this process made itself; those of inherited contexts are left out. Contexts come first.
std::vector<std::vector<std::byte>> to_records(const LiveObjects& live, uint64_t now_ns);

}  // namespace sigma
