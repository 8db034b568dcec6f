// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// The oracle: what the device did, in the order in which it did it. One file per process,
// $SIGMA_CONNECTX_DIR/oracle/<pid>.<start time>.log: a FileHeader, then records. ../oracle.py reads
// it and is the only other place that knows these layouts; change both and kOracleVersion.
//
// The file is mapped, so that what was logged survives a kill; it ends at the first zero type.
// Little-endian host integers. Times: CLOCK_MONOTONIC in ns. The caller holds the device lock.
#pragma once

#include <cstdint>

namespace connectx {

inline constexpr uint32_t kOracleVersion = 2;

enum class OracleType : uint16_t {
  end = 0,
  send_wqe = 1,     // a WQE was fetched from a send queue
  receive_wqe = 2,  // a WQE was taken from a receive queue, SRQ or RMP
  cqe = 3,          // a CQE was written
  qp = 4,           // a queue pair was created, changed its state or went away
  cq = 5,
  mr = 6,
  wire = 7,      // a retransmission, NAK or loss
  doorbell = 8,  // a GPU wrote a doorbell (a CPU's are not seen: the record stands for them)
};

struct OracleFileHeader {
  char magic[8];  // "CXORACLE"
  uint32_t version, pid;
  uint64_t start_ns;
  char command[40];
};
static_assert(sizeof(OracleFileHeader) == 64);

struct OracleHeader {
  uint16_t type, size;
  uint32_t device;  // index: line order of $SIGMA_CONNECTX_DIR/devices
  uint64_t time_ns;
};

struct OracleSendWqe {
  OracleHeader header;
  uint32_t qpn, life;
  uint64_t position;  // in WQEBBs since the life began; position & 0xffff is the WQE's index
  uint8_t opcode, opmod, fm_ce_se, ds;
  uint8_t basic_blocks, segments, is_inline, syndrome;
  uint64_t bytes;
  uint64_t local_address;  // first data segment; 0 when inline
  uint32_t lkey, rkey;
  uint64_t remote_address;
  uint32_t immediate;  // host byte order
  uint32_t destination_qpn, destination_device;
  uint32_t psn;
  uint64_t operand, compare;
};
static_assert(sizeof(OracleSendWqe) == 104);

struct OracleReceiveWqe {
  OracleHeader header;
  uint32_t qpn, life;
  uint32_t srqn;   // 0: the QP's own receive queue
  uint32_t index;  // as in the CQE's wqe_counter
  uint64_t local_address;
  uint32_t lkey, segments;
  uint64_t capacity;
};
static_assert(sizeof(OracleReceiveWqe) == 56);

struct OracleCqe {
  OracleHeader header;
  uint32_t cqn, qpn;
  uint32_t life;
  uint32_t wqe_counter;
  uint64_t position;   // CQEs since the queue was created
  uint64_t nic_ticks;  // the CQE's time stamp field (0 in error CQEs)
  uint8_t opcode;      // MLX5_CQE_*
  uint8_t wqe_opcode, syndrome, vendor_syndrome;
  uint32_t bytes;
  uint32_t immediate;  // host byte order
  uint32_t srqn_or_uidx;
  uint32_t remote_qpn;
  uint32_t srqn;
  uint64_t wqe_position;   // of the send WQE completed, as in OracleSendWqe
  uint32_t scattered;      // the payload stands in the CQE
  uint16_t session_size;   // completions in its compressed session; 0: a CQE of its own
  uint16_t session_index;  // place in the session; nic_ticks is the first one's
};
static_assert(sizeof(OracleCqe) == 88);

struct OracleQp {
  OracleHeader header;
  uint32_t qpn, life;
  uint8_t event;              // 0 created, 1 state changed, 2 destroyed
  uint8_t type, state, devx;  // type: enum ibv_qp_type, 0xf0 DCI, 0xf1 DCT
  uint32_t send_cqn, receive_cqn, srqn;
  uint32_t peer_qpn, peer_device, peer_lid, reserved;
  uint64_t send_ring, receive_ring, doorbell;
  uint32_t send_blocks, receive_entries;
  uint8_t peer_gid[16];
};
static_assert(sizeof(OracleQp) == 104);

struct OracleCq {
  OracleHeader header;
  uint32_t cqn;
  uint8_t
      event;  // 0 created, 2 destroyed, 3 overrun, 4 resized (a RESIZE_CQ entry took a position)
  uint8_t devx, collapsed, real_time;  // real_time: stamps are UTC, seconds << 32 | nanoseconds
  uint32_t entries, cqe_bytes;
  uint64_t ring, doorbell;
};
static_assert(sizeof(OracleCq) == 48);

struct OracleMr {
  OracleHeader header;
  uint32_t key, access;
  uint64_t address, length, iova;
  uint8_t event, reserved[7];  // 0 created, 2 destroyed
};
static_assert(sizeof(OracleMr) == 56);

enum class WireEvent : uint32_t {
  retransmit = 1,
  nak_sent = 2,
  lost = 3,
  timeout = 4,
  discarded = 5
};
struct OracleWire {
  OracleHeader header;
  uint32_t qpn, life;
  uint32_t event;  // WireEvent
  uint32_t psn;
  uint32_t detail;  // the Nak, or the number of requests sent again
  uint32_t reserved;
};
static_assert(sizeof(OracleWire) == 40);

struct OracleDoorbell {
  OracleHeader header;
  uint32_t qpn, life;
  uint32_t offset;               // in the UAR page
  uint16_t index, record_index;  // rung, and what the doorbell record said when the NIC looked
};
static_assert(sizeof(OracleDoorbell) == 32);

void oracle_open();   // at start and in a forked child; does nothing when switched off
void oracle_close();  // trims the file
// False: records need not be made.
bool oracle_on();
void oracle_append(const void* record, uint16_t bytes);

// record.header must hold the device and time; type and size are set here.
template <typename Record>
void oracle_log(OracleType type, Record& record) {
  record.header.type = static_cast<uint16_t>(type);
  record.header.size = sizeof record;
  oracle_append(&record, sizeof record);
}

}  // namespace connectx
