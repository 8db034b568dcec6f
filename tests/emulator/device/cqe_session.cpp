// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Sessions of compressed completions: cqe.h has the layout.
#include <algorithm>
#include <cstring>

#include "cqe.h"
#include "nic.h"

namespace connectx {
namespace {

constexpr size_t kMinisPerEntry = sizeof(mlx5_cqe64) / 8;
constexpr uint8_t kCompressed = 3 << 2;  // the format bits of op_own
constexpr uint32_t kQpnMask = 0xffffff;

struct RequesterMini {
  uint16_t wqe_counter;
  uint8_t wqe_opcode, reserved;
  uint32_t byte_cnt;
};
struct ResponderMini {
  uint16_t checksum, stride_index;
  uint32_t byte_cnt;
};
static_assert(sizeof(RequesterMini) == 8 && sizeof(ResponderMini) == 8);

uint8_t opcode_of(const HeldCqe& cqe) {
  return cqe.image.op_own >> 4;
}

// Whether a reader who knows the first completion can restore this one, `place` later.
bool goes_with(const HeldCqe& first, const HeldCqe& next, size_t place) {
  const mlx5_cqe64 &a = first.image, &b = next.image;
  if (a.op_own != b.op_own || a.srqn_uidx != b.srqn_uidx || a.imm_inval_pkey != b.imm_inval_pkey ||
      a.flags_rqpn != b.flags_rqpn || a.slid != b.slid || first.record.life != next.record.life)
    return false;
  if (opcode_of(first) == MLX5_CQE_REQ)
    return ((be32toh(a.sop_drop_qpn) ^ be32toh(b.sop_drop_qpn)) & kQpnMask) == 0;
  return a.sop_drop_qpn == b.sop_drop_qpn && first.record.srqn == next.record.srqn &&
         static_cast<uint16_t>(be16toh(a.wqe_counter) + place) == be16toh(b.wqe_counter);
}

void write_mini(const HeldCqe& cqe, uint8_t* out) {
  if (opcode_of(cqe) == MLX5_CQE_REQ) {
    const RequesterMini mini{cqe.image.wqe_counter, cqe.record.wqe_opcode, 0, cqe.image.byte_cnt};
    memcpy(out, &mini, sizeof mini);
  } else {
    const ResponderMini mini{0, 0, cqe.image.byte_cnt};
    memcpy(out, &mini, sizeof mini);
  }
}

}  // namespace

bool may_be_compressed(const HeldCqe& cqe) {
  const uint8_t opcode = opcode_of(cqe);
  return opcode == MLX5_CQE_REQ || opcode == MLX5_CQE_RESP_SEND || opcode == MLX5_CQE_RESP_WR_IMM ||
         opcode == MLX5_CQE_RESP_SEND_IMM;
}

void hold_cqe(Cq& cq, const HeldCqe& cqe) {
  if (!cq.held.empty() && !goes_with(cq.held.front(), cqe, cq.held.size())) release_cqes(cq);
  if (cq.held.empty()) nic().holding.push_back(&cq);
  cq.held.push_back(cqe);
  if (cq.held.size() == cq.session_limit) release_cqes(cq);
}

void put_session(Cq& cq, const HeldCqe* cqes, size_t count) {
  for (size_t first = 0; first < count; first += kMinisPerEntry) {
    uint8_t minis[sizeof(mlx5_cqe64)] = {};
    const size_t end = std::min(count, first + kMinisPerEntry);
    for (size_t i = first; i < end; ++i) write_mini(cqes[i], minis + (i - first) * 8);
    memcpy(static_cast<void*>(cqe_at(cq, cq.produced + std::max<size_t>(first, 1))), minis,
           sizeof minis);
  }
  mlx5_cqe64 title = cqes[0].image;
  title.byte_cnt = htobe32(static_cast<uint32_t>(count));
  title.op_own |= kCompressed;
  put_cqe(cq, title);
}

}  // namespace connectx
