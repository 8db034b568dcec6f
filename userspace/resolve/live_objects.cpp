// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// One pass over the heap collects the words that equal a context's address, with the seven words
// that follow: enough to know a QP or an MR without reading again, since "points to an object of
// the same context" is then "is itself among the collected".
//
//   words from the object's start     0         1            2      3         4           5
//   struct ibv_qp                     context   qp_context   pd     send_cq   recv_cq     srq ...
//   struct ibv_mr                     context   pd           addr   length    handle|lkey rkey
//   struct ibv_ah                     context   pd           handle, then the provider's: an MR to
//   the eye struct ibv_srq                    context   srq_context  pd     handle    mutex
#include "resolve/live_objects.h"

#include <infiniband/verbs.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <utility>

#include "resolve/glibc_heap.h"

namespace sigma {
namespace {

static_assert(sizeof(ibv_qp) == 160 && offsetof(ibv_qp, context) == 0 &&
              offsetof(ibv_qp, pd) == 16 && offsetof(ibv_qp, send_cq) == 24 &&
              offsetof(ibv_qp, recv_cq) == 32 && offsetof(ibv_qp, srq) == 40 &&
              offsetof(ibv_qp, handle) == 48 && offsetof(ibv_qp, qp_num) == 52 &&
              offsetof(ibv_qp, state) == 56 && offsetof(ibv_qp, qp_type) == 60);
static_assert(offsetof(ibv_qp_ex, wr_atomic_cmp_swp) == 184 &&
              offsetof(ibv_qp_ex, wr_start) == 320 && offsetof(ibv_qp_ex, wr_complete) == 328 &&
              offsetof(ibv_qp_ex, wr_abort) == 336);
static_assert(sizeof(ibv_mr) == 48 && offsetof(ibv_mr, pd) == 8 && offsetof(ibv_mr, addr) == 16 &&
              offsetof(ibv_mr, length) == 24 && offsetof(ibv_mr, lkey) == 36 &&
              offsetof(ibv_mr, rkey) == 40);
static_assert(offsetof(ibv_cq, channel) == 8 && offsetof(ibv_cq, handle) == 24 &&
              offsetof(ibv_cq, cqe) == 28);
static_assert(offsetof(ibv_srq, pd) == 16 && offsetof(ibv_srq, handle) == 24);

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

constexpr uint32_t kMaxQpNumber = (1u << 24) - 1;  // 24 bits on the wire
constexpr uint64_t kUserSpaceEnd = uint64_t{1} << 47;
// struct verbs_mr (libibverbs/driver.h) = ibv_mr, enum ibv_mr_type, access flags (up to
// IBV_ACCESS_OPTIONAL_LAST).
constexpr uint32_t kMrTypes = 4;
constexpr uint32_t kAccessFlags = IBV_ACCESS_OPTIONAL_RANGE | 0xfffff;
// The memory region of a null or implicit ODP registration: all of the address space.
constexpr uint64_t kWholeAddressSpace = ~uint64_t{0};
// Providers put the verbs object first in their own, or after 8 bytes (libmlx5's QP and SRQ). What
// glibc has deeper in a chunk is a copy, or a remnant that malloc gave out again.
constexpr uint64_t kDeepestInChunk = 8;

struct Candidate {
  uint64_t address = 0;
  uint64_t context = 0;
  std::array<uint64_t, 7> next{};  // words 1 to 7; zero where they could not be read

  uint64_t word(size_t index) const { return next[index - 1]; }
  uint32_t low(size_t index) const { return static_cast<uint32_t>(word(index)); }
  uint32_t high(size_t index) const { return static_cast<uint32_t>(word(index) >> 32); }
};

bool is_known_type(uint32_t type) {
  switch (type) {
    case IBV_QPT_RC:
    case IBV_QPT_UC:
    case IBV_QPT_UD:
    case IBV_QPT_RAW_PACKET:
    case IBV_QPT_XRC_SEND:
    case IBV_QPT_XRC_RECV:
    case IBV_QPT_DRIVER:
      return true;
    default:
      return false;
  }
}

class Classifier {
 public:
  explicit Classifier(const std::vector<Candidate>& candidates) : candidates_(candidates) {}

  std::optional<LiveQp> as_qp(const Candidate& c) const {
    LiveQp qp{.address = c.address, .context = c.context};
    qp.pd = c.word(2);
    qp.send_cq = c.word(3);
    qp.recv_cq = c.word(4);
    qp.srq = c.word(5);
    qp.handle = c.low(6);
    qp.qp_num = c.high(6);
    qp.state = c.low(7);
    qp.type = c.high(7);
    if (qp.state > IBV_QPS_UNKNOWN || !is_known_type(qp.type) || qp.qp_num == 0 ||
        qp.qp_num > kMaxQpNumber) {
      return std::nullopt;
    }
    // The receiving end of an XRC connection has neither PD nor CQs of its own, and the sending end
    // no receive CQ; with all three missing there is no evidence but the numbers, so they must not
    // be.
    if (!belongs(qp.pd, c.context) || !belongs_or_null(qp.srq, c.context)) return std::nullopt;
    bool sends = belongs(qp.send_cq, c.context), receives = belongs(qp.recv_cq, c.context);
    bool partial = qp.type == IBV_QPT_XRC_SEND || qp.type == IBV_QPT_DRIVER;
    bool acceptable =
        partial ? (sends || receives) && (sends || qp.send_cq == 0) && (receives || qp.recv_cq == 0)
                : sends && receives;
    if (!acceptable) return std::nullopt;
    return qp;
  }

  std::optional<LiveMr> as_mr(const Candidate& c) const {
    LiveMr mr{.address = c.address, .context = c.context};
    mr.pd = c.word(1);
    mr.start = c.word(2);
    mr.length = c.word(3);
    mr.handle = c.low(4);
    mr.lkey = c.high(4);
    mr.rkey = c.low(5);
    if (!belongs(mr.pd, c.context) || mr.length == 0 || (mr.lkey == 0 && mr.rkey == 0))
      return std::nullopt;
    // Applications keep { context, pd, buffer, length, mr, qp... } in structures of their own.
    for (size_t i : {3, 4, 5, 6})
      if (belongs(c.word(i), c.context)) return std::nullopt;
    // libibverbs' own part of the MR follows, set with every registration since rdma-core 20.
    if (c.low(6) >= kMrTypes || c.high(6) > kAccessFlags) return std::nullopt;
    // Null and implicit ODP regions, device memory and dma-buf (an offset) have no mapped address;
    // a buffer may have been unmapped since. What does not end in user space is no region at all.
    bool whole = mr.start == 0 && mr.length == kWholeAddressSpace;
    bool in_user_space = mr.start <= kUserSpaceEnd && mr.length <= kUserSpaceEnd - mr.start;
    return whole || in_user_space ? std::optional(mr) : std::nullopt;
  }

  std::optional<LiveCq> as_cq(uint64_t address) const {
    const Candidate* c = find(address);
    if (!c || c->high(3) == 0 || static_cast<int32_t>(c->high(3)) < 0 ||
        !belongs_or_null(c->word(1), c->context)) {
      return std::nullopt;
    }
    return LiveCq{c->address, c->context, c->word(1), c->low(3), static_cast<int32_t>(c->high(3))};
  }

  std::optional<LiveSrq> as_srq(uint64_t address) const {
    const Candidate* c = find(address);
    if (!c || !belongs_or_null(c->word(2), c->context)) return std::nullopt;
    return LiveSrq{c->address, c->context, c->word(2), c->low(3)};
  }

 private:
  const Candidate* find(uint64_t address) const {
    auto at = std::lower_bound(candidates_.begin(), candidates_.end(), address,
                               [](const Candidate& c, uint64_t a) { return c.address < a; });
    return at != candidates_.end() && at->address == address ? &*at : nullptr;
  }
  bool belongs(uint64_t address, uint64_t context) const {
    const Candidate* c = find(address);
    return c && c->context == context;
  }
  bool belongs_or_null(uint64_t address, uint64_t context) const {
    return address == 0 || belongs(address, context);
  }

  const std::vector<Candidate>& candidates_;
};

// The words that point to a context, in order of address.
std::vector<Candidate> collect(const RemoteMemory& memory, const std::vector<LiveContext>& contexts,
                               const LiveScanLimits& limits, ScanTotals& totals) {
  std::vector<uint64_t> addresses;
  for (const LiveContext& context : contexts) addresses.push_back(context.address);
  std::sort(addresses.begin(), addresses.end());
  const uint64_t low = addresses.front(), span = addresses.back() - low;

  std::vector<Candidate> candidates;
  memory.scan_writable(limits.scan, totals, [&](uint64_t address, std::span<const uint64_t> words) {
    for (size_t i = 0; i < words.size(); ++i) {
      if (words[i] - low > span) [[likely]]
        continue;
      if (!std::binary_search(addresses.begin(), addresses.end(), words[i])) continue;
      if (candidates.size() >= limits.max_candidates) {
        totals.complete = false;
        return;
      }
      Candidate& c = candidates.emplace_back();
      c.address = address + 8 * i;
      c.context = words[i];
      auto rest = words.subspan(i + 1);
      size_t count = std::min(rest.size(), c.next.size());
      std::copy_n(rest.begin(), count, c.next.begin());
      if (count < c.next.size())
        memory.read(c.address + 8, std::as_writable_bytes(std::span(c.next)));
    }
  });
  return candidates;
}

// Drops what glibc knows to be free, and copies. What it does not know stays.
template <typename Object>
void drop_freed(RemoteMemory& memory, std::vector<Object>& objects, const ScanLimits& limits,
                LiveObjects& live) {
  std::vector<uint64_t> addresses;
  for (const Object& object : objects) addresses.push_back(object.address);
  std::vector<HeapPlace> places = find_heap_places(memory, addresses, limits, live.totals);
  std::vector<Object> kept;
  for (size_t i = 0; i < objects.size(); ++i) {
    if (places[i].kind == HeapPlace::free ||
        (places[i].kind == HeapPlace::in_use && places[i].offset > kDeepestInChunk)) {
      ++live.freed;
      continue;
    }
    objects[i].in_heap = places[i].kind == HeapPlace::in_use;
    kept.push_back(objects[i]);
  }
  objects = std::move(kept);
}

bool same_contents(const LiveQp& a, const LiveQp& b) {
  return a.qp_num == b.qp_num && a.pd == b.pd && a.send_cq == b.send_cq && a.recv_cq == b.recv_cq;
}
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

template <typename Object>
void look_again(const RemoteMemory& memory, std::vector<Object>& objects, LiveObjects& live) {
  size_t before = objects.size();
  std::erase_if(objects, [&](Object& object) { return !still_there(memory, object); });
  live.changed += static_cast<uint32_t>(before - objects.size());
}

// The CQs and SRQs that the surviving QPs name, each once.
void find_queues(const Classifier& classifier, LiveObjects& live) {
  std::vector<uint64_t> cqs, srqs;
  for (const LiveQp& qp : live.qps) {
    cqs.insert(cqs.end(), {qp.send_cq, qp.recv_cq});
    srqs.push_back(qp.srq);
  }
  for (auto* list : {&cqs, &srqs}) {
    std::sort(list->begin(), list->end());
    list->erase(std::unique(list->begin(), list->end()), list->end());
  }
  for (uint64_t address : cqs)
    if (auto cq = classifier.as_cq(address)) live.cqs.push_back(*cq);
  for (uint64_t address : srqs)
    if (auto srq = classifier.as_srq(address)) live.srqs.push_back(*srq);
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
    std::vector<Candidate> candidates = collect(memory, live.contexts, limits, live.totals);
    Classifier classifier(candidates);
    for (const Candidate& candidate : candidates) {
      if (auto qp = classifier.as_qp(candidate))
        live.qps.push_back(*qp);
      else if (auto mr = classifier.as_mr(candidate))
        live.mrs.push_back(*mr);
    }
    drop_freed(memory, live.qps, limits.scan, live);
    drop_freed(memory, live.mrs, limits.scan, live);
    settle_handles(live.qps, live);
    settle_handles(live.mrs, live);
    look_again(memory, live.qps, live);
    look_again(memory, live.mrs, live);
    look_again_at_contexts(memory, live);
    find_queues(classifier, live);
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
