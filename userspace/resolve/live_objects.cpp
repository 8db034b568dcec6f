// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// The order of things: contexts, then candidates and what they are, then the reasons not to believe
// it: free memory, handles given twice, a second look. What remains is reported.
#include "resolve/live_objects.h"

#include <infiniband/verbs.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <map>
#include <utility>

#include "resolve/glibc_heap.h"
#include "resolve/live_candidates.h"

namespace sigma {
namespace {

static_assert(offsetof(ibv_qp_ex, wr_atomic_cmp_swp) == 184 &&
              offsetof(ibv_qp_ex, wr_start) == 320 && offsetof(ibv_qp_ex, wr_complete) == 328 &&
              offsetof(ibv_qp_ex, wr_abort) == 336);
// The builders of ibv_qp_ex in order: the sigma_function of slot i. Newer slots follow wr_abort.
constexpr uint64_t kFirstBuilder = offsetof(ibv_qp_ex, wr_atomic_cmp_swp);
constexpr auto kBuilders = std::to_array<sigma_function>({
    SIGMA_FN_WR_ATOMIC_CMP_SWP,
    SIGMA_FN_WR_ATOMIC_FETCH_ADD,
    SIGMA_FN_WR_BIND_MW,
    SIGMA_FN_WR_LOCAL_INV,
    SIGMA_FN_WR_RDMA_READ,
    SIGMA_FN_WR_RDMA_WRITE,
    SIGMA_FN_WR_RDMA_WRITE_IMM,
    SIGMA_FN_WR_SEND,
    SIGMA_FN_WR_SEND_IMM,
    SIGMA_FN_WR_SEND_INV,
    SIGMA_FN_WR_SEND_TSO,
    SIGMA_FN_WR_SET_UD_ADDR,
    SIGMA_FN_WR_SET_XRC_SRQN,
    SIGMA_FN_WR_SET_INLINE_DATA,
    SIGMA_FN_WR_SET_INLINE_DATA_LIST,
    SIGMA_FN_WR_SET_SGE,
    SIGMA_FN_WR_SET_SGE_LIST,
    SIGMA_FN_WR_START,
    SIGMA_FN_WR_COMPLETE,
    SIGMA_FN_WR_ABORT,
});
static_assert(kFirstBuilder + 8 * kBuilders.size() == offsetof(ibv_qp_ex, wr_abort) + 8);

// Providers put the verbs object first in their own, or after 8 bytes (libmlx5's QP and SRQ). What
// glibc has deeper in a chunk is a copy, or a remnant that malloc gave out again.
constexpr uint64_t kDeepestInChunk = 8;

// Drops what glibc knows to be free, and copies. What it does not know stays. QPs and MRs together,
// as each walk reads a heap's every page.
void drop_freed(RemoteMemory& memory, const ScanLimits& limits, LiveObjects& live) {
  std::vector<uint64_t> addresses;
  for (const LiveQp& qp : live.qps) addresses.push_back(qp.address);
  for (const LiveMr& mr : live.mrs) addresses.push_back(mr.address);
  for (const LiveDevxQp& qp : live.devx_qps) addresses.push_back(qp.address);
  for (const LiveCq& cq : live.loose_cqs) addresses.push_back(cq.address);
  std::sort(addresses.begin(), addresses.end());
  const std::vector<HeapPlace> places = find_heap_places(memory, addresses, limits, live.totals);

  auto is_dropped = [&](auto& object) {
    auto at = std::lower_bound(addresses.begin(), addresses.end(), object.address);
    const HeapPlace& place = places[static_cast<size_t>(at - addresses.begin())];
    object.in_heap = place.kind == HeapPlace::in_use && place.offset <= kDeepestInChunk;
    return place.kind != HeapPlace::unknown && !object.in_heap;
  };
  live.freed += static_cast<uint32_t>(std::erase_if(live.qps, is_dropped));
  live.freed += static_cast<uint32_t>(std::erase_if(live.mrs, is_dropped));
  std::erase_if(live.devx_qps, is_dropped);
  std::erase_if(live.loose_cqs, is_dropped);
}

bool same_contents(const LiveQp& a, const LiveQp& b) {
  return a.qp_num == b.qp_num && a.pd == b.pd && a.send_cq == b.send_cq && a.recv_cq == b.recv_cq;
}
bool same_contents(const LiveDevxQp& a, const LiveDevxQp& b) { return a.qp_num == b.qp_num; }
bool same_contents(const LiveMr& a, const LiveMr& b) {
  return a.start == b.start && a.length == b.length && a.lkey == b.lkey && a.rkey == b.rkey;
}

// The kernel gives a handle of one open device to one object at a time, and soon again. Of two with
// one handle only the certain one stays; of copies the first; of two that differ, none.
template <typename Object>
void settle_handles(std::vector<Object>& objects, LiveObjects& live) {
  std::map<std::pair<uint64_t, uint32_t>, std::vector<const Object*>> by_handle;
  for (const Object& object : objects)
    by_handle[{object.context, object.handle}].push_back(&object);
  std::vector<Object> kept;
  for (auto& [key, group] : by_handle) {
    if (group.size() > 1) {
      auto certain = [](const Object* object) { return object->in_heap; };
      if (std::any_of(group.begin(), group.end(), certain)) {
        size_t before = group.size();
        std::erase_if(group, [&](const Object* object) { return !certain(object); });
        live.ambiguous += static_cast<uint32_t>(before - group.size());
      } else if (std::all_of(group.begin(), group.end(),
                             [&](const Object* o) { return same_contents(*o, *group.front()); })) {
        group.resize(1);
      } else {
        live.ambiguous += static_cast<uint32_t>(group.size());
        group.clear();
      }
    }
    for (const Object* object : group) kept.push_back(*object);
  }
  std::sort(kept.begin(), kept.end(),
            [](const Object& a, const Object& b) { return a.address < b.address; });
  objects = std::move(kept);
}

// The second look. State may change; what makes the object itself may not.
bool still_there(const RemoteMemory& memory, LiveQp& qp) {
  auto now = memory.read_object<std::array<uint64_t, 8>>(qp.address);
  if (!now) return false;
  const auto& w = *now;
  uint64_t numbers = uint64_t{qp.qp_num} << 32 | qp.handle;
  if (w[0] != qp.context || w[2] != qp.pd || w[3] != qp.send_cq || w[4] != qp.recv_cq ||
      w[5] != qp.srq || w[6] != numbers || w[7] >> 32 != qp.type) {
    return false;
  }
  qp.state = static_cast<uint32_t>(w[7]);
  return qp.state <= IBV_QPS_UNKNOWN;
}

bool still_there(const RemoteMemory& memory, LiveMr& mr) {
  auto now = memory.read_object<std::array<uint64_t, 6>>(mr.address);
  if (!now) return false;
  const auto& w = *now;
  return w[0] == mr.context && w[1] == mr.pd && w[2] == mr.start && w[3] == mr.length &&
         w[4] == (uint64_t{mr.lkey} << 32 | mr.handle) && static_cast<uint32_t>(w[5]) == mr.rkey;
}

bool still_there(const RemoteMemory& memory, LiveDevxQp& qp) {
  auto now = memory.read_object<std::array<uint64_t, 3>>(qp.address);
  return now && (*now)[0] == qp.context && static_cast<uint32_t>((*now)[1]) == qp.handle &&
         (*now)[2] == qp.qp_num;
}

template <typename Object>
void look_again(const RemoteMemory& memory, std::vector<Object>& objects, LiveObjects& live) {
  size_t before = objects.size();
  std::erase_if(objects, [&](Object& object) { return !still_there(memory, object); });
  live.changed += static_cast<uint32_t>(before - objects.size());
}

// The CQs and SRQs that the surviving QPs name, each once.
void find_queues(const RemoteMemory& memory, const Classifier& classifier, LiveObjects& live) {
  std::vector<uint64_t> cqs, srqs;
  for (const LiveQp& qp : live.qps) {
    cqs.insert(cqs.end(), {qp.send_cq, qp.recv_cq});
    srqs.push_back(qp.srq);
  }
  for (auto* list : {&cqs, &srqs}) {
    std::sort(list->begin(), list->end());
    list->erase(std::unique(list->begin(), list->end()), list->end());
  }
  auto still_of = [&](uint64_t address, uint64_t context) {
    return memory.read_object<uint64_t>(address) == std::optional(context);
  };
  for (uint64_t address : cqs) {
    auto cq = classifier.as_cq(address);
    if (cq && still_of(address, cq->context)) live.cqs.push_back(*cq);
  }
  std::erase_if(live.loose_cqs, [&](const LiveCq& cq) {
    return std::binary_search(cqs.begin(), cqs.end(), cq.address) ||
           !still_of(cq.address, cq.context);
  });
  for (uint64_t address : srqs) {
    auto srq = classifier.as_srq(address);
    if (srq && still_of(address, srq->context)) live.srqs.push_back(*srq);
  }
}

class FunctionList {
 public:
  explicit FunctionList(const RemoteMemory& memory) : memory_(memory) {}

  void add(sigma_function function, uint64_t address) {
    if (!is_code(memory_, address)) return;
    auto [at, is_new] = index_.try_emplace({function, address}, functions_.size());
    if (is_new) {
      const Mapping& mapping = *find_mapping(memory_.maps(), address);
      functions_.push_back({function, mapping, address - mapping.start + mapping.offset, 0});
    }
    ++functions_[at->second].uses;
  }

  std::vector<LiveFunction> take() { return std::move(functions_); }

 private:
  const RemoteMemory& memory_;
  std::map<std::pair<sigma_function, uint64_t>, size_t> index_;
  std::vector<LiveFunction> functions_;
};

// A QP has builders when each slot is null or code and those of every batch are there.
void find_builders(const RemoteMemory& memory, LiveQp& qp, FunctionList& functions) {
  auto slots =
      memory.read_object<std::array<uint64_t, kBuilders.size()>>(qp.address + kFirstBuilder);
  if (!slots) return;
  for (size_t i = 0; i < kBuilders.size(); ++i) {
    bool required = kBuilders[i] == SIGMA_FN_WR_START || kBuilders[i] == SIGMA_FN_WR_COMPLETE ||
                    kBuilders[i] == SIGMA_FN_WR_ABORT;
    if ((required || (*slots)[i] != 0) && !is_code(memory, (*slots)[i])) return;
  }
  qp.extended = true;
  for (size_t i = 0; i < kBuilders.size(); ++i) functions.add(kBuilders[i], (*slots)[i]);
}

std::vector<LiveFunction> find_functions(const RemoteMemory& memory, LiveObjects& live) {
  FunctionList functions(memory);
  for (const LiveContext& context : live.contexts) {
    functions.add(SIGMA_FN_POLL_CQ, context.poll_cq);
    functions.add(SIGMA_FN_POST_SEND, context.post_send);
    functions.add(SIGMA_FN_POST_RECV, context.post_recv);
    functions.add(SIGMA_FN_POST_SRQ_RECV, context.post_srq_recv);
  }
  for (LiveQp& qp : live.qps) find_builders(memory, qp, functions);
  return functions.take();
}

// libmlx5 makes them of 2^n entries, and says one less.
bool is_mlx5_size(const LiveCq& cq) {
  return std::has_single_bit(static_cast<uint32_t>(cq.entries) + 1);
}

// A context that closed during the scan takes its objects with it.
void look_again_at_contexts(const RemoteMemory& memory, LiveObjects& live) {
  std::erase_if(live.contexts, [&](const LiveContext& context) {
    auto now = read_context(memory, context.address);
    return !now || now->cmd_fd != context.cmd_fd || now->post_send != context.post_send;
  });
  auto orphaned = [&](const auto& object) {
    return std::none_of(live.contexts.begin(), live.contexts.end(),
                        [&](const LiveContext& c) { return c.address == object.context; });
  };
  live.changed += static_cast<uint32_t>(std::erase_if(live.qps, orphaned));
  live.changed += static_cast<uint32_t>(std::erase_if(live.mrs, orphaned));
  std::erase_if(live.devx_qps, orphaned);
  std::erase_if(live.loose_cqs, orphaned);
}

void find_owners(const RemoteMemory& memory, LiveObjects& live) {
  for (LiveContext& context : live.contexts) {
    std::vector<ObjectIdentity> qps;
    for (const LiveQp& qp : live.qps) {
      if (qp.context == context.address) qps.push_back({qp.address, qp.handle, qp.qp_num});
    }
    context.owner = find_owner(memory, context, qps);
    context.inherited = context.owner != live.pid;
  }
}

template <typename Record>
Record new_record(const LiveObjects& live, sigma_record_type type, uint64_t now_ns) {
  Record record{};
  record.h.time_ns = now_ns;
  record.h.type = static_cast<uint16_t>(type);
  record.h.size = sizeof(Record);
  record.h.pid = record.h.tid = static_cast<uint32_t>(live.pid);
  return record;
}

template <typename Record>
std::vector<std::byte> to_bytes(const Record& record) {
  auto bytes = std::as_bytes(std::span(&record, 1));
  return {bytes.begin(), bytes.end()};
}

}  // namespace

Result<LiveObjects> find_live_objects(pid_t pid, const LiveScanLimits& limits) {
  const auto start = std::chrono::steady_clock::now();
  SIGMA_ASSIGN(RemoteMemory memory, RemoteMemory::open(pid));
  LiveObjects live;
  live.pid = pid;
  live.contexts = find_contexts(memory, limits.scan, live.totals);
  if (!live.contexts.empty()) {
    std::vector<Candidate> candidates =
        collect_candidates(memory, live.contexts, limits.scan, limits.max_candidates, live.totals);
    Classifier classifier(candidates);
    for (const Candidate& candidate : candidates) {
      if (auto qp = classifier.as_qp(candidate))
        live.qps.push_back(*qp);
      else if (auto mr = classifier.as_mr(candidate))
        live.mrs.push_back(*mr);
      else if (auto devx = classifier.as_devx_qp(candidate))
        live.devx_qps.push_back(*devx);
      else if (auto cq = classifier.as_cq(candidate.address); cq && is_mlx5_size(*cq))
        live.loose_cqs.push_back(*cq);
    }
    drop_freed(memory, limits.scan, live);
    settle_handles(live.qps, live);
    settle_handles(live.mrs, live);
    settle_handles(live.devx_qps, live);
    look_again(memory, live.qps, live);
    look_again(memory, live.mrs, live);
    look_again(memory, live.devx_qps, live);
    look_again_at_contexts(memory, live);
    find_queues(memory, classifier, live);
    live.functions = find_functions(memory, live);
    find_owners(memory, live);
  }
  live.scan_ns = static_cast<uint64_t>(
      std::chrono::nanoseconds(std::chrono::steady_clock::now() - start).count());
  return live;
}

std::vector<std::vector<std::byte>> to_records(const LiveObjects& live, uint64_t now_ns) {
  std::vector<std::vector<std::byte>> records;
  std::vector<uint64_t> own;
  for (const LiveContext& context : live.contexts) {
    if (context.inherited) continue;
    own.push_back(context.address);
    auto record = new_record<sigma_context>(live, SIGMA_CONTEXT, now_ns);
    record.context = context.address;
    record.cmd_fd = context.cmd_fd;
    record.kind = SIGMA_CONTEXT_SEEN;
    context.device.copy(record.device, sizeof record.device - 1);
    records.push_back(to_bytes(record));
  }
  auto is_own = [&](const auto& object) {
    return std::find(own.begin(), own.end(), object.context) != own.end();
  };
  for (const LiveQp& qp : live.qps) {
    if (!is_own(qp)) continue;
    auto record = new_record<sigma_qp_seen>(live, SIGMA_QP_SEEN, now_ns);
    record.context = qp.context;
    record.qp_ptr = qp.address;
    record.send_cq_ptr = qp.send_cq;
    record.recv_cq_ptr = qp.recv_cq;
    record.srq_ptr = qp.srq;
    record.qp_num = qp.qp_num;
    record.handle = qp.handle;
    record.qp_type = qp.type;
    record.state = qp.state;
    record.source = SIGMA_QP_BY_SCAN;
    records.push_back(to_bytes(record));
  }
  for (const LiveMr& mr : live.mrs) {
    if (!is_own(mr)) continue;
    auto record = new_record<sigma_mr_seen>(live, SIGMA_MR_SEEN, now_ns);
    record.context = mr.context;
    record.mr_ptr = mr.address;
    record.addr = mr.start;
    record.length = mr.length;
    record.handle = mr.handle;
    record.lkey = mr.lkey;
    record.rkey = mr.rkey;
    records.push_back(to_bytes(record));
  }
  return records;
}

}  // namespace sigma
