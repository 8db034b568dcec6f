// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
#include "receive.h"

#include <infiniband/mlx5dv.h>

#include <cstring>

#include "clock.h"

namespace connectx {
namespace {

constexpr uint16_t kPrmEventSrqLastWqe = 0x13;

const uint8_t* next_receive(const Qp& qp, uint16_t& index) {
  if (qp.srq) {
    const Srq& srq = *qp.srq;
    const auto posted =
        static_cast<uint16_t>(be32toh(__atomic_load_n(srq.doorbell, __ATOMIC_ACQUIRE)));
    if (posted == srq.taken) return nullptr;
    index = srq.next;
    return srq.ring + (static_cast<size_t>(srq.next & (srq.entries - 1)) << srq.stride_shift);
  }
  const auto posted =
      static_cast<uint16_t>(be32toh(__atomic_load_n(&qp.doorbell[0], __ATOMIC_ACQUIRE)));
  index = static_cast<uint16_t>(qp.receives);
  if (qp.receive_entries == 0 || posted == index) return nullptr;
  return qp.receive_ring +
         (static_cast<size_t>(index & (qp.receive_entries - 1)) << qp.receive_shift);
}

}  // namespace

bool take_receive(Qp& qp, Receive& receive) {
  const uint8_t* wqe = next_receive(qp, receive.index);
  if (!wqe) return false;
  const uint32_t first = qp.srq ? qp.srq->segment_offset : 0;
  const uint32_t stride = 1u << (qp.srq ? qp.srq->stride_shift : qp.receive_shift);
  for (uint32_t at = first; at + sizeof(mlx5_wqe_data_seg) <= stride;
       at += sizeof(mlx5_wqe_data_seg)) {
    mlx5_wqe_data_seg segment;
    memcpy(&segment, wqe + at, sizeof segment);
    const uint32_t lkey = be32toh(segment.lkey), length = be32toh(segment.byte_count);
    if (lkey == MLX5_INVALID_LKEY) break;
    if (length == 0) continue;
    if (receive.segments++ == 0) {
      receive.first_address = be64toh(segment.addr);
      receive.first_lkey = lkey;
    }
    if (!translate(*qp.device, lkey, be64toh(segment.addr), length, IBV_ACCESS_LOCAL_WRITE,
                   receive.list))
      receive.bad_address = true;
  }
  if (qp.srq) {
    Srq& srq = *qp.srq;
    receive.srqn = srq.srqn;
    mlx5_wqe_srq_next_seg next;
    memcpy(&next, wqe, sizeof next);
    srq.next = srq.cyclic ? srq.next + 1 : be16toh(next.next_wqe_index);
    ++srq.taken;
    const auto posted = static_cast<uint16_t>(be32toh(*srq.doorbell));
    if (srq.limit && static_cast<uint16_t>(posted - srq.taken) < srq.limit) {
      srq.limit = 0;
      post_async_event(srq.async_channel, IBV_EVENT_SRQ_LIMIT_REACHED, srq.user_handle);
    }
  } else {
    ++qp.receives;
  }
  OracleReceiveWqe record{};
  record.header = oracle_header(*qp.device, monotonic_ns());
  record.qpn = qp.qpn;
  record.life = qp.entry->life.load(std::memory_order_relaxed);
  record.srqn = receive.srqn;
  record.index = receive.index;
  record.local_address = receive.first_address;
  record.lkey = receive.first_lkey;
  record.segments = receive.segments;
  record.capacity = receive.list.bytes();
  oracle_log(OracleType::receive_wqe, record);
  return true;
}

bool receive_posted(const Qp& qp) {
  uint16_t index;
  return next_receive(qp, index) != nullptr;
}

void complete_receive(Qp& qp, const RequestHeader& header, uint8_t opcode, const Receive& receive,
                      uint64_t bytes, uint8_t syndrome) {
  Completion completion;
  completion.opcode = syndrome ? uint8_t{MLX5_CQE_RESP_ERR} : opcode;
  completion.syndrome = syndrome;
  completion.wqe_counter = receive.index;
  completion.bytes = bytes;
  completion.immediate = header.immediate;
  completion.solicited = header.solicited;
  completion.srqn = receive.srqn;
  completion.source_lid = header.source_lid;
  completion.service_level = header.service_level;
  if (receive.scatter)
    completion.scatter_payload = reinterpret_cast<const uint8_t*>(receive.list.sges[0].address);
  if (qp.datagram() || qp.service == Service::dct) {
    completion.remote_qpn = header.source_qpn;
    completion.global_route = header.global_route;
  }
  write_cqe(qp.receive_cq, qp, completion);
}

unsigned flush_receive_queue(Qp& qp) {
  if (qp.srq) {
    if (!qp.last_wqe_reported) {
      qp.last_wqe_reported = true;
      post_qp_event(qp, IBV_EVENT_QP_LAST_WQE_REACHED);
      post_devx_event(*qp.device, qp.qpn, kPrmEventSrqLastWqe);
    }
    return 0;
  }
  unsigned flushed = 0;
  RequestHeader header{};
  for (Receive receive; take_receive(qp, receive); receive = Receive{}) {
    complete_receive(qp, header, 0, receive, 0, MLX5_CQE_SYNDROME_WR_FLUSH_ERR);
    ++flushed;
  }
  return flushed;
}

}  // namespace connectx
