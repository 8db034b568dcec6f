// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// One row a fact. Field places are taken from the uapi structs by offsetof, never written down.
//
// Which commands rdma-core sends how: objects are created and destroyed by ioctl methods where the
// library and the kernel have them, and by INVOKE_WRITE else; MODIFY_QP, REG_MR and CREATE_AH are
// INVOKE_WRITE in all releases up to 44. The core struct of INVOKE_WRITE lacks the
// ib_uverbs_cmd_hdr (and the extended one's ib_uverbs_ex_cmd_hdr) that preceded it in write(2).
#include "decode/uverbs_table.h"

#include <infiniband/verbs.h>
#include <rdma/ib_user_ioctl_cmds.h>
#include <rdma/ib_user_ioctl_verbs.h>
#include <rdma/ib_user_verbs.h>
#include <rdma/mlx5-abi.h>

#include <algorithm>
#include <cstring>

namespace sigma {
namespace {

// Newer than the headers of the oldest supported distribution. Source: Linux 6.18,
// include/uapi/rdma/ib_user_ioctl_cmds.h, enum uverbs_methods_mr and
// enum uverbs_attrs_reg_mr_cmd_attr_ids.
enum : uint16_t { kMethodRegMr = UVERBS_METHOD_REG_DMABUF_MR + 1 };
enum : uint16_t {
  kRegMrHandle = 0,
  kRegMrAddr = 4,
  kRegMrLength = 5,
  kRegMrAccessFlags = 6,
  kRegMrRespLkey = 9,
  kRegMrRespRkey = 10,
};
// enum ib_mr_rereg_flags: libibverbs' ibv_rereg_mr_flags has the same bits.
enum : uint32_t {
  kReregTranslation = IBV_REREG_MR_CHANGE_TRANSLATION,
  kReregAccess = IBV_REREG_MR_CHANGE_ACCESS,
};

uint64_t load(std::span<const std::byte> field) {
  uint64_t value = 0;
  std::memcpy(&value, field.data(), std::min(field.size(), sizeof(value)));
  return value;
}

template <typename Class, typename T>
T value_type(std::optional<T> Class::*);

template <auto Member>
void store(UverbsFacts& facts, std::span<const std::byte> field) {
  facts.*Member = static_cast<decltype(value_type(Member))>(load(field));
}

template <auto Member>
void store_av(UverbsFacts& facts, std::span<const std::byte> field) {
  if (!facts.address) facts.address.emplace();
  (*facts.address).*Member = static_cast<decltype(value_type(Member))>(load(field));
}

void store_dgid(UverbsFacts& facts, std::span<const std::byte> field) {
  if (!facts.address) facts.address.emplace();
  std::array<uint8_t, 16> gid{};
  std::memcpy(gid.data(), field.data(), std::min(field.size(), gid.size()));
  facts.address->dgid = gid;
}

// LID 0 is reserved (IBA 4.1.3): RoCE's address vectors have it.
void store_dlid(UverbsFacts& facts, std::span<const std::byte> field) {
  if (!facts.address) facts.address.emplace();
  if (const auto lid = static_cast<uint16_t>(load(field)); lid != 0) facts.address->dlid = lid;
}

void store_mtu(UverbsFacts& facts, std::span<const std::byte> field) {
  const uint64_t mtu = load(field);  // enum ibv_mtu
  if (mtu >= IBV_MTU_256 && mtu <= IBV_MTU_4096) facts.path_mtu_bytes = 128u << mtu;
}

void store_compressed(UverbsFacts& facts, std::span<const std::byte> field) {
  facts.cqes_compressed = load(field) != 0;
}

void store_create_flags(UverbsFacts& facts, std::span<const std::byte> field) {
  facts.sq_sig_all = (load(field) & IB_UVERBS_QP_CREATE_SQ_SIG_ALL) != 0;
}

// mlx5 answers with the index of the last entry (mlx5_ib_create_cq: cq->ibcq.cqe = entries - 1).
void store_last_cqe(UverbsFacts& facts, std::span<const std::byte> field) {
  facts.cqe = static_cast<uint32_t>(load(field)) + 1;
}

template <typename T>
constexpr uint8_t width_of() {
  static_assert(sizeof(T) <= 16);
  return sizeof(T);
}

#define PLACE(type, member) \
  static_cast<uint16_t>(offsetof(type, member)), width_of<decltype(type::member)>()
#define CORE_IN(type, member) UVERBS_ATTR_CORE_IN, PLACE(type, member)
#define CORE_OUT(type, member) UVERBS_ATTR_CORE_OUT, PLACE(type, member)
#define UHW_IN(type, member) UVERBS_ATTR_UHW_IN, PLACE(type, member)
#define UHW_OUT(type, member) UVERBS_ATTR_UHW_OUT, PLACE(type, member)
#define WHOLE(attr) (attr), 0, UverbsRow::kWhole
#define NONZERO(type, member) static_cast<uint16_t>(offsetof(type, member))

using F = UverbsFacts;
using AV = AddressVector;

// ---- queue pairs ----------------------------------------------------------------------------

constexpr UverbsRow kQpCreate[] = {
    {WHOLE(UVERBS_ATTR_CREATE_QP_HANDLE), store<&F::handle>},
    {WHOLE(UVERBS_ATTR_CREATE_QP_USER_HANDLE), store<&F::user_handle>},
    {WHOLE(UVERBS_ATTR_CREATE_QP_PD_HANDLE), store<&F::pd>},
    {WHOLE(UVERBS_ATTR_CREATE_QP_SEND_CQ_HANDLE), store<&F::send_cq>},
    {WHOLE(UVERBS_ATTR_CREATE_QP_RECV_CQ_HANDLE), store<&F::recv_cq>},
    {WHOLE(UVERBS_ATTR_CREATE_QP_SRQ_HANDLE), store<&F::srq>},
    {WHOLE(UVERBS_ATTR_CREATE_QP_TYPE), store<&F::qp_type>},
    {.attr = UVERBS_ATTR_CREATE_QP_FLAGS,
     .offset = 0,
     .width = UverbsRow::kWhole,
     .store = store_create_flags,
     .absent_is_zero = true},
    // Asked for, then (overwriting) what the kernel granted.
    {UVERBS_ATTR_CREATE_QP_CAP, PLACE(ib_uverbs_qp_cap, max_send_wr), store<&F::max_send_wr>},
    {UVERBS_ATTR_CREATE_QP_CAP, PLACE(ib_uverbs_qp_cap, max_recv_wr), store<&F::max_recv_wr>},
    {UVERBS_ATTR_CREATE_QP_CAP, PLACE(ib_uverbs_qp_cap, max_send_sge), store<&F::max_send_sge>},
    {UVERBS_ATTR_CREATE_QP_CAP, PLACE(ib_uverbs_qp_cap, max_recv_sge), store<&F::max_recv_sge>},
    {UVERBS_ATTR_CREATE_QP_CAP, PLACE(ib_uverbs_qp_cap, max_inline_data),
     store<&F::max_inline_data>},
    {UVERBS_ATTR_CREATE_QP_RESP_CAP, PLACE(ib_uverbs_qp_cap, max_send_wr), store<&F::max_send_wr>},
    {UVERBS_ATTR_CREATE_QP_RESP_CAP, PLACE(ib_uverbs_qp_cap, max_recv_wr), store<&F::max_recv_wr>},
    {UVERBS_ATTR_CREATE_QP_RESP_CAP, PLACE(ib_uverbs_qp_cap, max_send_sge),
     store<&F::max_send_sge>},
    {UVERBS_ATTR_CREATE_QP_RESP_CAP, PLACE(ib_uverbs_qp_cap, max_recv_sge),
     store<&F::max_recv_sge>},
    {UVERBS_ATTR_CREATE_QP_RESP_CAP, PLACE(ib_uverbs_qp_cap, max_inline_data),
     store<&F::max_inline_data>},
    {WHOLE(UVERBS_ATTR_CREATE_QP_RESP_QP_NUM), store<&F::qp_num>},
};

// ib_uverbs_ex_create_qp has the fields of ib_uverbs_create_qp, 8 bytes (`response`) earlier.
#define QP_CREATE_WRITE(req)                                                                     \
  {CORE_IN(req, user_handle), store<&F::user_handle>}, {CORE_IN(req, pd_handle), store<&F::pd>}, \
      {CORE_IN(req, send_cq_handle), store<&F::send_cq>},                                        \
      {CORE_IN(req, recv_cq_handle), store<&F::recv_cq>},                                        \
      {CORE_IN(req, srq_handle), store<&F::srq>, 0, NONZERO(req, is_srq)},                       \
      {CORE_IN(req, sq_sig_all), store<&F::sq_sig_all>},                                         \
      {CORE_IN(req, qp_type), store<&F::qp_type>},                                               \
      {CORE_OUT(ib_uverbs_create_qp_resp, qp_handle), store<&F::handle>},                        \
      {CORE_OUT(ib_uverbs_create_qp_resp, qpn), store<&F::qp_num>},                              \
      {CORE_OUT(ib_uverbs_create_qp_resp, max_send_wr), store<&F::max_send_wr>},                 \
      {CORE_OUT(ib_uverbs_create_qp_resp, max_recv_wr), store<&F::max_recv_wr>},                 \
      {CORE_OUT(ib_uverbs_create_qp_resp, max_send_sge), store<&F::max_send_sge>},               \
      {CORE_OUT(ib_uverbs_create_qp_resp, max_recv_sge), store<&F::max_recv_sge>}, {             \
    CORE_OUT(ib_uverbs_create_qp_resp, max_inline_data), store<&F::max_inline_data>              \
  }

constexpr UverbsRow kQpCreateWrite[] = {QP_CREATE_WRITE(ib_uverbs_create_qp)};
constexpr UverbsRow kQpCreateWriteEx[] = {QP_CREATE_WRITE(ib_uverbs_ex_create_qp)};
#undef QP_CREATE_WRITE

constexpr UverbsRow kQpCreateMlx5[] = {
    {UHW_IN(mlx5_ib_create_qp, buf_addr), store<&F::ring_addr>},
    {UHW_IN(mlx5_ib_create_qp, db_addr), store<&F::doorbell_addr>},
    {UHW_IN(mlx5_ib_create_qp, sq_wqe_count), store<&F::sq_wqe_count>},
    {UHW_IN(mlx5_ib_create_qp, rq_wqe_count), store<&F::rq_wqe_count>},
    {UHW_IN(mlx5_ib_create_qp, rq_wqe_shift), store<&F::rq_wqe_shift>},
    {UHW_IN(mlx5_ib_create_qp, flags), store<&F::driver_flags>},
    {UHW_IN(mlx5_ib_create_qp, sq_buf_addr), store<&F::sq_ring_addr>},
};

#define QP_DEST(member) CORE_IN(ib_uverbs_modify_qp, dest.member)
#define IF_GRH NONZERO(ib_uverbs_modify_qp, dest.is_global)
#define QP(member) CORE_IN(ib_uverbs_modify_qp, member)
constexpr UverbsRow kQpModify[] = {
    {QP(qp_handle), store<&F::handle>},
    {QP(qp_state), store<&F::qp_state>, IBV_QP_STATE},
    {QP(port_num), store<&F::port>, IBV_QP_PORT},
    {QP(pkey_index), store<&F::pkey_index>, IBV_QP_PKEY_INDEX},
    {QP(qkey), store<&F::qkey>, IBV_QP_QKEY},
    {QP(dest_qp_num), store<&F::peer_qp_num>, IBV_QP_DEST_QPN},
    {QP(path_mtu), store_mtu, IBV_QP_PATH_MTU},
    {QP(sq_psn), store<&F::sq_psn>, IBV_QP_SQ_PSN},
    {QP(rq_psn), store<&F::rq_psn>, IBV_QP_RQ_PSN},
    {QP(timeout), store<&F::timeout>, IBV_QP_TIMEOUT},
    {QP(retry_cnt), store<&F::retry_cnt>, IBV_QP_RETRY_CNT},
    {QP(rnr_retry), store<&F::rnr_retry>, IBV_QP_RNR_RETRY},
    {QP(min_rnr_timer), store<&F::min_rnr_timer>, IBV_QP_MIN_RNR_TIMER},
    {QP(max_rd_atomic), store<&F::max_rd_atomic>, IBV_QP_MAX_QP_RD_ATOMIC},
    {QP(max_dest_rd_atomic), store<&F::max_dest_rd_atomic>, IBV_QP_MAX_DEST_RD_ATOMIC},
    {QP_DEST(dlid), store_dlid, IBV_QP_AV},
    {QP_DEST(sl), store_av<&AV::sl>, IBV_QP_AV},
    {QP_DEST(static_rate), store_av<&AV::static_rate>, IBV_QP_AV},
    {QP_DEST(port_num), store_av<&AV::port>, IBV_QP_AV},
    {QP_DEST(dgid), store_dgid, IBV_QP_AV, IF_GRH},
    {QP_DEST(flow_label), store_av<&AV::flow_label>, IBV_QP_AV, IF_GRH},
    {QP_DEST(sgid_index), store_av<&AV::sgid_index>, IBV_QP_AV, IF_GRH},
    {QP_DEST(hop_limit), store_av<&AV::hop_limit>, IBV_QP_AV, IF_GRH},
    {QP_DEST(traffic_class), store_av<&AV::traffic_class>, IBV_QP_AV, IF_GRH},
};
#undef QP
#undef IF_GRH
#undef QP_DEST

constexpr UverbsRow kQpDestroy[] = {{WHOLE(UVERBS_ATTR_DESTROY_QP_HANDLE), store<&F::handle>}};
constexpr UverbsRow kQpDestroyWrite[] = {
    {CORE_IN(ib_uverbs_destroy_qp, qp_handle), store<&F::handle>}};

// ---- completion queues ----------------------------------------------------------------------

constexpr UverbsRow kCqCreate[] = {
    {WHOLE(UVERBS_ATTR_CREATE_CQ_HANDLE), store<&F::handle>},
    {WHOLE(UVERBS_ATTR_CREATE_CQ_USER_HANDLE), store<&F::user_handle>},
    {WHOLE(UVERBS_ATTR_CREATE_CQ_CQE), store<&F::cqe>},
    {WHOLE(UVERBS_ATTR_CREATE_CQ_RESP_CQE), store<&F::cqe>},
};
constexpr UverbsRow kCqCreateWrite[] = {
    {CORE_IN(ib_uverbs_create_cq, user_handle), store<&F::user_handle>},
    {CORE_OUT(ib_uverbs_create_cq_resp, cq_handle), store<&F::handle>},
    {CORE_OUT(ib_uverbs_create_cq_resp, cqe), store<&F::cqe>},
};
constexpr UverbsRow kCqCreateWriteEx[] = {
    {CORE_IN(ib_uverbs_ex_create_cq, user_handle), store<&F::user_handle>},
    {CORE_OUT(ib_uverbs_create_cq_resp, cq_handle), store<&F::handle>},
    {CORE_OUT(ib_uverbs_create_cq_resp, cqe), store<&F::cqe>},
};
#define CQ_CREATE_MLX5                                                \
  {UHW_IN(mlx5_ib_create_cq, buf_addr), store<&F::ring_addr>},        \
      {UHW_IN(mlx5_ib_create_cq, db_addr), store<&F::doorbell_addr>}, \
      {UHW_IN(mlx5_ib_create_cq, cqe_size), store<&F::cqe_size>},     \
      {UHW_IN(mlx5_ib_create_cq, flags), store<&F::driver_flags>},    \
      {UHW_IN(mlx5_ib_create_cq, cqe_comp_en), store_compressed}, {   \
    UHW_OUT(mlx5_ib_create_cq_resp, cqn), store<&F::cqn>              \
  }
constexpr UverbsRow kCqCreateMlx5[] = {CQ_CREATE_MLX5,
                                       {WHOLE(UVERBS_ATTR_CREATE_CQ_RESP_CQE), store_last_cqe}};
constexpr UverbsRow kCqCreateWriteMlx5[] = {
    CQ_CREATE_MLX5, {CORE_OUT(ib_uverbs_create_cq_resp, cqe), store_last_cqe}};
#undef CQ_CREATE_MLX5
constexpr UverbsRow kCqResize[] = {
    {CORE_IN(ib_uverbs_resize_cq, cq_handle), store<&F::handle>},
    {CORE_OUT(ib_uverbs_resize_cq_resp, cqe), store<&F::cqe>},
};
constexpr UverbsRow kCqResizeMlx5[] = {
    {UHW_IN(mlx5_ib_resize_cq, buf_addr), store<&F::ring_addr>},
    {UHW_IN(mlx5_ib_resize_cq, cqe_size), store<&F::cqe_size>},
    {CORE_OUT(ib_uverbs_resize_cq_resp, cqe), store_last_cqe},
};
constexpr UverbsRow kCqDestroy[] = {{WHOLE(UVERBS_ATTR_DESTROY_CQ_HANDLE), store<&F::handle>}};
constexpr UverbsRow kCqDestroyWrite[] = {
    {CORE_IN(ib_uverbs_destroy_cq, cq_handle), store<&F::handle>}};

// ---- shared receive queues ------------------------------------------------------------------

constexpr UverbsRow kSrqCreate[] = {
    {WHOLE(UVERBS_ATTR_CREATE_SRQ_HANDLE), store<&F::handle>},
    {WHOLE(UVERBS_ATTR_CREATE_SRQ_USER_HANDLE), store<&F::user_handle>},
    {WHOLE(UVERBS_ATTR_CREATE_SRQ_PD_HANDLE), store<&F::pd>},
    {WHOLE(UVERBS_ATTR_CREATE_SRQ_MAX_WR), store<&F::max_wr>},
};
constexpr UverbsRow kSrqCreateWrite[] = {
    {CORE_IN(ib_uverbs_create_srq, user_handle), store<&F::user_handle>},
    {CORE_IN(ib_uverbs_create_srq, pd_handle), store<&F::pd>},
    {CORE_IN(ib_uverbs_create_srq, max_wr), store<&F::max_wr>},
    {CORE_OUT(ib_uverbs_create_srq_resp, srq_handle), store<&F::handle>},
};
constexpr UverbsRow kXsrqCreateWrite[] = {
    {CORE_IN(ib_uverbs_create_xsrq, user_handle), store<&F::user_handle>},
    {CORE_IN(ib_uverbs_create_xsrq, pd_handle), store<&F::pd>},
    {CORE_IN(ib_uverbs_create_xsrq, max_wr), store<&F::max_wr>},
    {CORE_OUT(ib_uverbs_create_srq_resp, srq_handle), store<&F::handle>},
};
constexpr UverbsRow kSrqDestroy[] = {{WHOLE(UVERBS_ATTR_DESTROY_SRQ_HANDLE), store<&F::handle>}};
constexpr UverbsRow kSrqDestroyWrite[] = {
    {CORE_IN(ib_uverbs_destroy_srq, srq_handle), store<&F::handle>}};
constexpr UverbsRow kSrqCreateMlx5[] = {
    {UHW_IN(mlx5_ib_create_srq, buf_addr), store<&F::ring_addr>},
    {UHW_IN(mlx5_ib_create_srq, db_addr), store<&F::doorbell_addr>},
};

// ---- memory regions -------------------------------------------------------------------------

constexpr UverbsRow kMrRegWrite[] = {
    {CORE_IN(ib_uverbs_reg_mr, start), store<&F::mr_addr>},
    {CORE_IN(ib_uverbs_reg_mr, length), store<&F::mr_length>},
    {CORE_IN(ib_uverbs_reg_mr, pd_handle), store<&F::pd>},
    {CORE_IN(ib_uverbs_reg_mr, access_flags), store<&F::access>},
    {CORE_OUT(ib_uverbs_reg_mr_resp, mr_handle), store<&F::handle>},
    {CORE_OUT(ib_uverbs_reg_mr_resp, lkey), store<&F::lkey>},
    {CORE_OUT(ib_uverbs_reg_mr_resp, rkey), store<&F::rkey>},
};
constexpr UverbsRow kMrRereg[] = {
    {CORE_IN(ib_uverbs_rereg_mr, mr_handle), store<&F::handle>},
    {CORE_IN(ib_uverbs_rereg_mr, start), store<&F::mr_addr>, kReregTranslation},
    {CORE_IN(ib_uverbs_rereg_mr, length), store<&F::mr_length>, kReregTranslation},
    {CORE_IN(ib_uverbs_rereg_mr, access_flags), store<&F::access>, kReregAccess},
    {CORE_OUT(ib_uverbs_rereg_mr_resp, lkey), store<&F::lkey>},
    {CORE_OUT(ib_uverbs_rereg_mr_resp, rkey), store<&F::rkey>},
};
constexpr UverbsRow kMrReg[] = {
    {WHOLE(kRegMrHandle), store<&F::handle>},    {WHOLE(kRegMrAddr), store<&F::mr_addr>},
    {WHOLE(kRegMrLength), store<&F::mr_length>}, {WHOLE(kRegMrAccessFlags), store<&F::access>},
    {WHOLE(kRegMrRespLkey), store<&F::lkey>},    {WHOLE(kRegMrRespRkey), store<&F::rkey>},
};
// Device memory and dma-bufs have an offset, or an IO virtual address, in the place of an address.
constexpr UverbsRow kMrRegDm[] = {
    {WHOLE(UVERBS_ATTR_REG_DM_MR_HANDLE), store<&F::handle>},
    {WHOLE(UVERBS_ATTR_REG_DM_MR_OFFSET), store<&F::mr_addr>},
    {WHOLE(UVERBS_ATTR_REG_DM_MR_LENGTH), store<&F::mr_length>},
    {WHOLE(UVERBS_ATTR_REG_DM_MR_ACCESS_FLAGS), store<&F::access>},
    {WHOLE(UVERBS_ATTR_REG_DM_MR_RESP_LKEY), store<&F::lkey>},
    {WHOLE(UVERBS_ATTR_REG_DM_MR_RESP_RKEY), store<&F::rkey>},
};
constexpr UverbsRow kMrRegDmabuf[] = {
    {WHOLE(UVERBS_ATTR_REG_DMABUF_MR_HANDLE), store<&F::handle>},
    {WHOLE(UVERBS_ATTR_REG_DMABUF_MR_IOVA), store<&F::mr_addr>},
    {WHOLE(UVERBS_ATTR_REG_DMABUF_MR_LENGTH), store<&F::mr_length>},
    {WHOLE(UVERBS_ATTR_REG_DMABUF_MR_ACCESS_FLAGS), store<&F::access>},
    {WHOLE(UVERBS_ATTR_REG_DMABUF_MR_RESP_LKEY), store<&F::lkey>},
    {WHOLE(UVERBS_ATTR_REG_DMABUF_MR_RESP_RKEY), store<&F::rkey>},
};
// A query names a region older than the attach (ibv_import_mr).
constexpr UverbsRow kMrQuery[] = {
    {WHOLE(UVERBS_ATTR_QUERY_MR_HANDLE), store<&F::handle>},
    {WHOLE(UVERBS_ATTR_QUERY_MR_RESP_IOVA), store<&F::mr_addr>},
    {WHOLE(UVERBS_ATTR_QUERY_MR_RESP_LENGTH), store<&F::mr_length>},
    {WHOLE(UVERBS_ATTR_QUERY_MR_RESP_LKEY), store<&F::lkey>},
    {WHOLE(UVERBS_ATTR_QUERY_MR_RESP_RKEY), store<&F::rkey>},
};
constexpr UverbsRow kMrDestroy[] = {{WHOLE(UVERBS_ATTR_DESTROY_MR_HANDLE), store<&F::handle>}};
constexpr UverbsRow kMrDestroyWrite[] = {
    {CORE_IN(ib_uverbs_dereg_mr, mr_handle), store<&F::handle>}};

// ---- address handles ------------------------------------------------------------------------

#define AH(member) CORE_IN(ib_uverbs_create_ah, attr.member)
#define IF_GRH NONZERO(ib_uverbs_create_ah, attr.is_global)
constexpr UverbsRow kAhCreate[] = {
    {CORE_OUT(ib_uverbs_create_ah_resp, ah_handle), store<&F::handle>},
    {CORE_IN(ib_uverbs_create_ah, pd_handle), store<&F::pd>},
    {AH(dlid), store_dlid},
    {AH(sl), store_av<&AV::sl>},
    {AH(static_rate), store_av<&AV::static_rate>},
    {AH(port_num), store_av<&AV::port>},
    {AH(grh.dgid), store_dgid, 0, IF_GRH},
    {AH(grh.flow_label), store_av<&AV::flow_label>, 0, IF_GRH},
    {AH(grh.sgid_index), store_av<&AV::sgid_index>, 0, IF_GRH},
    {AH(grh.hop_limit), store_av<&AV::hop_limit>, 0, IF_GRH},
    {AH(grh.traffic_class), store_av<&AV::traffic_class>, 0, IF_GRH},
};
#undef IF_GRH
#undef AH
constexpr UverbsRow kAhDestroy[] = {{WHOLE(UVERBS_ATTR_DESTROY_AH_HANDLE), store<&F::handle>}};
constexpr UverbsRow kAhDestroyWrite[] = {
    {CORE_IN(ib_uverbs_destroy_ah, ah_handle), store<&F::handle>}};

// ---- methods --------------------------------------------------------------------------------

constexpr uint32_t kIoctl = UverbsMethod::kIoctl;
constexpr uint32_t extended(uint32_t cmd) {
  return cmd | IB_USER_VERBS_CMD_FLAG_EXTENDED;
}
#define WRITE(cmd) UVERBS_OBJECT_DEVICE, UVERBS_METHOD_INVOKE_WRITE, (cmd)
constexpr auto kNoMask = UverbsMethod::kNoMask;
constexpr uint16_t kModifyMask = offsetof(ib_uverbs_modify_qp, attr_mask);
constexpr uint16_t kReregMask = offsetof(ib_uverbs_rereg_mr, flags);

using O = UverbsObject;
using A = UverbsAction;

constexpr UverbsMethod kMethods[] = {
    {UVERBS_OBJECT_DEVICE, UVERBS_METHOD_GET_CONTEXT, kIoctl, O::context, A::create, {}},
    {WRITE(IB_USER_VERBS_CMD_GET_CONTEXT), O::context, A::create, {}},

    {UVERBS_OBJECT_QP, UVERBS_METHOD_QP_CREATE, kIoctl, O::qp, A::create, kQpCreate, kQpCreateMlx5},
    {WRITE(IB_USER_VERBS_CMD_CREATE_QP), O::qp, A::create, kQpCreateWrite, kQpCreateMlx5},
    {WRITE(extended(IB_USER_VERBS_EX_CMD_CREATE_QP)), O::qp, A::create, kQpCreateWriteEx,
     kQpCreateMlx5},
    {WRITE(IB_USER_VERBS_CMD_MODIFY_QP), O::qp, A::modify, kQpModify, {}, kModifyMask},
    {WRITE(extended(IB_USER_VERBS_EX_CMD_MODIFY_QP)), O::qp, A::modify, kQpModify, {}, kModifyMask},
    {UVERBS_OBJECT_QP, UVERBS_METHOD_QP_DESTROY, kIoctl, O::qp, A::destroy, kQpDestroy},
    {WRITE(IB_USER_VERBS_CMD_DESTROY_QP), O::qp, A::destroy, kQpDestroyWrite},

    {UVERBS_OBJECT_CQ, UVERBS_METHOD_CQ_CREATE, kIoctl, O::cq, A::create, kCqCreate, kCqCreateMlx5},
    {WRITE(IB_USER_VERBS_CMD_CREATE_CQ), O::cq, A::create, kCqCreateWrite, kCqCreateWriteMlx5},
    {WRITE(extended(IB_USER_VERBS_EX_CMD_CREATE_CQ)), O::cq, A::create, kCqCreateWriteEx,
     kCqCreateWriteMlx5},
    {WRITE(IB_USER_VERBS_CMD_RESIZE_CQ), O::cq, A::modify, kCqResize, kCqResizeMlx5},
    {UVERBS_OBJECT_CQ, UVERBS_METHOD_CQ_DESTROY, kIoctl, O::cq, A::destroy, kCqDestroy},
    {WRITE(IB_USER_VERBS_CMD_DESTROY_CQ), O::cq, A::destroy, kCqDestroyWrite},

    {UVERBS_OBJECT_SRQ, UVERBS_METHOD_SRQ_CREATE, kIoctl, O::srq, A::create, kSrqCreate,
     kSrqCreateMlx5},
    {WRITE(IB_USER_VERBS_CMD_CREATE_SRQ), O::srq, A::create, kSrqCreateWrite, kSrqCreateMlx5},
    {WRITE(IB_USER_VERBS_CMD_CREATE_XSRQ), O::srq, A::create, kXsrqCreateWrite, kSrqCreateMlx5},
    {UVERBS_OBJECT_SRQ, UVERBS_METHOD_SRQ_DESTROY, kIoctl, O::srq, A::destroy, kSrqDestroy},
    {WRITE(IB_USER_VERBS_CMD_DESTROY_SRQ), O::srq, A::destroy, kSrqDestroyWrite},

    {WRITE(IB_USER_VERBS_CMD_REG_MR), O::mr, A::create, kMrRegWrite},
    {WRITE(IB_USER_VERBS_CMD_REREG_MR), O::mr, A::modify, kMrRereg, {}, kReregMask},
    {UVERBS_OBJECT_MR, kMethodRegMr, kIoctl, O::mr, A::create, kMrReg},
    {UVERBS_OBJECT_MR, UVERBS_METHOD_DM_MR_REG, kIoctl, O::mr, A::create, kMrRegDm},
    {UVERBS_OBJECT_MR, UVERBS_METHOD_REG_DMABUF_MR, kIoctl, O::mr, A::create, kMrRegDmabuf},
    {UVERBS_OBJECT_MR, UVERBS_METHOD_QUERY_MR, kIoctl, O::mr, A::modify, kMrQuery},
    {UVERBS_OBJECT_MR, UVERBS_METHOD_MR_DESTROY, kIoctl, O::mr, A::destroy, kMrDestroy},
    {WRITE(IB_USER_VERBS_CMD_DEREG_MR), O::mr, A::destroy, kMrDestroyWrite},

    {WRITE(IB_USER_VERBS_CMD_CREATE_AH), O::ah, A::create, kAhCreate},
    {UVERBS_OBJECT_AH, UVERBS_METHOD_AH_DESTROY, kIoctl, O::ah, A::destroy, kAhDestroy},
    {WRITE(IB_USER_VERBS_CMD_DESTROY_AH), O::ah, A::destroy, kAhDestroyWrite},
};

// A wrong include must not move a field silently: these are ABI since Linux 4.20.
static_assert(sizeof(ib_uverbs_modify_qp) == 112 && offsetof(ib_uverbs_modify_qp, qp_handle) == 64);
static_assert(sizeof(ib_uverbs_create_qp_resp) == 32 && sizeof(ib_uverbs_qp_cap) == 20);
static_assert(offsetof(ib_uverbs_create_ah, attr) == 24 && sizeof(ib_uverbs_ah_attr) == 32);
static_assert(offsetof(mlx5_ib_create_qp, sq_buf_addr) == 40);

}  // namespace

std::span<const UverbsMethod> uverbs_methods() {
  return kMethods;
}

}  // namespace sigma
