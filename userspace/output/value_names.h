// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// The words for values of records, once for all that shows them: the outputs (names.h) and the
// trace's metadata (trace/schema.h). The words of libibverbs' enums are theirs without the prefix.
#pragma once

#include <infiniband/verbs.h>

#include <array>
#include <cstdint>
#include <span>
#include <string_view>

#include "bpf/records.h"
#include "decode/wqe.h"

namespace sigma {

struct ValueName {
  std::string_view name;
  uint64_t value;
};

// "" for values that are not in the table.
constexpr std::string_view name_in(std::span<const ValueName> table, uint64_t value) {
  for (const ValueName& known : table)
    if (known.value == value) return known.name;
  return "";
}

// enum ibv_wr_opcode
inline constexpr auto kWrOpcodes = std::to_array<ValueName>({
    {"rdma_write", IBV_WR_RDMA_WRITE},
    {"rdma_write_with_imm", IBV_WR_RDMA_WRITE_WITH_IMM},
    {"send", IBV_WR_SEND},
    {"send_with_imm", IBV_WR_SEND_WITH_IMM},
    {"rdma_read", IBV_WR_RDMA_READ},
    {"atomic_cmp_and_swp", IBV_WR_ATOMIC_CMP_AND_SWP},
    {"atomic_fetch_and_add", IBV_WR_ATOMIC_FETCH_AND_ADD},
    {"local_inv", IBV_WR_LOCAL_INV},
    {"bind_mw", IBV_WR_BIND_MW},
    {"send_with_inv", IBV_WR_SEND_WITH_INV},
    {"tso", IBV_WR_TSO},
    {"driver1", IBV_WR_DRIVER1},
});

// enum ibv_wc_opcode
inline constexpr auto kWcOpcodes = std::to_array<ValueName>({
    {"send", IBV_WC_SEND},
    {"rdma_write", IBV_WC_RDMA_WRITE},
    {"rdma_read", IBV_WC_RDMA_READ},
    {"comp_swap", IBV_WC_COMP_SWAP},
    {"fetch_add", IBV_WC_FETCH_ADD},
    {"bind_mw", IBV_WC_BIND_MW},
    {"local_inv", IBV_WC_LOCAL_INV},
    {"tso", IBV_WC_TSO},
    {"recv", IBV_WC_RECV},
    {"recv_rdma_with_imm", IBV_WC_RECV_RDMA_WITH_IMM},
    {"tm_add", IBV_WC_TM_ADD},
    {"tm_del", IBV_WC_TM_DEL},
    {"tm_sync", IBV_WC_TM_SYNC},
    {"tm_recv", IBV_WC_TM_RECV},
    {"tm_no_tag", IBV_WC_TM_NO_TAG},
});

// enum ibv_wc_status
inline constexpr auto kWcStatuses = std::to_array<ValueName>({
    {"success", IBV_WC_SUCCESS},
    {"loc_len_err", IBV_WC_LOC_LEN_ERR},
    {"loc_qp_op_err", IBV_WC_LOC_QP_OP_ERR},
    {"loc_eec_op_err", IBV_WC_LOC_EEC_OP_ERR},
    {"loc_prot_err", IBV_WC_LOC_PROT_ERR},
    {"wr_flush_err", IBV_WC_WR_FLUSH_ERR},
    {"mw_bind_err", IBV_WC_MW_BIND_ERR},
    {"bad_resp_err", IBV_WC_BAD_RESP_ERR},
    {"loc_access_err", IBV_WC_LOC_ACCESS_ERR},
    {"rem_inv_req_err", IBV_WC_REM_INV_REQ_ERR},
    {"rem_access_err", IBV_WC_REM_ACCESS_ERR},
    {"rem_op_err", IBV_WC_REM_OP_ERR},
    {"retry_exc_err", IBV_WC_RETRY_EXC_ERR},
    {"rnr_retry_exc_err", IBV_WC_RNR_RETRY_EXC_ERR},
    {"loc_rdd_viol_err", IBV_WC_LOC_RDD_VIOL_ERR},
    {"rem_inv_rd_req_err", IBV_WC_REM_INV_RD_REQ_ERR},
    {"rem_abort_err", IBV_WC_REM_ABORT_ERR},
    {"inv_eecn_err", IBV_WC_INV_EECN_ERR},
    {"inv_eec_state_err", IBV_WC_INV_EEC_STATE_ERR},
    {"fatal_err", IBV_WC_FATAL_ERR},
    {"resp_timeout_err", IBV_WC_RESP_TIMEOUT_ERR},
    {"general_err", IBV_WC_GENERAL_ERR},
    {"tm_err", IBV_WC_TM_ERR},
    {"tm_rndv_incomplete", IBV_WC_TM_RNDV_INCOMPLETE},
});

// enum ibv_qp_type
inline constexpr auto kQpTypes = std::to_array<ValueName>({
    {"rc", IBV_QPT_RC},
    {"uc", IBV_QPT_UC},
    {"ud", IBV_QPT_UD},
    {"raw_packet", IBV_QPT_RAW_PACKET},
    {"xrc_send", IBV_QPT_XRC_SEND},
    {"xrc_recv", IBV_QPT_XRC_RECV},
    {"driver", IBV_QPT_DRIVER},
});

// Of those of the driver: what mlx5's are; a record does not say it.
inline constexpr auto kDcTypes = std::to_array<ValueName>({{"dci", kQpTypeDci}, {"dct", kQpTypeDct}});

// enum ibv_qp_state
inline constexpr auto kQpStates = std::to_array<ValueName>({
    {"reset", IBV_QPS_RESET},
    {"init", IBV_QPS_INIT},
    {"rtr", IBV_QPS_RTR},
    {"rts", IBV_QPS_RTS},
    {"sqd", IBV_QPS_SQD},
    {"sqe", IBV_QPS_SQE},
    {"err", IBV_QPS_ERR},
});

// Of rings that are read from memory: bpf/ring_records.h.
inline constexpr auto kRingOrigins = std::to_array<ValueName>({{"command", SIGMA_RING_BY_COMMAND},
                                                               {"scan", SIGMA_RING_BY_SCAN},
                                                               {"content", SIGMA_RING_BY_CONTENT},
                                                               {"library", SIGMA_RING_BY_LIBRARY}});
inline constexpr auto kRingModes = std::to_array<ValueName>({{"read", SIGMA_RING_READ},
                                                             {"counted", SIGMA_RING_COUNTED},
                                                             {"snapshot", SIGMA_RING_SNAPSHOT},
                                                             {"setup", SIGMA_RING_SETUP}});
inline constexpr auto kInitiators = std::to_array<ValueName>({{"unknown", SIGMA_INITIATOR_UNKNOWN},
                                                              {"cpu", SIGMA_INITIATOR_CPU},
                                                              {"gpu", SIGMA_INITIATOR_GPU}});
inline constexpr auto kGapReasons = std::to_array<ValueName>({{"lapped", SIGMA_GAP_LAPPED},
                                                              {"uncertain", SIGMA_GAP_UNCERTAIN},
                                                              {"unreadable", SIGMA_GAP_UNREADABLE},
                                                              {"counted", SIGMA_GAP_COUNTED},
                                                              {"ended", SIGMA_GAP_ENDED}});

}  // namespace sigma
