// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Device commands as GPU-initiated stacks send them through DevX: builders for programs that really
// create such queues, and for tests of whoever decodes the commands. Written from the documented
// layouts, sharing nothing with a decoder.
//
// Layouts: the Programmer's Reference Manual as struct mlx5_ifc_* describe it (rdma-core, Linux).
// Bits are counted from the structure's start, bit 0 being the top bit of byte 0.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace prm_blobs {

using Blob = std::vector<uint8_t>;

class Writer {
 public:
  explicit Writer(size_t bytes) : blob_(bytes, 0) {}
  void put(size_t base_bytes, size_t bit, unsigned width, uint64_t value) {
    for (unsigned i = 0; i < width; ++i) {
      const size_t at = base_bytes * 8 + bit + i;
      const auto mask = static_cast<uint8_t>(0x80u >> at % 8);
      if (value >> (width - 1 - i) & 1)
        blob_[at / 8] = static_cast<uint8_t>(blob_[at / 8] | mask);
      else
        blob_[at / 8] = static_cast<uint8_t>(blob_[at / 8] & ~mask);
    }
  }
  Blob take() const { return blob_; }

 private:
  Blob blob_;
};

enum Opcode : uint16_t {
  kCreateCq = 0x400,
  kDestroyCq = 0x401,
  kCreateQp = 0x500,
  kDestroyQp = 0x501,
  kRst2Init = 0x502,
  kInit2Rtr = 0x503,
  kRtr2Rts = 0x504,
  k2Err = 0x507,
  k2Rst = 0x50a,
  kQueryQp = 0x50b,
};

// A umem that holds a ring or a doorbell record, and where in it.
struct Place {
  uint32_t umem_id = 0;
  uint64_t offset = 0;
};

struct Cq {
  unsigned log_entries = 0;
  bool cqe_128_bytes = false, collapsed = false, overrun_ignored = false;
  uint32_t uar_page = 0, eqn = 0;
  Place ring, doorbell;
};

inline Blob create_cq(const Cq& cq) {
  constexpr size_t kBytes = 0x110, kContext = 0x10;
  Writer out(kBytes);
  out.put(0, 0, 16, kCreateCq);
  out.put(kContext, 6, 1, 1);  // dbr_umem_valid
  out.put(kContext, 8, 3, cq.cqe_128_bytes ? 1 : 0);
  out.put(kContext, 11, 1, cq.collapsed);        // cc
  out.put(kContext, 14, 1, cq.overrun_ignored);  // oi
  out.put(kContext, 4 * 8, 32, cq.doorbell.umem_id);
  out.put(kContext, 99, 5, cq.log_entries);
  out.put(kContext, 13 * 8, 24, cq.uar_page);
  out.put(kContext, 0x14 * 8, 32, cq.eqn);
  out.put(kContext, 0x38 * 8, 64, cq.doorbell.offset);
  out.put(0, 0x50 * 8, 64, cq.ring.offset);
  out.put(0, 0x58 * 8, 32, cq.ring.umem_id);
  out.put(0, 0x5c * 8, 1, 1);  // cq_umem_valid
  return out.take();
}

enum class Transport : uint8_t { rc = 0, uc = 1, ud = 2, dci = 5 };
enum class DoorbellMode : uint8_t { valid_record = 0, no_record_external = 1 };  // send_dbr_mode

struct Qp {
  Transport transport = Transport::rc;
  uint32_t pd = 0, uar_page = 0, user_index = 0;
  unsigned log_send_blocks = 0;
  uint32_t send_cqn = 0, receive_cqn = 0;
  Place ring, doorbell;
  DoorbellMode doorbell_mode = DoorbellMode::valid_record;
  // 3: none (zero size). 1: of an SRQ. 0: of its own, in front of the send queue.
  unsigned receive_type = 3, log_receive_entries = 0, log_receive_stride = 0;
  uint32_t srqn = 0;
};

inline Blob create_qp(const Qp& qp) {
  constexpr size_t kBytes = 0x110, kContext = 0x18;
  Writer out(kBytes);
  out.put(0, 0, 16, kCreateQp);
  out.put(kContext, 8, 8, static_cast<uint8_t>(qp.transport));
  out.put(kContext, 19, 2, 3);  // pm_state: migrated
  out.put(kContext, 5 * 8, 24, qp.pd);
  out.put(kContext, 73, 4, qp.log_receive_entries);
  out.put(kContext, 77, 3, qp.log_receive_stride);
  out.put(kContext, 80, 1, 0);  // no_sq
  out.put(kContext, 81, 4, qp.log_send_blocks);
  out.put(kContext, 0xd * 8, 24, qp.uar_page);
  out.put(kContext, 0x10 * 8, 2, static_cast<uint8_t>(qp.doorbell_mode));
  out.put(kContext, 0x11 * 8, 24, qp.user_index);
  out.put(kContext, 0x7d * 8, 24, qp.send_cqn);
  out.put(kContext, 0x9d * 8, 24, qp.receive_cqn);
  out.put(kContext, 0xa0 * 8, 64, qp.doorbell.offset);
  out.put(kContext, 0x565, 3, qp.receive_type);
  out.put(kContext, 0xad * 8, 24, qp.srqn);
  out.put(kContext, 1667, 1, qp.doorbell_mode == DoorbellMode::valid_record);  // dbr_umem_valid
  out.put(kContext, 0xe4 * 8, 32, qp.doorbell.umem_id);
  out.put(0, 0x100 * 8, 64, qp.ring.offset);
  out.put(0, 0x108 * 8, 32, qp.ring.umem_id);
  out.put(0, 0x10c * 8, 1, 1);  // wq_umem_valid
  return out.take();
}

// Everything that the transitions of one queue pair set.
struct Connection {
  uint32_t qpn = 0, peer_qpn = 0;
  bool ethernet = false;
  uint16_t peer_lid = 0;
  std::array<uint8_t, 16> peer_gid{};
  std::array<uint8_t, 6> peer_mac{};
  unsigned gid_index = 0, hop_limit = 64, service_level = 0;
  unsigned traffic_class = 0;  // InfiniBand with a GRH
  unsigned dscp = 0;           // RoCE: traffic class >> 2
  uint16_t udp_source_port = 0;
  unsigned mtu = 5;  // enum ibv_mtu
  unsigned ack_timeout = 20, retries = 7, rnr_retries = 7, min_rnr_timer = 12;
  uint32_t send_psn = 0, receive_psn = 0;
  unsigned log_outstanding_reads = 4;
  bool remote_read = true, remote_write = true, remote_atomic = true;
};

inline constexpr size_t kTransitionBytes = 0x110, kQpContext = 0x18, kPath = kQpContext + 0x18;

inline Writer transition(Opcode opcode, uint32_t qpn) {
  Writer out(kTransitionBytes);
  out.put(0, 0, 16, opcode);
  out.put(0, 9 * 8, 24, qpn);
  return out;
}

inline void put_access(Writer& out, const Connection& connection) {
  out.put(kQpContext, 0x490, 1, connection.remote_read);
  out.put(kQpContext, 0x491, 1, connection.remote_write);
  out.put(kQpContext, 0x492, 1, connection.remote_atomic);
  out.put(kQpContext, 0x48c, 4, connection.remote_atomic ? 3 : 0);  // atomic mode: up to 8 bytes
}

inline Blob rst2init(const Connection& connection) {
  Writer out = transition(kRst2Init, connection.qpn);
  put_access(out, connection);
  out.put(kQpContext, 19, 2, 3);   // pm_state
  out.put(kPath, 0x25 * 8, 8, 1);  // port
  return out.take();
}

inline Blob init2rtr(const Connection& connection) {
  Writer out = transition(kInit2Rtr, connection.qpn);
  put_access(out, connection);
  out.put(kQpContext, 64, 3, connection.mtu);
  out.put(kQpContext, 67, 5, 30);  // log_msg_max
  out.put(kQpContext, 0x15 * 8, 24, connection.peer_qpn);
  out.put(kQpContext, 0x4a3, 5, connection.min_rnr_timer);
  out.put(kQpContext, 0x95 * 8, 24, connection.receive_psn);
  out.put(kQpContext, 0x488, 3, connection.log_outstanding_reads);  // log_rra_max
  out.put(kPath, 9 * 8, 8, connection.gid_index);
  out.put(kPath, 0xb * 8, 8, connection.hop_limit);
  for (size_t i = 0; i < connection.peer_gid.size(); ++i)
    out.put(kPath, (0x10 + i) * 8, 8, connection.peer_gid[i]);
  out.put(kPath, 0x25 * 8, 8, 1);
  if (connection.ethernet) {
    out.put(kPath, 266, 6, connection.dscp);
    out.put(kPath, 0x22 * 8, 16, connection.udp_source_port);
    out.put(kPath, 292 - 3, 3, connection.service_level);  // eth_prio
    for (size_t i = 0; i < connection.peer_mac.size(); ++i)
      out.put(kPath, (0x26 + i) * 8, 8, connection.peer_mac[i]);
  } else {
    out.put(kPath, 6 * 8, 16, connection.peer_lid);
    out.put(kPath, 100, 8, connection.traffic_class);
    out.put(kPath, 292, 4, connection.service_level);
  }
  return out.take();
}

inline Blob rtr2rts(const Connection& connection) {
  Writer out = transition(kRtr2Rts, connection.qpn);
  out.put(kQpContext, 904, 3, connection.log_outstanding_reads);  // log_sra_max
  out.put(kQpContext, 909, 3, connection.retries);
  out.put(kQpContext, 912, 3, connection.rnr_retries);
  out.put(kQpContext, 0x79 * 8, 24, connection.send_psn);
  out.put(kPath, 64, 5, connection.ack_timeout);
  return out.take();
}

}  // namespace prm_blobs
