// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Writes WQEs into a ring as the stacks do: by the structs and helpers of <infiniband/mlx5dv.h>,
// and by documented layouts where it has none. Shares no code with the decoder.
#pragma once

#include <endian.h>
#include <infiniband/mlx5dv.h>

#include <cstring>
#include <numeric>
#include <span>
#include <vector>

#include "decode/ring_bytes.h"

namespace sigma {

class WqeWriter {
 public:
  static constexpr size_t kUnit = 16, kBlock = 64;

  // Rings are full of something, not of zeros.
  explicit WqeWriter(uint32_t blocks) : bytes_(blocks * kBlock, std::byte{0xa5}) {}
  // Onto memory of the caller's: blocks * 64 bytes.
  explicit WqeWriter(std::span<std::byte> ring) : ring_(ring) {}

  struct Control {
    uint8_t opcode = MLX5_OPCODE_NOP;
    uint32_t qp_num = 0x1234;
    uint8_t opmod = 0;
    uint8_t fm_ce_se = MLX5_WQE_CTRL_CQ_UPDATE;
    uint32_t imm = 0;  // as in ibv_send_wr: network order
  };

  WqeWriter& begin(uint64_t position, const Control& control) {
    begin_ = at_ = position * kBlock;
    control_ = control;
    at_ += sizeof(mlx5_wqe_ctrl_seg);
    return *this;
  }
  template <typename T>
  WqeWriter& put(const T& segment) {
    return raw(&segment, sizeof(segment));
  }
  WqeWriter& raw(const void* data, size_t size) {
    const auto* from = static_cast<const std::byte*>(data);
    for (size_t i = 0; i < size; ++i) ring()[at_++ % ring().size()] = from[i];
    return *this;
  }
  WqeWriter& zeros(size_t size) {
    const std::vector<std::byte> nothing(size);
    return raw(nothing.data(), size);
  }
  WqeWriter& remote(uint64_t addr, uint32_t rkey) {
    return put(mlx5_wqe_raddr_seg{htobe64(addr), htobe32(rkey), 0});
  }
  WqeWriter& data(uint32_t bytes, uint32_t lkey, uint64_t addr) {
    mlx5_wqe_data_seg segment;
    mlx5dv_set_data_seg(&segment, bytes, lkey, addr);
    return put(segment);
  }
  WqeWriter& inline_data(uint32_t bytes) {
    put(htobe32(bytes | MLX5_INLINE_SEG));
    std::vector<uint8_t> payload(bytes);
    std::iota(payload.begin(), payload.end(), uint8_t{1});
    raw(payload.data(), payload.size());
    return zeros((kUnit - (at_ - begin_) % kUnit) % kUnit);
  }
  WqeWriter& words(std::initializer_list<uint32_t> host) {
    for (const uint32_t word : host) put(htobe32(word));
    return *this;
  }
  WqeWriter& quads(std::initializer_list<uint64_t> host) {
    for (const uint64_t quad : host) put(htobe64(quad));
    return *this;
  }

  // As libmlx5: the index and the size last. Returns the blocks that the WQE takes.
  uint8_t end() { return end(static_cast<uint8_t>((at_ - begin_ + kUnit - 1) / kUnit)); }
  uint8_t end(uint8_t ds) {
    mlx5_wqe_ctrl_seg segment{};
    mlx5dv_set_ctrl_seg(&segment, static_cast<uint16_t>(begin_ / kBlock), control_.opcode,
                        control_.opmod, control_.qp_num, control_.fm_ce_se, ds, 0, control_.imm);
    at_ = begin_;
    put(segment);
    return static_cast<uint8_t>((ds + 3) / 4);
  }

  // The blocks from position `first` to `last`, in one piece or two.
  RingBytes view(uint64_t first, uint64_t last) {
    const std::span<const std::byte> all = ring();
    const size_t offset = first * kBlock % all.size(), size = (last - first) * kBlock;
    if (offset + size <= all.size()) return RingBytes(all.subspan(offset, size));
    return RingBytes(all.subspan(offset), all.first(offset + size - all.size()));
  }
  std::span<std::byte> ring() { return ring_.empty() ? std::span(bytes_) : ring_; }

 private:
  std::vector<std::byte> bytes_;
  std::span<std::byte> ring_;
  size_t begin_ = 0, at_ = 0;
  Control control_;
};

}  // namespace sigma
