// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// One send WQE of an mlx5 queue, whoever wrote it: libmlx5, UCX, mlx5dv users, or a GPU kernel.
//
// No I/O, no allocation, no exceptions, no state: copied bytes in, a value out. The bytes may be
// anything; that a WQE is what it seems is for send_ring.h to say.
// Layouts: infiniband/mlx5dv.h, struct mlx5_wqe_*; what is not there cites its source.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "decode/ring_bytes.h"

namespace sigma {

inline constexpr size_t kWqeBlockBytes = 64;  // WQEBB: MLX5_SEND_WQE_BB
inline constexpr size_t kWqeUnitBytes = 16;   // what qpn_ds counts
inline constexpr uint8_t kMaxWqeBlocks = 16;  // ds has 6 bits

// What stands between a WQE's control segment and its operation's segments depends on the queue.
enum class QpService : uint8_t {
  unknown,  // only the control segment is decoded
  rc,
  uc,
  ud,           // address vector
  ud_underlay,  // IPoIB by source QPN: address vector, padding, Ethernet segment
  xrc,          // XRC segment
  dci,          // address vector
  raw,          // Ethernet segment
};

// enum ibv_qp_type, and MLX5_QP_FLAG_* of mlx5_ib_create_qp for driver types (DCI).
QpService service_of_qp(uint32_t qp_type, uint32_t driver_flags);
// qpc.st of the PRM, for queues made by DevX.
QpService service_of_prm(uint32_t st);
// enum ibv_qp_type of such a queue: DRIVER where verbs know no such service.
uint8_t qp_type_of(QpService service);

// Types that verbs know as the driver's own only. Beyond enum ibv_qp_type.
inline constexpr uint8_t kQpTypeDci = 0xf0, kQpTypeDct = 0xf1;
// Of a queue pair of IBV_QPT_DRIVER, by the flags of its create command.
uint8_t type_of_driver_qp(uint32_t driver_flags);

// Where one datagram goes. RoCE has a GID and no LID, InfiniBand a LID and maybe a GID.
struct WqePeer {
  uint32_t qp_num = 0;  // of UD; the DCT's number of DC
  bool has_gid = false;
  bool has_lid = false;
  uint8_t service_level = 0;
  uint8_t traffic_class = 0;
  uint8_t hop_limit = 0;
  uint8_t source_gid_index = 0;
  uint16_t lid = 0;
  uint32_t flow_label = 0;
  uint64_t key = 0;  // DC access key; Q_Key of UD
  std::array<uint8_t, 16> gid{};

  bool operator==(const WqePeer&) const = default;
};

struct Wqe {
  uint16_t index = 0;  // of its first block, modulo 65,536
  uint8_t raw_opcode = 0, opmod = 0;
  uint8_t wr_opcode = 0;  // enum ibv_wr_opcode, or enum sigma_wr_opcode beyond it
  uint8_t ds = 0;         // 16-byte units
  uint8_t blocks = 0;     // WQEBBs: ceil(ds / 4)
  uint32_t qp_num = 0;
  bool signaled = false, solicited = false, fenced = false;
  bool is_inline = false;   // some or all of its data
  bool malformed = false;   // its segments do not fit its size: what follows holds what did
  bool has_bytes = false;   // bytes, num_sge and the local fields are known
  bool has_local = false;   // local_addr and lkey: of the first data pointer
  bool has_remote = false;  // remote_addr and rkey
  bool has_imm = false;
  bool has_invalidate = false;  // rkey is the key to invalidate, or the key that UMR changes
  bool has_peer = false;
  uint16_t num_sge = 0;  // data pointers; inline data have none
  uint64_t bytes = 0;
  uint64_t local_addr = 0;
  uint64_t remote_addr = 0;
  uint32_t lkey = 0;
  uint32_t rkey = 0;
  uint32_t imm = 0;  // host order
  WqePeer peer;

  bool operator==(const Wqe&) const = default;
};

// The WQE at `offset` of `bytes`. False, with what the control segment says: no WQE (no control
// segment there, size 0), or one that is not wholly in `bytes`.
bool decode_wqe(const RingBytes& bytes, size_t offset, QpService service, Wqe& out);

// "RDMA_WRITE", "MMO", ...; "opcode" where unknown.
const char* wqe_opcode_name(uint8_t raw_opcode);

// enum ibv_wr_opcode or sigma_wr_opcode of a raw opcode, as far as the opcode alone tells it. (UMR
// WQEs carry memory windows, invalidations and registrations.)
uint8_t wr_opcode_of(uint8_t raw_opcode);

}  // namespace sigma
