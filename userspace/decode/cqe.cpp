// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
#include "decode/cqe.h"

#include <infiniband/mlx5dv.h>
#include <infiniband/verbs.h>

#include <cstring>
#include <iterator>

#include "base/be.h"
#include "decode/wqe.h"

namespace sigma {
namespace {

struct CqeImage {
  uint8_t reserved0[17];
  uint8_t ml_path;
  uint8_t reserved18[4];
  Be16 slid;
  Be32 flags_rqpn;
  uint8_t reserved28[4];
  Be32 srqn_uidx;
  Be32 imm_inval_pkey;
  uint8_t app;
  uint8_t app_op;
  uint8_t reserved42[2];
  Be32 byte_cnt;
  Be64 timestamp;
  Be32 sop_drop_qpn;
  Be16 wqe_counter;
  uint8_t signature;
  uint8_t op_own;
};
static_assert(sizeof(CqeImage) == kCqeBytes && sizeof(mlx5_cqe64) == kCqeBytes);
static_assert(offsetof(CqeImage, ml_path) == offsetof(mlx5_cqe64, ml_path));
static_assert(offsetof(CqeImage, flags_rqpn) == offsetof(mlx5_cqe64, flags_rqpn));
static_assert(offsetof(CqeImage, app) == offsetof(mlx5_cqe64, app));
static_assert(offsetof(CqeImage, byte_cnt) == kCqeByteCount);
static_assert(offsetof(CqeImage, timestamp) == offsetof(mlx5_cqe64, timestamp));
static_assert(offsetof(CqeImage, wqe_counter) == offsetof(mlx5_cqe64, wqe_counter));

// An error has these where a good completion has its time stamp.
constexpr size_t kVendorSyndrome = offsetof(mlx5_err_cqe, vendor_err_synd);
constexpr size_t kSyndrome = offsetof(mlx5_err_cqe, syndrome);

constexpr uint8_t kPayload32 = MLX5_INLINE_SCATTER_32 >> 2;  // format: over the first 32 bytes
constexpr uint8_t kAppTagMatching = 1;  // rdma-core, providers/mlx5/cq.c, MLX5_CQE_APP_TAG_MATCHING

struct KindRow {
  CqeKind kind = CqeKind::other;
  uint8_t wc_opcode = 0;
  bool imm = false, invalidate = false;
};
constexpr KindRow kKinds[16] = {
    /* MLX5_CQE_REQ           0 */ {CqeKind::requester},
    /* MLX5_CQE_RESP_WR_IMM   1 */ {CqeKind::responder, IBV_WC_RECV_RDMA_WITH_IMM, true},
    /* MLX5_CQE_RESP_SEND     2 */ {CqeKind::responder, IBV_WC_RECV},
    /* MLX5_CQE_RESP_SEND_IMM 3 */ {CqeKind::responder, IBV_WC_RECV, true},
    /* MLX5_CQE_RESP_SEND_INV 4 */ {CqeKind::responder, IBV_WC_RECV, false, true},
    /* MLX5_CQE_RESIZE_CQ     5 */ {CqeKind::resize},
    /* MLX5_CQE_NO_PACKET     6 */ {CqeKind::no_packet},
    /*                     7-11 */ {},
    {},
    {},
    {},
    {},
    /* MLX5_CQE_SIG_ERR      12 */ {CqeKind::signature_error},
    /* MLX5_CQE_REQ_ERR      13 */ {CqeKind::requester_error},
    /* MLX5_CQE_RESP_ERR     14 */ {CqeKind::responder_error, IBV_WC_RECV},
    /* MLX5_CQE_INVALID      15 */ {CqeKind::invalid},
};
static_assert(MLX5_CQE_RESP_WR_IMM == 1 && MLX5_CQE_RESP_SEND_INV == 4 && MLX5_CQE_RESIZE_CQ == 5 &&
              MLX5_CQE_NO_PACKET == 6 && MLX5_CQE_SIG_ERR == 12 && MLX5_CQE_INVALID == 15);

// Which completion opcode a WQE's opcode gives (rdma-core, providers/mlx5/cq.c, handle_good_req).
struct WcRow {
  uint8_t wr, wc;
  bool bytes;  // byte_cnt is what arrived
};
constexpr WcRow kWcOfWr[] = {
    {IBV_WR_SEND, IBV_WC_SEND, false},
    {IBV_WR_SEND_WITH_IMM, IBV_WC_SEND, false},
    {IBV_WR_SEND_WITH_INV, IBV_WC_SEND, false},
    {IBV_WR_RDMA_WRITE, IBV_WC_RDMA_WRITE, false},
    {IBV_WR_RDMA_WRITE_WITH_IMM, IBV_WC_RDMA_WRITE, false},
    {IBV_WR_RDMA_READ, IBV_WC_RDMA_READ, true},
    {IBV_WR_ATOMIC_CMP_AND_SWP, IBV_WC_COMP_SWAP, false},
    {IBV_WR_ATOMIC_FETCH_AND_ADD, IBV_WC_FETCH_ADD, false},
    {IBV_WR_LOCAL_INV, IBV_WC_LOCAL_INV, false},
    {IBV_WR_BIND_MW, IBV_WC_BIND_MW, false},
    {IBV_WR_TSO, IBV_WC_TSO, false},
};

WcRow wc_of_wqe(uint8_t raw_opcode) {
  const uint8_t wr = wr_opcode_of(raw_opcode);
  for (const WcRow& row : kWcOfWr)
    if (row.wr == wr) return row;
  return {wr, IBV_WC_DRIVER1, false};
}

struct StatusRow {
  uint8_t syndrome, status;
};
constexpr StatusRow kStatuses[] = {
    {MLX5_CQE_SYNDROME_LOCAL_LENGTH_ERR, IBV_WC_LOC_LEN_ERR},
    {MLX5_CQE_SYNDROME_LOCAL_QP_OP_ERR, IBV_WC_LOC_QP_OP_ERR},
    {MLX5_CQE_SYNDROME_LOCAL_PROT_ERR, IBV_WC_LOC_PROT_ERR},
    {MLX5_CQE_SYNDROME_WR_FLUSH_ERR, IBV_WC_WR_FLUSH_ERR},
    {MLX5_CQE_SYNDROME_MW_BIND_ERR, IBV_WC_MW_BIND_ERR},
    {MLX5_CQE_SYNDROME_BAD_RESP_ERR, IBV_WC_BAD_RESP_ERR},
    {MLX5_CQE_SYNDROME_LOCAL_ACCESS_ERR, IBV_WC_LOC_ACCESS_ERR},
    {MLX5_CQE_SYNDROME_REMOTE_INVAL_REQ_ERR, IBV_WC_REM_INV_REQ_ERR},
    {MLX5_CQE_SYNDROME_REMOTE_ACCESS_ERR, IBV_WC_REM_ACCESS_ERR},
    {MLX5_CQE_SYNDROME_REMOTE_OP_ERR, IBV_WC_REM_OP_ERR},
    {MLX5_CQE_SYNDROME_TRANSPORT_RETRY_EXC_ERR, IBV_WC_RETRY_EXC_ERR},
    {MLX5_CQE_SYNDROME_RNR_RETRY_EXC_ERR, IBV_WC_RNR_RETRY_EXC_ERR},
    {MLX5_CQE_SYNDROME_REMOTE_ABORTED_ERR, IBV_WC_REM_ABORT_ERR},
};

bool is_error(CqeKind kind) {
  return kind == CqeKind::requester_error || kind == CqeKind::responder_error;
}

void set_requester(uint8_t wqe_opcode, Cqe& cqe) {
  cqe.wqe_opcode = wqe_opcode;
  const WcRow row = wc_of_wqe(wqe_opcode);
  cqe.wc_opcode = row.wc;
  cqe.has_bytes = row.bytes;
}

}  // namespace

uint8_t wc_status_of(uint8_t syndrome) {
  for (const StatusRow& row : kStatuses)
    if (row.syndrome == syndrome) return row.status;
  return IBV_WC_GENERAL_ERR;
}

Cqe decode_cqe(std::span<const std::byte, kCqeBytes> bytes) {
  CqeImage image;
  std::memcpy(static_cast<void*>(&image), bytes.data(), sizeof(image));
  const KindRow& row = kKinds[image.op_own >> 4];

  Cqe cqe;
  cqe.kind = row.kind;
  cqe.raw_opcode = image.op_own >> 4;
  cqe.format = image.op_own >> 2 & 3;
  cqe.owner = image.op_own & 1;
  cqe.iteration = image.signature;
  cqe.qp_num = image.sop_drop_qpn & 0xffffff;
  cqe.srqn_uidx = image.srqn_uidx;
  cqe.wqe_counter = image.wqe_counter;
  cqe.solicited = image.op_own & 2;
  cqe.wc_opcode = row.wc_opcode;
  if (cqe.kind == CqeKind::requester || cqe.kind == CqeKind::requester_error)
    set_requester(image.sop_drop_qpn >> 24, cqe);

  if (is_error(cqe.kind)) {
    cqe.has_bytes = false;
    cqe.syndrome = static_cast<uint8_t>(bytes[kSyndrome]);
    cqe.vendor_err = static_cast<uint8_t>(bytes[kVendorSyndrome]);
    cqe.status = wc_status_of(cqe.syndrome);
    cqe.flushed = cqe.status == IBV_WC_WR_FLUSH_ERR;
    return cqe;
  }
  if (cqe.kind != CqeKind::requester && cqe.kind != CqeKind::responder) return cqe;

  cqe.status = IBV_WC_SUCCESS;
  cqe.has_timestamp = true;
  cqe.timestamp = image.timestamp;
  cqe.bytes = image.byte_cnt;
  if (cqe.kind == CqeKind::requester) return cqe;

  cqe.has_bytes = true;
  cqe.tag_matching = image.app == kAppTagMatching;
  cqe.has_imm = row.imm;
  cqe.has_invalidate = row.invalidate;
  if (row.imm || row.invalidate) cqe.imm = image.imm_inval_pkey;
  cqe.has_source = cqe.format != kPayload32;
  if (cqe.has_source) {
    const uint32_t flags_rqpn = image.flags_rqpn;
    cqe.source_qp = flags_rqpn & 0xffffff;
    cqe.service_level = flags_rqpn >> 24 & 0xf;
    cqe.grh = (flags_rqpn >> 28 & 3) != 0;
    cqe.source_lid = image.slid;
    cqe.dlid_path_bits = image.ml_path & 0x7f;
  }
  return cqe;
}

// Requesters' entries have a counter and an opcode, responders' a hash or checksum; both end in
// byte_cnt. (openucx/ucx, uct_ib_mlx5_mini_cqe8_t; Linux, struct mlx5_mini_cqe8.)
Cqe expand_mini(const Cqe& title, std::span<const std::byte, kMiniCqeBytes> mini,
                uint16_t counter_step) {
  struct {
    Be16 wqe_counter;
    uint8_t wqe_opcode;
    uint8_t reserved;
    Be32 byte_cnt;
  } entry;
  static_assert(sizeof(entry) == kMiniCqeBytes);
  std::memcpy(static_cast<void*>(&entry), mini.data(), sizeof(entry));

  Cqe cqe = title;
  cqe.format = 0;
  cqe.bytes = entry.byte_cnt;
  if (counter_step != 0) cqe.has_timestamp = false;  // the title's time is its own alone
  if (title.kind == CqeKind::requester) {
    cqe.wqe_counter = entry.wqe_counter;
    set_requester(entry.wqe_opcode, cqe);
  } else {
    cqe.wqe_counter = static_cast<uint16_t>(title.wqe_counter + counter_step);
  }
  return cqe;
}

}  // namespace sigma
