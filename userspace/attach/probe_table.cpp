// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
#include "attach/probe_table.h"

#include <array>

namespace sigma {
namespace {

constexpr auto kNone = ReturnUse::none;
constexpr auto kChecks = ReturnUse::checks;
constexpr auto kRequired = ReturnUse::required;

// clang-format off
constexpr auto kRows = std::to_array<ProbeRow>({
  {SIGMA_FN_POST_SEND,       "post_send",       "post_send",     "post_send_return",     "post_send_session",     kChecks,   false},
  {SIGMA_FN_POST_RECV,       "post_recv",       "post_recv",     "post_recv_return",     "post_recv_session",     kChecks,   false},
  {SIGMA_FN_POST_SRQ_RECV,   "post_srq_recv",   "post_srq_recv", "post_srq_recv_return", "post_srq_recv_session", kChecks,   false},
  {SIGMA_FN_POLL_CQ,         "poll_cq",         "poll_cq",       "poll_cq_return",       "poll_cq_session",       kRequired, true},
  {SIGMA_FN_START_POLL,      "start_poll",      "start_poll",    "start_poll_return",    "start_poll_session",    kRequired, true},
  {SIGMA_FN_NEXT_POLL,       "next_poll",       "next_poll",     "next_poll_return",     "next_poll_session",     kRequired, true},
  {SIGMA_FN_WR_START,        "wr_start",        "wr_start",      nullptr,                nullptr,                 kNone,     false},
  {SIGMA_FN_WR_COMPLETE,     "wr_complete",     "wr_complete",   "wr_complete_return",   "wr_complete_session",   kChecks,   false},
  {SIGMA_FN_WR_ABORT,        "wr_abort",        "wr_abort",      nullptr,                nullptr,                 kNone,     false},
  {SIGMA_FN_WR_ATOMIC_CMP_SWP,       "wr_atomic_cmp_swp",       "wr_builder", nullptr, nullptr, kNone, false},
  {SIGMA_FN_WR_ATOMIC_FETCH_ADD,     "wr_atomic_fetch_add",     "wr_builder", nullptr, nullptr, kNone, false},
  {SIGMA_FN_WR_BIND_MW,              "wr_bind_mw",              "wr_builder", nullptr, nullptr, kNone, false},
  {SIGMA_FN_WR_LOCAL_INV,            "wr_local_inv",            "wr_builder", nullptr, nullptr, kNone, false},
  {SIGMA_FN_WR_RDMA_READ,            "wr_rdma_read",            "wr_builder", nullptr, nullptr, kNone, false},
  {SIGMA_FN_WR_RDMA_WRITE,           "wr_rdma_write",           "wr_builder", nullptr, nullptr, kNone, false},
  {SIGMA_FN_WR_RDMA_WRITE_IMM,       "wr_rdma_write_imm",       "wr_builder", nullptr, nullptr, kNone, false},
  {SIGMA_FN_WR_SEND,                 "wr_send",                 "wr_builder", nullptr, nullptr, kNone, false},
  {SIGMA_FN_WR_SEND_IMM,             "wr_send_imm",             "wr_builder", nullptr, nullptr, kNone, false},
  {SIGMA_FN_WR_SEND_INV,             "wr_send_inv",             "wr_builder", nullptr, nullptr, kNone, false},
  {SIGMA_FN_WR_SEND_TSO,             "wr_send_tso",             "wr_builder", nullptr, nullptr, kNone, false},
  {SIGMA_FN_WR_SET_UD_ADDR,          "wr_set_ud_addr",          "wr_setter",  nullptr, nullptr, kNone, false},
  {SIGMA_FN_WR_SET_XRC_SRQN,         "wr_set_xrc_srqn",         "wr_setter",  nullptr, nullptr, kNone, false},
  {SIGMA_FN_WR_SET_INLINE_DATA,      "wr_set_inline_data",      "wr_setter",  nullptr, nullptr, kNone, false},
  {SIGMA_FN_WR_SET_INLINE_DATA_LIST, "wr_set_inline_data_list", "wr_setter",  nullptr, nullptr, kNone, false},
  {SIGMA_FN_WR_SET_SGE,              "wr_set_sge",              "wr_setter",  nullptr, nullptr, kNone, false},
  {SIGMA_FN_WR_SET_SGE_LIST,         "wr_set_sge_list",         "wr_setter",  nullptr, nullptr, kNone, false},
  {SIGMA_FN_EXECUTE_IOCTL, "execute_ioctl",    "execute_ioctl", "execute_ioctl_return", "execute_ioctl_session", kRequired, false},
  {SIGMA_FN_CLOSE_DEVICE,  "ibv_close_device", "close_device",  nullptr,                nullptr,                 kNone,     false},
  {SIGMA_FN_GPU_EMIT,      "sigmatrace_gpu_emit", "gpu_emit",   nullptr,                nullptr,                 kNone,     false},
});
// clang-format on

constexpr bool in_order() {
  for (size_t i = 0; i < kRows.size(); i++)
    if (kRows[i].function != static_cast<sigma_function>(i + 1)) return false;
  return kRows.size() + 1 == SIGMA_FUNCTIONS;
}
static_assert(in_order(), "one row for each enum sigma_function, in its order");

}  // namespace

std::span<const ProbeRow> probe_table() {
  return kRows;
}

const ProbeRow& probe_row(sigma_function function) {
  return kRows[static_cast<size_t>(function) - 1];
}

std::string_view to_string(sigma_function function) {
  return function >= 1 && function < SIGMA_FUNCTIONS ? probe_row(function).name : "unknown";
}

}  // namespace sigma
