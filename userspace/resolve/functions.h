// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// The probed functions as the resolver sees them: one row each, with their arity and where the
// public ABI keeps the pointer to them.
#pragma once

#include <infiniband/verbs.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "bpf/config.h"

namespace sigma {

// Which structure an application calls the function through.
enum class Holder : uint8_t { context_ops, qp_ex, cq_ex, exported, gpu_library };

struct FunctionInfo {
  sigma_function function;
  std::string_view name;  // of the member, or of the exported symbol
  Holder holder;
  uint16_t offset;    // of the pointer in ibv_context, ibv_qp_ex or ibv_cq_ex, bytes
  uint8_t arguments;  // integer arguments: these registers must be intact at a probe site
};

// The inline functions of verbs.h bake these offsets into applications: they cannot change.
#define SIGMA_OPS(id, member, arguments) \
  { SIGMA_FN_##id, #member, Holder::context_ops, offsetof(ibv_context, ops.member), arguments }
#define SIGMA_QP_EX(id, member, arguments) \
  { SIGMA_FN_##id, #member, Holder::qp_ex, offsetof(ibv_qp_ex, member), arguments }
#define SIGMA_CQ_EX(id, member, arguments) \
  { SIGMA_FN_##id, #member, Holder::cq_ex, offsetof(ibv_cq_ex, member), arguments }

inline constexpr auto kFunctions = std::to_array<FunctionInfo>({
    SIGMA_OPS(POST_SEND, post_send, 3),
    SIGMA_OPS(POST_RECV, post_recv, 3),
    SIGMA_OPS(POST_SRQ_RECV, post_srq_recv, 3),
    SIGMA_OPS(POLL_CQ, poll_cq, 3),
    SIGMA_CQ_EX(START_POLL, start_poll, 2),
    SIGMA_CQ_EX(NEXT_POLL, next_poll, 1),
    SIGMA_QP_EX(WR_START, wr_start, 1),
    SIGMA_QP_EX(WR_COMPLETE, wr_complete, 1),
    SIGMA_QP_EX(WR_ABORT, wr_abort, 1),
    SIGMA_QP_EX(WR_ATOMIC_CMP_SWP, wr_atomic_cmp_swp, 5),
    SIGMA_QP_EX(WR_ATOMIC_FETCH_ADD, wr_atomic_fetch_add, 4),
    SIGMA_QP_EX(WR_BIND_MW, wr_bind_mw, 4),
    SIGMA_QP_EX(WR_LOCAL_INV, wr_local_inv, 2),
    SIGMA_QP_EX(WR_RDMA_READ, wr_rdma_read, 3),
    SIGMA_QP_EX(WR_RDMA_WRITE, wr_rdma_write, 3),
    SIGMA_QP_EX(WR_RDMA_WRITE_IMM, wr_rdma_write_imm, 4),
    SIGMA_QP_EX(WR_SEND, wr_send, 1),
    SIGMA_QP_EX(WR_SEND_IMM, wr_send_imm, 2),
    SIGMA_QP_EX(WR_SEND_INV, wr_send_inv, 2),
    SIGMA_QP_EX(WR_SEND_TSO, wr_send_tso, 4),
    SIGMA_QP_EX(WR_SET_UD_ADDR, wr_set_ud_addr, 4),
    SIGMA_QP_EX(WR_SET_XRC_SRQN, wr_set_xrc_srqn, 2),
    SIGMA_QP_EX(WR_SET_INLINE_DATA, wr_set_inline_data, 3),
    SIGMA_QP_EX(WR_SET_INLINE_DATA_LIST, wr_set_inline_data_list, 3),
    SIGMA_QP_EX(WR_SET_SGE, wr_set_sge, 4),
    SIGMA_QP_EX(WR_SET_SGE_LIST, wr_set_sge_list, 3),
    {SIGMA_FN_EXECUTE_IOCTL, "execute_ioctl", Holder::exported, 0, 2},
    {SIGMA_FN_CLOSE_DEVICE, "ibv_close_device", Holder::exported, 0, 1},
    {SIGMA_FN_GPU_EMIT, "sigmatrace_gpu_emit", Holder::gpu_library, 0, 2},
});
static_assert(kFunctions.size() == SIGMA_FUNCTIONS - 1);

#undef SIGMA_OPS
#undef SIGMA_QP_EX
#undef SIGMA_CQ_EX

constexpr const FunctionInfo* find_function(sigma_function function) {
  for (const FunctionInfo& info : kFunctions)
    if (info.function == function) return &info;
  return nullptr;
}

constexpr std::string_view function_name(sigma_function function) {
  const FunctionInfo* info = find_function(function);
  return info ? info->name : "?";
}

}  // namespace sigma
