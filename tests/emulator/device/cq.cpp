// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Writing completions: struct mlx5_cqe64 of <infiniband/mlx5dv.h>, in the last 64 bytes of an
// entry.
#include <infiniband/mlx5dv.h>

#include <cstring>

#include "clock.h"
#include "nic.h"

namespace connectx {
namespace {

constexpr uint8_t kVendorSyndrome = 0x88;
constexpr uint32_t kGrhPresent = 1u << 28;  // of flags_rqpn: type 1, a GRH

uint64_t time_stamp(const Cq& cq, uint64_t now_ns) {
  if (!cq.real_time) return nic_ticks(cq.device->config->clock, now_ns);
  const uint64_t utc_ns = clock_ns(CLOCK_REALTIME);
  return utc_ns / 1'000'000'000 << 32 | utc_ns % 1'000'000'000;
}

// True when the entry may be written. A full queue fails for good, as on the device.
bool claim_entry(Cq& cq, uint64_t now_ns) {
  if (cq.overrun) return false;
  if (cq.collapsed || cq.ignores_overrun) return true;
  const uint32_t consumed = be32toh(cq.doorbell[0]) & 0xffffff;
  if (((cq.produced - consumed) & 0xffffff) < cq.entries) return true;
  cq.overrun = true;
  note("%s: CQ %u overran", cq.device->config->name.c_str(), cq.cqn);
  OracleCq record{};
  record.header = oracle_header(*cq.device, now_ns);
  record.cqn = cq.cqn;
  record.event = 3;
  oracle_log(OracleType::cq, record);
  post_async_event(cq.async_channel, IBV_EVENT_CQ_ERR, cq.user_handle);
  return false;
}

// Small received payloads go into the CQE itself, over its first 32 bytes, and not to memory;
// libmlx5 copies them from there. On hardware this is what libmlx5 gets unless
// MLX5_SCATTER_TO_CQE=0.
bool scatter_to_cqe(const Cq& cq, const Qp& qp, const Completion& completion, mlx5_cqe64& image) {
  if (!completion.scatter_payload || cq.cqe_bytes != sizeof image || !qp.scatters_to_cqe)
    return false;
  memcpy(static_cast<void*>(&image), completion.scatter_payload, completion.bytes);
  return true;
}

}  // namespace

void write_cqe(Cq* queue, const Qp& qp, const Completion& completion) {
  if (!queue) return;
  Cq& cq = *queue;
  const uint64_t now_ns = monotonic_ns();
  if (!claim_entry(cq, now_ns)) return;
  const uint64_t slot = cq.collapsed ? 0 : cq.produced & (cq.entries - 1);
  const uint8_t owner = cq.collapsed ? 0 : cq.produced / cq.entries & 1;
  auto* cqe = reinterpret_cast<mlx5_cqe64*>(cq.ring + slot * cq.cqe_bytes + cq.cqe_bytes -
                                            sizeof(mlx5_cqe64));

  mlx5_cqe64 image{};
  image.srqn_uidx = htobe32(qp.user_index & 0xffffff);
  image.sop_drop_qpn = htobe32(static_cast<uint32_t>(completion.wqe_opcode) << 24 | qp.qpn);
  image.wqe_counter = htobe16(completion.wqe_counter);
  uint64_t ticks = 0;
  if (completion.syndrome != 0) {
    auto& error = reinterpret_cast<mlx5_err_cqe&>(image);
    error.vendor_err_synd = kVendorSyndrome;
    error.syndrome = completion.syndrome;
  } else {
    ticks = time_stamp(cq, now_ns);
    image.imm_inval_pkey = completion.immediate;
    image.byte_cnt = htobe32(static_cast<uint32_t>(completion.bytes));
    image.timestamp = htobe64(ticks);
    image.flags_rqpn = htobe32((completion.remote_qpn & 0xffffff) |
                               static_cast<uint32_t>(completion.service_level) << 24 |
                               (completion.global_route ? kGrhPresent : 0));
    image.slid = htobe16(completion.source_lid);
  }
  const bool scattered = scatter_to_cqe(cq, qp, completion, image);
  // The owner byte last: it hands the entry to the reader.
  memcpy(static_cast<void*>(cqe), &image, offsetof(mlx5_cqe64, op_own));
  const bool solicited = completion.solicited || completion.syndrome != 0;
  __atomic_store_n(
      &cqe->op_own,
      static_cast<uint8_t>(completion.opcode << 4 | (scattered ? MLX5_INLINE_SCATTER_32 : 0) |
                           (completion.solicited ? 2 : 0) | owner),
      __ATOMIC_RELEASE);

  OracleCqe record{};
  record.header = oracle_header(*cq.device, now_ns);
  record.cqn = cq.cqn;
  record.qpn = qp.qpn;
  record.life = qp.entry->life.load(std::memory_order_relaxed);
  record.wqe_counter = completion.wqe_counter;
  record.position = cq.produced;
  record.nic_ticks = ticks;
  record.scattered = scattered;
  record.opcode = completion.opcode;
  record.wqe_opcode = completion.wqe_opcode;
  record.syndrome = completion.syndrome;
  record.vendor_syndrome = completion.syndrome ? kVendorSyndrome : 0;
  record.bytes = static_cast<uint32_t>(completion.bytes);
  record.immediate = be32toh(completion.immediate);
  record.srqn_or_uidx = qp.user_index & 0xffffff;
  record.remote_qpn = completion.remote_qpn;
  record.srqn = completion.srqn;
  record.wqe_position = completion.wqe_position;
  oracle_log(OracleType::cqe, record);

  ++cq.produced;
  if (solicited) cq.last_solicited = cq.produced;
  if (cq.channel) check_arm(cq);

  uint64_t* counters = cq.device->counters;
  if (completion.opcode == MLX5_CQE_REQ_ERR)
    ++counters[completion.syndrome == MLX5_CQE_SYNDROME_WR_FLUSH_ERR ? req_cqe_flush_error
                                                                     : req_cqe_error];
  if (completion.opcode == MLX5_CQE_RESP_ERR)
    ++counters[completion.syndrome == MLX5_CQE_SYNDROME_WR_FLUSH_ERR ? resp_cqe_flush_error
                                                                     : resp_cqe_error];
}

// libmlx5 moves what it has not polled to the new ring, one position further on: the RESIZE_CQ
// entry has taken a position of its own.
void resize_cq(Cq& cq, uint8_t* ring, uint32_t entries, uint32_t cqe_bytes) {
  const uint64_t slot = cq.produced & (cq.entries - 1);
  auto* cqe = reinterpret_cast<mlx5_cqe64*>(cq.ring + slot * cq.cqe_bytes + cq.cqe_bytes -
                                            sizeof(mlx5_cqe64));
  __atomic_store_n(&cqe->op_own,
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
