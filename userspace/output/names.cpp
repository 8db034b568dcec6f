// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
#include "output/names.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <infiniband/verbs.h>

#include <array>

namespace sigma {
namespace {

constexpr size_t kStatuses = IBV_WC_TM_RNDV_INCOMPLETE + 1;
constexpr auto kStatusNames = [] {
  std::array<std::string_view, kStatuses> names{};
  names[IBV_WC_SUCCESS] = "success";
  names[IBV_WC_LOC_LEN_ERR] = "loc_len_err";
  names[IBV_WC_LOC_QP_OP_ERR] = "loc_qp_op_err";
  names[IBV_WC_LOC_EEC_OP_ERR] = "loc_eec_op_err";
  names[IBV_WC_LOC_PROT_ERR] = "loc_prot_err";
  names[IBV_WC_WR_FLUSH_ERR] = "wr_flush_err";
  names[IBV_WC_MW_BIND_ERR] = "mw_bind_err";
  names[IBV_WC_BAD_RESP_ERR] = "bad_resp_err";
  names[IBV_WC_LOC_ACCESS_ERR] = "loc_access_err";
  names[IBV_WC_REM_INV_REQ_ERR] = "rem_inv_req_err";
  names[IBV_WC_REM_ACCESS_ERR] = "rem_access_err";
  names[IBV_WC_REM_OP_ERR] = "rem_op_err";
  names[IBV_WC_RETRY_EXC_ERR] = "retry_exc_err";
  names[IBV_WC_RNR_RETRY_EXC_ERR] = "rnr_retry_exc_err";
  names[IBV_WC_LOC_RDD_VIOL_ERR] = "loc_rdd_viol_err";
  names[IBV_WC_REM_INV_RD_REQ_ERR] = "rem_inv_rd_req_err";
  names[IBV_WC_REM_ABORT_ERR] = "rem_abort_err";
  names[IBV_WC_INV_EECN_ERR] = "inv_eecn_err";
  names[IBV_WC_INV_EEC_STATE_ERR] = "inv_eec_state_err";
  names[IBV_WC_FATAL_ERR] = "fatal_err";
  names[IBV_WC_RESP_TIMEOUT_ERR] = "resp_timeout_err";
  names[IBV_WC_GENERAL_ERR] = "general_err";
  names[IBV_WC_TM_ERR] = "tm_err";
  names[IBV_WC_TM_RNDV_INCOMPLETE] = "tm_rndv_incomplete";
  return names;
}();
static_assert(kStatusSuccess == IBV_WC_SUCCESS && kStatusFlushed == IBV_WC_WR_FLUSH_ERR);

}  // namespace

std::string_view status_name(uint32_t status) {
  return status < kStatuses ? kStatusNames[status] : "";
}

std::string status_text(uint32_t status) {
  const std::string_view name = status_name(status);
  return name.empty() ? fmt::format("status_{}", status) : std::string(name);
}

std::string_view qp_type_name(uint8_t type) {
  switch (type) {
    case IBV_QPT_RC:
      return "rc";
    case IBV_QPT_UC:
      return "uc";
    case IBV_QPT_UD:
      return "ud";
    case IBV_QPT_RAW_PACKET:
      return "raw_packet";
    case IBV_QPT_XRC_SEND:
      return "xrc_send";
    case IBV_QPT_XRC_RECV:
      return "xrc_recv";
    case IBV_QPT_DRIVER:
      return "driver";
    default:
      return "";
  }
}

std::string_view qp_state_name(uint8_t state) {
  switch (state) {
    case IBV_QPS_RESET:
      return "reset";
    case IBV_QPS_INIT:
      return "init";
    case IBV_QPS_RTR:
      return "rtr";
    case IBV_QPS_RTS:
      return "rts";
    case IBV_QPS_SQD:
      return "sqd";
    case IBV_QPS_SQE:
      return "sqe";
    case IBV_QPS_ERR:
      return "err";
    default:
      return "";
  }
}

std::string_view name_of(CompleteSource source) {
  switch (source) {
    case CompleteSource::nic:
      return "nic";
    case CompleteSource::poll:
      return "poll";
    case CompleteSource::inferred:
      return "inferred";
    case CompleteSource::ring:
      return "ring";
    case CompleteSource::none:
      break;
  }
  return "";
}

std::string_view name_of(Source source) {
  switch (source) {
    case Source::probe:
      return "probe";
    case Source::ring:
      return "ring";
    case Source::gpu:
      return "gpu";
  }
  return "";
}

std::string_view name_of(Initiator initiator) {
  switch (initiator) {
    case Initiator::cpu:
      return "cpu";
    case Initiator::gpu:
      return "gpu";
    case Initiator::unknown:
      break;
  }
  return "";
}

std::string_view name_of(Queue queue) {
  return queue == Queue::send ? "send" : "recv";
}

std::string address_text(const Address& address) {
  if (address.gid) {
    // glibc's inet_ntop writes RFC 5952's form, except that it shows IPv4-compatible addresses
    // (::a.b.c.d) dotted, which no GID is.
    char text[INET6_ADDRSTRLEN];
    return inet_ntop(AF_INET6, address.gid->data(), text, sizeof text) ? text : "";
  }
  return address.lid ? fmt::format("{}", *address.lid) : "";
}

std::string_view ring_origin_name(uint8_t origin) {
  constexpr std::string_view kNames[] = {"", "command", "scan", "content", "library"};
  return origin < std::size(kNames) ? kNames[origin] : "";
}

std::string_view ring_mode_name(uint8_t mode) {
  constexpr std::string_view kNames[] = {"", "read", "counted", "snapshot", "setup"};
  return mode < std::size(kNames) ? kNames[mode] : "";
}

std::string_view ring_kind_name(uint8_t kind) {
  constexpr std::string_view kNames[] = {"", "send", "completion"};
  return kind < std::size(kNames) ? kNames[kind] : "";
}

std::string_view gap_reason_name(uint8_t reason) {
  constexpr std::string_view kNames[] = {"", "lapped", "uncertain", "unreadable", "counted", "ended"};
  return reason < std::size(kNames) ? kNames[reason] : "";
}

}  // namespace sigma
