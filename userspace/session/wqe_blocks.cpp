// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Segments as <infiniband/mlx5dv.h> defines them, in units of 16 bytes: struct mlx5_wqe_ctrl_seg 1,
// mlx5_wqe_raddr_seg 1, mlx5_wqe_atomic_seg 1, mlx5_wqe_datagram_seg 3, mlx5_wqe_data_seg 1,
// mlx5_wqe_inl_data_seg a word of length before the data.
#include "session/wqe_blocks.h"

#include <infiniband/verbs.h>

namespace sigma {
namespace {

constexpr uint64_t kUnit = 16, kUnitsPerBlock = 4;
constexpr uint64_t kMaxInline = 1024;  // more than any device takes

std::optional<uint64_t> header_units(const sigma_post& post) {
  uint64_t units = 1;
  if (post.qp_type == IBV_QPT_UD)
    units += 3;
  else if (post.qp_type != IBV_QPT_RC && post.qp_type != IBV_QPT_UC)
    return std::nullopt;
  switch (post.opcode) {
    case IBV_WR_SEND:
    case IBV_WR_SEND_WITH_IMM:
    case IBV_WR_SEND_WITH_INV:
      return units;
    case IBV_WR_RDMA_WRITE:
    case IBV_WR_RDMA_WRITE_WITH_IMM:
    case IBV_WR_RDMA_READ:
      return units + 1;
    case IBV_WR_ATOMIC_CMP_AND_SWP:
    case IBV_WR_ATOMIC_FETCH_AND_ADD:
      return units + 2;
    default:
      return std::nullopt;
  }
}

}  // namespace

std::optional<uint16_t> mlx5_wqe_blocks(const sigma_post& post) {
  if (post.flags & (SIGMA_POST_UNREADABLE | SIGMA_POST_SGE_TRUNCATED)) return std::nullopt;
  const auto header = header_units(post);
  if (!header) return std::nullopt;
  uint64_t least = *header, most = *header;
  if (post.send_flags & IBV_SEND_INLINE) {
    if (post.bytes > kMaxInline) return std::nullopt;
    if (post.bytes > 0) least += (sizeof(uint32_t) + post.bytes + kUnit - 1) / kUnit;
    most = least;
  } else {
    least += post.bytes > 0;
    most += post.num_sge;
  }
  const auto blocks = [](uint64_t units) { return (units + kUnitsPerBlock - 1) / kUnitsPerBlock; };
  if (blocks(least) != blocks(most)) return std::nullopt;
  return static_cast<uint16_t>(blocks(least));
}

}  // namespace sigma
