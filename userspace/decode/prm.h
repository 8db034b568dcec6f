// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Firmware commands that programs pass through DevX: what they say of queues. The job's command
// and the device's answer in, a value out. No I/O, allocation or exceptions.
//
// Layouts: the public PRM; bit places as in openucx/ucx, src/uct/ib/mlx5/dv/ib_mlx5_ifc.h, and the
// kernel's include/linux/mlx5/mlx5_ifc.h. Bits are counted as there: from the most significant one.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "decode/completion_ring.h"
#include "decode/wqe.h"

namespace sigma {

enum class PrmObject : uint8_t { none, cq, qp, rmp, dct, other };
enum class PrmAction : uint8_t { none, create, modify };

// A place in a registered piece of user memory. A create command that is not by umem has none.
struct UmemPlace {
  uint32_t umem_id = 0;
  uint64_t offset = 0;
};

struct PrmFacts {
  PrmObject object = PrmObject::none;
  PrmAction action = PrmAction::none;
  uint16_t opcode = 0;             // of the command
  uint8_t status = 0;              // of the answer; 0: it was carried out
  uint32_t syndrome = 0;           // of the answer, where it failed
  std::optional<uint32_t> number;  // QP, CQ, RMP or DCT number

  std::optional<UmemPlace> ring, doorbell;
  std::optional<uint32_t> uar_page;

  // CQ
  std::optional<uint32_t> cq_entries, cqe_bytes, eqn;
  std::optional<bool> collapsed, overrun_ignore;
  std::optional<CqLayout> cq_layout;
  std::optional<uint8_t> mini_format, timestamp_format;  // CQ and QP: 0 free-running, 2 real time

  // QP. The send queue stands `sq_offset` bytes behind the ring's place: after the receive queue.
  std::optional<uint8_t> prm_service;  // qpc.st
  QpService service = QpService::unknown;
  std::optional<uint32_t> sq_blocks, sq_offset, rq_entries, rq_stride_bytes;
  std::optional<uint32_t> pd, user_index, send_cqn, recv_cqn, srqn;

  // RMP: a receive queue that several QPs share; MPRQ: receives of several packets
  std::optional<uint32_t> rmp_entries, rmp_stride_bytes, strides_per_wqe;

  // Transitions; also of a DCT's create command where it has them
  std::optional<uint8_t> to_state;  // enum ibv_qp_state
  std::optional<uint32_t> peer_qp_num, mtu_bytes, sq_psn, rq_psn, qkey;
  std::optional<std::array<uint8_t, 16>> peer_gid;
  std::optional<uint16_t> peer_lid, udp_source_port, pkey_index;
  std::optional<uint8_t> port, service_level, traffic_class, dscp, hop_limit, source_gid_index;
  std::optional<uint8_t> ack_timeout, retry_count, rnr_retry, min_rnr_timer;
  std::optional<uint64_t> dc_access_key;
};

// nullopt: no command about queues. `answer` may be empty: then status is 0 and number unknown. A
// command cut short gives what it has.
std::optional<PrmFacts> decode_prm(std::span<const std::byte> command,
                                   std::span<const std::byte> answer);

// What the device says of a queue pair: the answer of QUERY_QP, as it stands in a resource dump, that
// is segments, each with its length and the object's number (segments PRM_QUERY_QP of
// RDMA_NLDEV_ATTR_RES_RAW, which the kernel hands through; layout in mlx5_ifc.h,
// resource_dump_resource_segment). The action is none. nullopt: none is whole and says success.
std::optional<PrmFacts> decode_qp_dump(std::span<const std::byte> dump);

}  // namespace sigma
