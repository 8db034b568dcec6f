// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Writing completions: struct mlx5_cqe64 of <infiniband/mlx5dv.h>, in the last 64 bytes of an
// entry. A CQ that compresses holds completions back until the NIC's pass ends, and writes those
// that are alike as one session (cqe_session.cpp).
#include <infiniband/mlx5dv.h>

#include <algorithm>
#include <cstring>

#include "clock.h"
#include "cqe.h"
#include "nic.h"

namespace connectx {
namespace {

constexpr uint32_t kGrhPresent = 1u << 28;  // of flags_rqpn: type 1, a GRH
constexpr uint8_t kSolicited = 2;           // of op_own; hardware sets it in every error CQE

// What ConnectX hardware reports beside each syndrome, as logs of real systems show it:
// linux-nvme/nvme-cli#3268 (flush), openucx/ucx#5199 (retry), #1834 (access), #1770 (invalid
// request), #10755 (operation), FDio/csit#3988 (protection). Of the others none was found.
uint8_t vendor_syndrome(uint8_t syndrome) {
  switch (syndrome) {
    case MLX5_CQE_SYNDROME_LOCAL_PROT_ERR:
      return 0x52;
    case MLX5_CQE_SYNDROME_WR_FLUSH_ERR:
      return 0xf9;
    case MLX5_CQE_SYNDROME_REMOTE_INVAL_REQ_ERR:
      return 0x8a;
    case MLX5_CQE_SYNDROME_REMOTE_ACCESS_ERR:
      return 0x88;
    case MLX5_CQE_SYNDROME_REMOTE_OP_ERR:
      return 0x89;
    case MLX5_CQE_SYNDROME_TRANSPORT_RETRY_EXC_ERR:
      return 0x81;
    default:
      return 0;
  }
}

uint64_t time_stamp(const Cq& cq, uint64_t now_ns) {
  if (!cq.real_time) return nic_ticks(cq.device->config->clock, now_ns);
  const uint64_t utc_ns = clock_ns(CLOCK_REALTIME);
  return utc_ns / 1'000'000'000 << 32 | utc_ns % 1'000'000'000;
}

uint32_t free_entries(const Cq& cq) {
  if (cq.collapsed || cq.ignores_overrun) return cq.entries;
  const uint32_t consumed = be32toh(cq.doorbell[0]) & 0xffffff;
  const uint32_t used = (cq.produced - consumed) & 0xffffff;
  return used < cq.entries ? cq.entries - used : 0;
}

void log_overrun(Cq& cq, uint64_t now_ns) {
  note("%s: CQ %u overran", cq.device->config->name.c_str(), cq.cqn);
  OracleCq record{};
  record.header = oracle_header(*cq.device, now_ns);
  record.cqn = cq.cqn;
  record.event = 3;
  oracle_log(OracleType::cq, record);
  post_async_event(cq.async_channel, IBV_EVENT_CQ_ERR, cq.user_handle);
}

// True when the next entry may be written. A full queue fails for good, as on the device.
bool claim_entry(Cq& cq, uint64_t now_ns) {
  if (cq.overrun) return false;
  if (free_entries(cq) > 0) return true;
  cq.overrun = true;
  log_overrun(cq, now_ns);
  return false;
}

mlx5_cqe64 image_of(const Qp& qp, const Completion& completion) {
  mlx5_cqe64 image{};
  image.srqn_uidx = htobe32(qp.user_index & 0xffffff);
  image.sop_drop_qpn = htobe32(static_cast<uint32_t>(completion.wqe_opcode) << 24 | qp.qpn);
  image.wqe_counter = htobe16(completion.wqe_counter);
  if (completion.syndrome != 0) {
    auto& error = reinterpret_cast<mlx5_err_cqe&>(image);
    error.vendor_err_synd = vendor_syndrome(completion.syndrome);
    error.syndrome = completion.syndrome;
  } else {
    image.imm_inval_pkey = completion.immediate;
    image.byte_cnt = htobe32(static_cast<uint32_t>(completion.bytes));
    image.flags_rqpn = htobe32((completion.remote_qpn & 0xffffff) |
                               static_cast<uint32_t>(completion.service_level) << 24 |
                               (completion.global_route ? kGrhPresent : 0));
    image.slid = htobe16(completion.source_lid);
  }
  const bool solicited = completion.solicited || completion.syndrome != 0;
  image.op_own = static_cast<uint8_t>(completion.opcode << 4 | (solicited ? kSolicited : 0));
  return image;
}

OracleCqe record_of(const Cq& cq, const Qp& qp, const Completion& completion) {
  OracleCqe record{};
  record.cqn = cq.cqn;
  record.qpn = qp.qpn;
  record.life = qp.entry->life.load(std::memory_order_relaxed);
  record.wqe_counter = completion.wqe_counter;
  record.opcode = completion.opcode;
  record.wqe_opcode = completion.wqe_opcode;
  record.syndrome = completion.syndrome;
  record.vendor_syndrome = completion.syndrome ? vendor_syndrome(completion.syndrome) : 0;
  record.bytes = static_cast<uint32_t>(completion.bytes);
  record.immediate = be32toh(completion.immediate);
  record.srqn_or_uidx = qp.user_index & 0xffffff;
  record.remote_qpn = completion.remote_qpn;
  record.srqn = completion.srqn;
  record.wqe_position = completion.wqe_position;
  return record;
}

// Small payloads go into the entry itself and not to memory, from where libmlx5 and UCX copy them:
// over the first 32 bytes of a 64-byte CQE, or into the 64 bytes before the CQE proper of a
// 128-byte one. On hardware this is what libmlx5 gets unless MLX5_SCATTER_TO_CQE=0.
void scatter(const Cq& cq, const Completion& completion, mlx5_cqe64& image, uint8_t* entry) {
  if (cq.cqe_bytes == sizeof image) {
    memcpy(static_cast<void*>(&image), completion.scatter_payload, completion.bytes);
    image.op_own |= MLX5_INLINE_SCATTER_32;
  } else {
    memcpy(entry, completion.scatter_payload, completion.bytes);
    image.op_own |= MLX5_INLINE_SCATTER_64;
  }
}

void count_errors(const Cq& cq, const Completion& completion) {
  uint64_t* counters = cq.device->counters;
  const bool flush = completion.syndrome == MLX5_CQE_SYNDROME_WR_FLUSH_ERR;
  if (completion.opcode == MLX5_CQE_REQ_ERR)
    ++counters[flush ? req_cqe_flush_error : req_cqe_error];
  if (completion.opcode == MLX5_CQE_RESP_ERR)
    ++counters[flush ? resp_cqe_flush_error : resp_cqe_error];
}

}  // namespace

uint8_t* cqe_entry(const Cq& cq, uint64_t position) {
  const uint64_t slot = cq.collapsed ? 0 : position & (cq.entries - 1);
  return cq.ring + slot * cq.cqe_bytes;
}

mlx5_cqe64* cqe_at(const Cq& cq, uint64_t position) {
  return reinterpret_cast<mlx5_cqe64*>(cqe_entry(cq, position) + cq.cqe_bytes - sizeof(mlx5_cqe64));
}

void put_cqe(Cq& cq, const mlx5_cqe64& image) {
  mlx5_cqe64* cqe = cqe_at(cq, cq.produced);
  const uint8_t owner = cq.collapsed ? 0 : cq.produced / cq.entries & 1;
  // The owner byte last: it hands the entry to the reader.
  memcpy(static_cast<void*>(cqe), &image, offsetof(mlx5_cqe64, op_own));
  __atomic_store_n(&cqe->op_own, static_cast<uint8_t>(image.op_own | owner), __ATOMIC_RELEASE);
}

void log_cqe(Cq& cq, OracleCqe& record, uint64_t now_ns, uint64_t ticks, bool solicited) {
  record.header = oracle_header(*cq.device, now_ns);
  record.position = cq.produced++;
  record.nic_ticks = ticks;
  oracle_log(OracleType::cqe, record);
  if (solicited) cq.last_solicited = cq.produced;
}

void write_cqe(Cq* queue, const Qp& qp, const Completion& completion) {
  if (!queue) return;
  Cq& cq = *queue;
  HeldCqe next{image_of(qp, completion), record_of(cq, qp, completion)};
  count_errors(cq, completion);
  if (cq.session_limit > 1 && !cq.overrun) {
    if (may_be_compressed(next) && !completion.scatter_payload) {
      hold_cqe(cq, next);
      return;
    }
    release_cqes(cq);
  }
  const uint64_t now_ns = monotonic_ns();
  if (!claim_entry(cq, now_ns)) return;
  const uint64_t ticks = completion.syndrome ? 0 : time_stamp(cq, now_ns);
  if (!completion.syndrome) next.image.timestamp = htobe64(ticks);
  if (completion.scatter_payload) {
    scatter(cq, completion, next.image, cqe_entry(cq, cq.produced));
    next.record.scattered = 1;
  }
  put_cqe(cq, next.image);
  log_cqe(cq, next.record, now_ns, ticks, next.image.op_own & kSolicited);
  if (cq.channel) check_arm(cq);
}

void release_cqes(Cq& cq) {
  if (cq.held.empty()) return;
  const uint64_t now_ns = monotonic_ns();
  const uint64_t ticks = time_stamp(cq, now_ns);
  for (size_t at = 0; at < cq.held.size();) {
    // UCX 1.13 gives all entries of a session the owner bit of its first, so none crosses the
    // ring's end, where that bit changes.
    const uint64_t until_end = cq.entries - (cq.produced & (cq.entries - 1));
    const size_t count = std::min<uint64_t>(
        {cq.held.size() - at, until_end, std::max<uint32_t>(free_entries(cq), 1)});
    if (!claim_entry(cq, now_ns)) break;
    HeldCqe* first = &cq.held[at];
    for (size_t i = 0; i < count; ++i) first[i].image.timestamp = htobe64(ticks);
    if (count > 1)
      put_session(cq, first, count);
    else
      put_cqe(cq, first->image);
    for (size_t i = 0; i < count; ++i) {
      first[i].record.session_size = count > 1 ? static_cast<uint16_t>(count) : 0;
      first[i].record.session_index = static_cast<uint16_t>(i);
      log_cqe(cq, first[i].record, now_ns, ticks, first[i].image.op_own & kSolicited);
    }
    at += count;
  }
  cq.held.clear();
  if (cq.channel) check_arm(cq);
}

// libmlx5 moves what it has not polled to the new ring, one position further on: the RESIZE_CQ
// entry has taken a position of its own.
void resize_cq(Cq& cq, uint8_t* ring, uint32_t entries, uint32_t cqe_bytes) {
  __atomic_store_n(&cqe_at(cq, cq.produced)->op_own,
                   static_cast<uint8_t>(MLX5_CQE_RESIZE_CQ << 4 | (cq.produced / cq.entries & 1)),
                   __ATOMIC_RELEASE);
  ++cq.produced;
  cq.ring = ring;
  cq.entries = entries;
  cq.cqe_bytes = cqe_bytes;
  OracleCq record{};
  record.header = oracle_header(*cq.device, monotonic_ns());
  record.cqn = cq.cqn;
  record.event = 4;
  record.entries = entries;
  record.cqe_bytes = cqe_bytes;
  record.ring = reinterpret_cast<uint64_t>(ring);
  oracle_log(OracleType::cq, record);
}

}  // namespace connectx
