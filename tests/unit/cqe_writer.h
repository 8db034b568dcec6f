// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Completions as an mlx5 device writes them, by the structs of <infiniband/mlx5dv.h> and the
// layouts that completion_ring.h cites. Shares no code with the decoder.
#pragma once

#include <endian.h>
#include <infiniband/mlx5dv.h>

#include <array>
#include <cstring>
#include <span>

namespace sigma {

using CqeBytes = std::array<std::byte, 64>;

struct CqeFields {
  uint8_t opcode = MLX5_CQE_REQ;
  uint32_t qp_num = 0x1234;
  uint8_t wqe_opcode = MLX5_OPCODE_RDMA_WRITE;
  uint16_t wqe_counter = 7;
  uint32_t bytes = 0;
  uint64_t timestamp = 0x0102030405060708;
  uint32_t imm = 0;  // host order
  uint32_t uidx = 0x42;
  uint32_t source_qp = 0;
  uint8_t format = 0, solicited = 0;
  uint8_t syndrome = 0, vendor = 0;
};

inline CqeBytes image_of(const CqeFields& fields, uint8_t owner, uint8_t signature = 0) {
  mlx5_cqe64 cqe{};
  cqe.srqn_uidx = htobe32(fields.uidx);
  cqe.imm_inval_pkey = htobe32(fields.imm);
  cqe.byte_cnt = htobe32(fields.bytes);
  cqe.timestamp = htobe64(fields.timestamp);
  cqe.flags_rqpn = htobe32(1u << 28 | 3u << 24 | fields.source_qp);
  cqe.slid = htobe16(0x11);
  cqe.ml_path = 0x85;
  cqe.sop_drop_qpn = htobe32(static_cast<uint32_t>(fields.wqe_opcode) << 24 | fields.qp_num);
  cqe.wqe_counter = htobe16(fields.wqe_counter);
  cqe.signature = signature;
  cqe.op_own =
      static_cast<uint8_t>(fields.opcode << 4 | fields.format << 2 | fields.solicited << 1 | owner);
  if (fields.opcode == MLX5_CQE_REQ_ERR || fields.opcode == MLX5_CQE_RESP_ERR) {
    auto& error = reinterpret_cast<mlx5_err_cqe&>(cqe);
    error.syndrome = fields.syndrome;
    error.vendor_err_synd = fields.vendor;
  }
  CqeBytes bytes;
  std::memcpy(bytes.data(), &cqe, sizeof(cqe));
  return bytes;
}

// One mini entry at `number` of an array: of a requester (counter, opcode) or a responder (hash).
inline void put_mini(CqeBytes& array, size_t number, const CqeFields& fields) {
  std::byte* at = array.data() + number * 8;
  const uint16_t counter = htobe16(fields.wqe_counter);
  const uint32_t hash = 0x5a5a5a5a, bytes = htobe32(fields.bytes);
  std::memcpy(at, &hash, sizeof(hash));
  if (fields.opcode == MLX5_CQE_REQ) {
    std::memcpy(at, &counter, sizeof(counter));
    at[2] = static_cast<std::byte>(fields.wqe_opcode);
  }
  std::memcpy(at + 4, &bytes, sizeof(bytes));
}

// The mark of a block of the enhanced layout: its number of mini entries, and the lap.
inline void put_block_mark(CqeBytes& array, size_t minis, uint8_t lap) {
  array[62] = static_cast<std::byte>(lap);
  array[63] = static_cast<std::byte>((minis - 1) << 4 | 3 << 2);
}

}  // namespace sigma
