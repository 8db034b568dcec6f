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
//   struct mlx5dv_devx_obj            context   handle|type  number rx_icm_addr, for QPs 0
//                                     (rdma-core, providers/mlx5/mlx5.h, since 30)
#include "resolve/live_candidates.h"

#include <infiniband/verbs.h>

#include <algorithm>
#include <cstddef>

namespace sigma {
namespace {

static_assert(sizeof(ibv_qp) == 160 && offsetof(ibv_qp, context) == 0 &&
              offsetof(ibv_qp, pd) == 16 && offsetof(ibv_qp, send_cq) == 24 &&
              offsetof(ibv_qp, recv_cq) == 32 && offsetof(ibv_qp, srq) == 40 &&
              offsetof(ibv_qp, handle) == 48 && offsetof(ibv_qp, qp_num) == 52 &&
              offsetof(ibv_qp, state) == 56 && offsetof(ibv_qp, qp_type) == 60);
static_assert(sizeof(ibv_mr) == 48 && offsetof(ibv_mr, pd) == 8 && offsetof(ibv_mr, addr) == 16 &&
              offsetof(ibv_mr, length) == 24 && offsetof(ibv_mr, lkey) == 36 &&
              offsetof(ibv_mr, rkey) == 40);
static_assert(offsetof(ibv_cq, channel) == 8 && offsetof(ibv_cq, handle) == 24 &&
              offsetof(ibv_cq, cqe) == 28);
static_assert(offsetof(ibv_srq, pd) == 16 && offsetof(ibv_srq, handle) == 24);

constexpr uint32_t kDevxQp = 4;  // enum mlx5_devx_obj_type: MLX5_DEVX_QP
constexpr uint32_t kMaxQpNumber = (1u << 24) - 1;  // 24 bits on the wire
constexpr uint64_t kUserSpaceEnd = uint64_t{1} << 47;
// struct verbs_mr (libibverbs/driver.h) = ibv_mr, enum ibv_mr_type, access flags (up to
// IBV_ACCESS_OPTIONAL_LAST).
constexpr uint32_t kMrTypes = 4;
constexpr uint32_t kAccessFlags = IBV_ACCESS_OPTIONAL_RANGE | 0xfffff;
// The memory region of a null or implicit ODP registration: all of the address space.
constexpr uint64_t kWholeAddressSpace = ~uint64_t{0};
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

}  // namespace

std::optional<LiveQp> Classifier::as_qp(const Candidate& c) const {
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

std::optional<LiveMr> Classifier::as_mr(const Candidate& c) const {
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

std::optional<LiveDevxQp> Classifier::as_devx_qp(const Candidate& c) const {
  const uint64_t number = c.word(2);
  if (c.high(1) != kDevxQp || number == 0 || number > kMaxQpNumber || c.word(3) != 0)
    return std::nullopt;
  return LiveDevxQp{.address = c.address,
                    .context = c.context,
                    .handle = c.low(1),
                    .qp_num = static_cast<uint32_t>(number)};
}

std::optional<LiveCq> Classifier::as_cq(uint64_t address) const {
  const Candidate* c = find(address);
  if (!c || c->high(3) == 0 || static_cast<int32_t>(c->high(3)) < 0 ||
      !belongs_or_null(c->word(1), c->context)) {
    return std::nullopt;
  }
  return LiveCq{c->address, c->context, c->word(1), c->low(3), static_cast<int32_t>(c->high(3))};
}

std::optional<LiveSrq> Classifier::as_srq(uint64_t address) const {
  const Candidate* c = find(address);
  if (!c || !belongs_or_null(c->word(2), c->context)) return std::nullopt;
  return LiveSrq{c->address, c->context, c->word(2), c->low(3)};
}

const Candidate* Classifier::find(uint64_t address) const {
  auto at = std::lower_bound(candidates_.begin(), candidates_.end(), address,
                             [](const Candidate& c, uint64_t a) { return c.address < a; });
  return at != candidates_.end() && at->address == address ? &*at : nullptr;
}

bool Classifier::belongs(uint64_t address, uint64_t context) const {
  const Candidate* c = find(address);
  return c && c->context == context;
}

bool Classifier::belongs_or_null(uint64_t address, uint64_t context) const {
  return address == 0 || belongs(address, context);
}

std::vector<Candidate> collect_candidates(const RemoteMemory& memory,
                                          const std::vector<LiveContext>& contexts,
                                          const ScanLimits& limits, size_t max_candidates,
                                          ScanTotals& totals) {
  std::vector<uint64_t> addresses;
  for (const LiveContext& context : contexts) addresses.push_back(context.address);
  std::sort(addresses.begin(), addresses.end());
  const uint64_t low = addresses.front(), span = addresses.back() - low;

  std::vector<Candidate> candidates;
  memory.scan_writable(limits, totals, [&](uint64_t address, std::span<const uint64_t> words) {
    for (size_t i = 0; i < words.size(); ++i) {
      if (words[i] - low > span) [[likely]]
        continue;
      if (!std::binary_search(addresses.begin(), addresses.end(), words[i])) continue;
      if (candidates.size() >= max_candidates) {
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

}  // namespace sigma
