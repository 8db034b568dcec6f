// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Device commands in the layout of the Programmer's Reference Manual: big-endian, fields named by
// their bit offset from the structure's start (bit 0 is the top bit of byte 0). Opcodes and offsets
// are facts about the hardware, checked by running UCX and mlx5dv programs against them.
#pragma once

#include <cstdint>
#include <cstring>
#include <span>

namespace connectx::prm {

struct Field {
  uint32_t bit;
  uint32_t width;  // up to 64
};

inline uint64_t get(std::span<const uint8_t> bytes, uint32_t base_bytes, Field field) {
  uint64_t value = 0;
  for (uint32_t i = 0; i < field.width; ++i) {
    const uint32_t bit = base_bytes * 8 + field.bit + i;
    const uint8_t byte = bit / 8 < bytes.size() ? bytes[bit / 8] : 0;
    value = value << 1 | (byte >> (7 - bit % 8) & 1);
  }
  return value;
}

inline void set(std::span<uint8_t> bytes, uint32_t base_bytes, Field field, uint64_t value) {
  for (uint32_t i = 0; i < field.width; ++i) {
    const uint32_t bit = base_bytes * 8 + field.bit + i;
    if (bit / 8 >= bytes.size()) return;
    const auto mask = static_cast<uint8_t>(0x80 >> bit % 8);
    if (value >> (field.width - 1 - i) & 1)
      bytes[bit / 8] |= mask;
    else
      bytes[bit / 8] &= static_cast<uint8_t>(~mask);
  }
}

constexpr Field byte_field(uint32_t byte, uint32_t width) {
  return {byte * 8, width};
}

enum Opcode : uint16_t {
  kQueryHcaCap = 0x100,
  kCreateMkey = 0x200,
  kDestroyMkey = 0x202,
  kCreateCq = 0x400,
  kDestroyCq = 0x401,
  kModifyCq = 0x403,
  kCreateQp = 0x500,
  kDestroyQp = 0x501,
  kRst2Init = 0x502,
  kInit2Rtr = 0x503,
  kRtr2Rts = 0x504,
  kRts2Rts = 0x505,
  k2Err = 0x507,
  k2Rst = 0x50a,
  kQueryQp = 0x50b,
  kInit2Init = 0x50e,
  kCreateDct = 0x710,
  kDestroyDct = 0x711,
  kDrainDct = 0x712,
  kQueryHcaVportContext = 0x762,
  kAllocPd = 0x800,
  kDeallocPd = 0x801,
  kQueryLag = 0x842,
  kCreateRmp = 0x90c,
  kDestroyRmp = 0x90e,
};

enum Status : uint8_t {
  kOk = 0,
  kBadOpcode = 2,
  kBadParameter = 3,
  kBadResource = 5,
  kLimitExceeded = 8,
  kBadInputLength = 0x50
};

// Every command: opcode, then op_mod; every answer: status, then syndrome; object numbers at 9.
inline constexpr Field kOpcodeField{0, 16}, kOpMod{0x30, 16}, kStatus{0, 8}, kSyndrome{0x20, 32};
inline constexpr Field kObjectNumber = byte_field(9, 24);

// QUERY_HCA_CAP answers from here on.
inline constexpr uint32_t kCapability = 0x10;
namespace cap {  // general device capabilities: op_mod >> 1 == 0
inline constexpr Field log_max_srq_sz{0x80, 8}, log_max_qp_sz{0x88, 8}, log_max_qp{0x9b, 5},
    log_max_srq{0xab, 5}, log_max_cq_sz{0xc8, 8}, log_max_cq{0xdb, 5}, log_max_mkey{0xea, 6},
    fixed_buffer_size{0x108, 1}, log_max_ra_req_dc{0x12a, 6}, log_max_ra_res_dc{0x13a, 6},
    dct{0x21a, 1}, port_type{0x1b6, 2}, num_ports{0x1b8, 8}, log_max_msg{0x1c3, 5},
    cqe_version{0x1fc, 4}, compact_address_vector{0x200, 1}, roce{0x21d, 1}, atomic{0x21e, 1},
    bf{0x260, 1}, log_bf_reg_size{0x26b, 5}, num_lag_ports{0x27c, 4}, log_max_rmp{0x383, 5},
    log_uar_page_sz{0x490, 16}, cqe_compression_128b{0x5be, 1}, cqe_compression{0x5bf, 1},
    cqe_compression_timeout{0x5c0, 16}, cqe_compression_max_num{0x5d0, 16};
}
namespace atomic_cap {  // op_mod >> 1 == 3
inline constexpr Field endianness_mode{0x40, 2}, operations{0x90, 16}, size_qp{0xb0, 16},
    size_dc{0xd0, 16};
}

// CREATE_CQ: the context at 0x10.
namespace cq {
inline constexpr uint32_t kContext = 0x10;
inline constexpr Field size_code{8, 3}, collapsed{11, 1}, overrun_ignore{14, 1}, compress{17, 1},
    compression_layout{25, 7}, log_entries{99, 5}, dbr_umem_id = byte_field(4, 32),
                                                   dbr_offset = byte_field(0x38, 64);
inline constexpr Field umem_offset = byte_field(0x50, 64),
                       umem_id = byte_field(0x58, 32);  // from the command's start
}  // namespace cq

// CREATE_QP and the transitions: the context at 0x18.
namespace qp {
inline constexpr uint32_t kContext = 0x18;
inline constexpr Field service = byte_field(1, 8), pd = byte_field(5, 24), mtu{64, 3},
                       log_rq_size{73, 4}, log_rq_stride{77, 3}, no_sq{80, 1}, log_sq_size{81, 4},
                       uar_page = byte_field(0xd, 24), doorbell_mode{0x80, 2},
                       user_index = byte_field(0x11, 24), remote_qpn = byte_field(0x15, 24),
                       retry_count{909, 3}, rnr_retry{912, 3}, next_send_psn = byte_field(0x79, 24),
                       send_cqn = byte_field(0x7d, 24), remote_read{0x490, 1},
                       remote_write{0x491, 1}, remote_atomic{0x492, 1}, min_rnr_nak{0x4a3, 5},
                       next_receive_psn = byte_field(0x95, 24), receive_cqn = byte_field(0x9d, 24),
                       dbr_offset = byte_field(0xa0, 64), q_key = byte_field(0xa8, 32),
                       rq_type{0x565, 3}, srqn = byte_field(0xad, 24),
                       scatter_responses = byte_field(0xc6, 8),
                       scatter_receives = byte_field(0xc7, 8), dbr_umem_id = byte_field(0xe4, 32),
                       state{0, 4};
// The primary path, from the context's start.
inline constexpr uint32_t kPath = kContext + 0x18;
inline constexpr Field path_grh{0x28, 1},
    path_rlid = byte_field(6, 16), path_ack_timeout{64, 5}, path_tclass{100, 8},
    path_rgid_high = byte_field(0x10, 64), path_rgid_low = byte_field(0x18, 64), path_sl{292, 4};
inline constexpr Field number = byte_field(9, 24), umem_offset = byte_field(0x100, 64),
                       umem_id = byte_field(0x108, 32);
enum ServiceType : uint8_t { kServiceRc = 0, kServiceUc = 1, kServiceUd = 2, kServiceDci = 5 };
enum DoorbellMode : uint8_t { kRecord = 0, kNoRecordExternal = 1 };
enum RqType : uint8_t { kRegular = 0, kShared = 1, kZeroSize = 3 };
}  // namespace qp

// CREATE_DCT: the context at 0x10.
namespace dct {
inline constexpr uint32_t kContext = 0x10;
inline constexpr Field user_index = byte_field(5, 24), cqn = byte_field(9, 24),
                       remote_read{0x6c, 1}, remote_write{0x6d, 1}, remote_atomic{0x6e, 1},
                       scatter_receives = byte_field(0x11, 8), min_rnr_nak{0x93, 5},
                       srqn = byte_field(0x15, 24), access_key = byte_field(0x20, 64);
}  // namespace dct

// CREATE_RMP: the context at 0x20, its work queue 0x30 further.
namespace rmp {
inline constexpr uint32_t kWq = 0x50;
inline constexpr Field wq_type{0, 4}, dbr_offset = byte_field(0x10, 64), log_stride{0x10c, 4},
                                      log_entries{0x11b, 5}, dbr_umem_id = byte_field(0x28, 32),
                                      umem_id = byte_field(0x2c, 32),
                                      umem_offset = byte_field(0x30, 64);
enum WqType : uint8_t { kList = 0, kCyclic = 1 };
}  // namespace rmp

// CREATE_MKEY: the entry at 0x10, the translation entries at 0x110.
namespace mkey {
inline constexpr uint32_t kEntry = 0x10, kTranslations = 0x110;
inline constexpr Field remote_atomic{0x11, 1}, remote_write{0x12, 1}, remote_read{0x13, 1},
    local_write{0x14, 1}, access_mode{0x16, 2},
    variant = byte_field(7, 8), start = byte_field(0x10, 64), length = byte_field(0x18, 64),
    length64{0x60, 1}, log_entity_bytes{0x1db, 5}, octwords = byte_field(0x34, 32);
enum AccessMode : uint8_t { kPhysical = 0, kMtt = 1, kKlm = 2, kKsm = 3 };
inline constexpr Field klm_bytes = byte_field(0, 32), klm_key = byte_field(4, 32),
                       klm_address = byte_field(8, 64);
}  // namespace mkey

}  // namespace connectx::prm
