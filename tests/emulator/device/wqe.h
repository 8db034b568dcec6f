// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// A send WQE, decoded from the ring. Layouts: struct mlx5_wqe_* of <infiniband/mlx5dv.h>; the
// masked atomics' segments as providers post them (opmod 8 + log2(bytes) - 2).
#pragma once

#include <cstddef>
#include <cstdint>

#include "fabric.h"

namespace connectx {

struct DataSegment {
  uint64_t address;  // of inline data: in this process, in the ring itself
  uint32_t length, lkey;
};

struct AddressVector {
  uint32_t qkey, qpn;
  uint64_t dc_key;
  uint16_t rlid;
  uint8_t service_level, traffic_class;
  bool global_route;
  uint8_t rgid[16];
};

struct Wqe {
  uint16_t index;
  uint8_t opcode, opmod, fm_ce_se, ds, basic_blocks;
  uint8_t syndrome;  // not 0: the WQE is wrong, and this is the CQE's syndrome
  uint32_t qpn;
  uint32_t immediate;  // big-endian
  bool has_address_vector, is_inline;
  AddressVector address;
  uint64_t remote_address;
  uint32_t rkey;
  uint64_t operand, compare, operand_mask, compare_mask;
  uint32_t atomic_bytes;
  uint64_t bytes;
  unsigned segments;
  DataSegment data[kMaxSges];

  bool signaled() const { return (fm_ce_se & 0x0c) >= 8; }
  bool solicited() const { return fm_ce_se & 2; }
};

// Local operations complete without a request on the wire.
bool is_local_opcode(uint8_t opcode);

// `blocks` is the ring's size in WQEBBs, a power of two.
void decode_wqe(const uint8_t* ring, uint32_t blocks, uint16_t index, bool datagram, Wqe& wqe);

}  // namespace connectx
