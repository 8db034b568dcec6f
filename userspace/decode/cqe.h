// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// One completion of an mlx5 completion ring: 64 bytes in, a value out. No I/O, allocation,
// exceptions or state; what a ring of them says is for completion_ring.h.
// Layout: infiniband/mlx5dv.h, struct mlx5_cqe64, mlx5_err_cqe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace sigma {

inline constexpr size_t kCqeBytes = 64;  // what is decoded; of 128-byte entries the second half

enum class CqeKind : uint8_t {
  requester,
  responder,
  requester_error,
  responder_error,
  resize,     // the ring ends here, and goes on in the new buffer
  no_packet,  // tag matching: an operation of the device without a message
  signature_error,
  invalid,  // never written, or given back to the device
  other,
};

struct Cqe {
  CqeKind kind = CqeKind::invalid;
  uint8_t raw_opcode = 0;  // op_own >> 4
  uint8_t format = 0;      // op_own bits 3..2: 0, 1 and 2: payload in the entry, 3: compressed
  uint8_t owner = 0;       // op_own bit 0
  uint8_t iteration = 0;   // lap count of the enhanced compression layout (the signature's place)
  uint32_t qp_num = 0;
  uint32_t srqn_uidx = 0;    // user index of the QP (CQE version 1), or the SRQ's number
  uint16_t wqe_counter = 0;  // requester: index of the WQE's first block; responder: of the receive
  uint8_t wqe_opcode = 0;    // requester, also of errors: raw opcode of the WQE
  bool has_timestamp = false;
  uint64_t timestamp = 0;  // NIC clock, or real time (the CQ's format)
  bool has_bytes = false;  // responder, RDMA read; else only the post knows
  uint32_t bytes = 0;
  bool has_imm = false, has_invalidate = false;
  uint32_t imm = 0;  // host order; or the rkey that was invalidated
  bool solicited = false;
  bool tag_matching = false;  // of a tag matching SRQ: one work request may have several
  bool has_source = false;    // responder, where no payload stands over these
  uint32_t source_qp = 0;
  uint16_t source_lid = 0;
  uint8_t service_level = 0, dlid_path_bits = 0;
  bool grh = false;
  // In the terms of libibverbs
  uint8_t status = 0;     // enum ibv_wc_status
  uint8_t wc_opcode = 0;  // enum ibv_wc_opcode; with an error of the requester, its WQE's
  uint8_t syndrome = 0, vendor_err = 0;
  bool flushed = false;  // an error that only follows from an earlier one

  bool operator==(const Cqe&) const = default;
};

constexpr bool is_requester(const Cqe& cqe) {
  return cqe.kind == CqeKind::requester || cqe.kind == CqeKind::requester_error;
}
constexpr bool is_responder(const Cqe& cqe) {
  return cqe.kind == CqeKind::responder || cqe.kind == CqeKind::responder_error;
}

// Of a compressed title this gives what all its completions share.
Cqe decode_cqe(std::span<const std::byte, kCqeBytes> bytes);

// enum ibv_wc_status of an error's syndrome, as libmlx5 translates it.
uint8_t wc_status_of(uint8_t syndrome);

inline constexpr size_t kMiniCqeBytes = 8;
inline constexpr size_t kCqeByteCount = 44;  // place of byte_cnt; a basic title has its count there
// One completion of a compressed session: the title, and what its mini entry says otherwise.
// `counter_step` is its distance from the title in completions; responders have no counter of their
// own.
Cqe expand_mini(const Cqe& title, std::span<const std::byte, kMiniCqeBytes> mini,
                uint16_t counter_step);

}  // namespace sigma
