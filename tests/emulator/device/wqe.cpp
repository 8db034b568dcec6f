// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
#include "wqe.h"

#include <infiniband/mlx5dv.h>

#include <algorithm>
#include <array>
#include <cstring>

namespace connectx {
namespace {

// Walks a WQE's 16-byte segments; the ring's end may fall anywhere between two of them.
class SegmentReader {
 public:
  SegmentReader(const uint8_t* ring, uint32_t blocks, uint16_t index, uint32_t ds)
      : ring_(ring),
        ring_bytes_(blocks * MLX5_SEND_WQE_BB),
        offset_(index % blocks * MLX5_SEND_WQE_BB),
        left_(ds * 16) {}

  uint32_t left() const { return left_; }
  // A copy of a fixed-size segment; zeros when the WQE is too short (overran() tells).
  template <typename Segment>
  Segment take() {
    Segment segment{};
    auto* out = reinterpret_cast<uint8_t*>(&segment);
    for (size_t done = 0; done < sizeof segment; done += 16) {
      if (left_ < 16) {
        overran_ = true;
        return segment;
      }
      memcpy(out + done, ring_ + offset_, 16);
      skip(16);
    }
    return segment;
  }
  uint32_t peek32() const {
    uint32_t word;
    memcpy(&word, ring_ + offset_, sizeof word);
    return be32toh(word);
  }
  const uint8_t* at() const { return ring_ + offset_; }
  const uint8_t* ring() const { return ring_; }
  uint32_t until_ring_end() const { return ring_bytes_ - offset_; }
  void skip(uint32_t bytes) {
    if (bytes > left_) {
      overran_ = true;
      bytes = left_;
    }
    left_ -= bytes;
    offset_ = (offset_ + bytes) % ring_bytes_;
  }
  bool overran() const { return overran_; }

 private:
  const uint8_t* ring_;
  uint32_t ring_bytes_, offset_, left_;
  bool overran_ = false;
};

constexpr uint8_t kOpcodeDump = 0x23;  // reads local memory, and does nothing with it

bool is_rdma(uint8_t opcode) {
  return opcode == MLX5_OPCODE_RDMA_WRITE || opcode == MLX5_OPCODE_RDMA_WRITE_IMM ||
         opcode == MLX5_OPCODE_RDMA_READ;
}

bool is_atomic(uint8_t opcode) {
  return opcode == MLX5_OPCODE_ATOMIC_CS || opcode == MLX5_OPCODE_ATOMIC_FA ||
         opcode == MLX5_OPCODE_ATOMIC_MASKED_CS || opcode == MLX5_OPCODE_ATOMIC_MASKED_FA;
}

bool is_send(uint8_t opcode) {
  return opcode == MLX5_OPCODE_SEND || opcode == MLX5_OPCODE_SEND_IMM ||
         opcode == MLX5_OPCODE_SEND_INVAL;
}

struct Pair64 {
  uint64_t first, second;
};
struct Quad32 {
  uint32_t word[4];
};

void decode_atomic(SegmentReader& reader, Wqe& wqe) {
  wqe.atomic_bytes = 8;
  wqe.operand_mask = wqe.compare_mask = ~uint64_t{0};
  const bool extended =
      wqe.opcode == MLX5_OPCODE_ATOMIC_MASKED_CS || wqe.opcode == MLX5_OPCODE_ATOMIC_MASKED_FA;
  if (!extended) {
    const auto segment = reader.take<mlx5_wqe_atomic_seg>();
    wqe.operand = be64toh(segment.swap_add);
    wqe.compare = be64toh(segment.compare);
    return;
  }
  if ((wqe.opmod & 7) == 0) {  // 1 << (0 + 2) = 4 bytes
    wqe.atomic_bytes = 4;
    const auto segment = reader.take<Quad32>();
    wqe.operand = be32toh(segment.word[0]);
    if (wqe.opcode == MLX5_OPCODE_ATOMIC_MASKED_FA) {
      wqe.operand_mask = be32toh(segment.word[1]);
    } else {
      wqe.compare = be32toh(segment.word[1]);
      wqe.operand_mask = be32toh(segment.word[2]);
      wqe.compare_mask = be32toh(segment.word[3]);
    }
    return;
  }
  const auto values = reader.take<Pair64>();
  wqe.operand = be64toh(values.first);
  if (wqe.opcode == MLX5_OPCODE_ATOMIC_MASKED_FA) {
    wqe.operand_mask = be64toh(values.second);
  } else {
    wqe.compare = be64toh(values.second);
    const auto masks = reader.take<Pair64>();
    wqe.operand_mask = be64toh(masks.first);
    wqe.compare_mask = be64toh(masks.second);
  }
}

// Inline data: a 4-byte header, then the bytes, padded to 16.
void decode_inline(SegmentReader& reader, Wqe& wqe) {
  constexpr uint32_t kHeader = 4;
  uint32_t length = reader.peek32() & 0x3ff;
  const uint32_t padded = (kHeader + length + 15) / 16 * 16;
  if (padded > reader.left()) {
    wqe.syndrome = MLX5_CQE_SYNDROME_LOCAL_QP_OP_ERR;
    return;
  }
  wqe.is_inline = true;
  wqe.bytes += length;
  // At most two pieces: up to the ring's end, and on from its start.
  const uint8_t* at = reader.at() + kHeader;
  const uint32_t room = reader.until_ring_end() - kHeader;
  while (length > 0) {
    const uint32_t piece = std::min(length, at == reader.at() + kHeader ? room : length);
    if (wqe.segments == kMaxSges) {
      wqe.syndrome = MLX5_CQE_SYNDROME_LOCAL_QP_OP_ERR;
      return;
    }
    wqe.data[wqe.segments++] = {reinterpret_cast<uint64_t>(at), piece, MLX5_INVALID_LKEY};
    length -= piece;
    at = reader.ring();
  }
  reader.skip(padded);
}

}  // namespace

bool is_local_opcode(uint8_t opcode) {
  return opcode == MLX5_OPCODE_NOP || opcode == kOpcodeDump || opcode == MLX5_OPCODE_UMR ||
         opcode == MLX5_OPCODE_LOCAL_INVAL;
}

void decode_wqe(const uint8_t* ring, uint32_t blocks, uint16_t index, bool datagram, Wqe& wqe) {
  memset(static_cast<void*>(&wqe), 0, offsetof(Wqe, data));
  mlx5_wqe_ctrl_seg control;
  memcpy(static_cast<void*>(&control), ring + index % blocks * MLX5_SEND_WQE_BB, sizeof control);
  const uint32_t word = be32toh(control.opmod_idx_opcode);
  wqe.opcode = word & 0xff;
  wqe.index = word >> 8 & 0xffff;
  wqe.opmod = word >> 24;
  wqe.qpn = be32toh(control.qpn_ds) >> 8;
  wqe.ds = be32toh(control.qpn_ds) & 0x3f;
  wqe.fm_ce_se = control.fm_ce_se;
  wqe.immediate = control.imm;
  wqe.basic_blocks = (wqe.ds + 3) / 4;
  if (wqe.basic_blocks == 0 || wqe.basic_blocks > blocks) {
    wqe.basic_blocks = 1;
    wqe.syndrome = MLX5_CQE_SYNDROME_LOCAL_QP_OP_ERR;
    return;
  }
  SegmentReader reader(ring, blocks, index, wqe.ds);
  reader.skip(sizeof control);
  if (is_local_opcode(wqe.opcode)) return;
  if (!is_rdma(wqe.opcode) && !is_atomic(wqe.opcode) && !is_send(wqe.opcode)) {
    wqe.syndrome = MLX5_CQE_SYNDROME_LOCAL_QP_OP_ERR;
    return;
  }
  if (datagram) {
    mlx5_wqe_av av{};  // compact (16 bytes: no GRH) unless the extended bit is set
    constexpr size_t kCompact = offsetof(mlx5_wqe_av, reserved0);
    const auto base = reader.take<std::array<uint8_t, kCompact>>();
    memcpy(static_cast<void*>(&av), base.data(), kCompact);
    if (be32toh(av.dqp_dct) & MLX5_EXTENDED_UD_AV) {
      const auto rest = reader.take<std::array<uint8_t, sizeof av - kCompact>>();
      memcpy(reinterpret_cast<uint8_t*>(&av) + kCompact, rest.data(), rest.size());
    }
    wqe.has_address_vector = true;
    wqe.address.qkey = be32toh(av.key.qkey.qkey);
    wqe.address.dc_key = be64toh(av.key.dc_key);
    wqe.address.qpn = be32toh(av.dqp_dct) & 0xffffff;
    wqe.address.service_level = av.stat_rate_sl & 0xf;
    wqe.address.rlid = be16toh(av.rlid);
    wqe.address.traffic_class = av.tclass;
    wqe.address.global_route = be32toh(av.grh_gid_fl) >> 30 & 1;
    memcpy(wqe.address.rgid, av.rgid, sizeof wqe.address.rgid);
  }
  if (is_rdma(wqe.opcode) || is_atomic(wqe.opcode)) {
    const auto remote = reader.take<mlx5_wqe_raddr_seg>();
    wqe.remote_address = be64toh(remote.raddr);
    wqe.rkey = be32toh(remote.rkey);
  }
  if (is_atomic(wqe.opcode)) decode_atomic(reader, wqe);
  while (reader.left() >= 16 && wqe.syndrome == 0) {
    if (reader.peek32() & MLX5_INLINE_SEG) {
      decode_inline(reader, wqe);
      continue;
    }
    const auto data = reader.take<mlx5_wqe_data_seg>();
    const uint32_t length = be32toh(data.byte_count);
    if (length == 0) continue;
    if (wqe.segments == kMaxSges) {
      wqe.syndrome = MLX5_CQE_SYNDROME_LOCAL_QP_OP_ERR;
      break;
    }
    wqe.data[wqe.segments++] = {be64toh(data.addr), length, be32toh(data.lkey)};
    wqe.bytes += length;
  }
  if (reader.overran()) wqe.syndrome = MLX5_CQE_SYNDROME_LOCAL_QP_OP_ERR;
}

}  // namespace connectx
