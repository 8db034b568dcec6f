// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// What libibverbs' opcodes mean to an operation: which of its fields a request of that opcode has.
// Numbers: infiniband/verbs.h, enum ibv_wr_opcode and enum ibv_wc_opcode.
#pragma once

#include <cstdint>

#include "session/operation.h"

namespace sigma {

struct WrTraits {
  Opcode opcode;
  bool remote;  // has remote_addr and rkey
  bool imm;     // has immediate data
  bool inv;     // rkey is the key to invalidate
};
WrTraits traits_of_wr(uint8_t wr_opcode);

enum class WcSide : uint8_t {
  send,
  recv,
  tag_matching,  // not one work request a completion: never matched
};

struct WcTraits {
  WcSide side;
  // Of sends this is the base opcode: a completion says SEND also of SEND_WITH_IMM and _WITH_INV,
  // and RDMA_WRITE also of RDMA_WRITE_WITH_IMM.
  Opcode opcode;
  bool bytes;  // byte_len is the number of bytes transferred
};
WcTraits traits_of_wc(uint32_t wc_opcode);

}  // namespace sigma
