// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// bpf/verbs.h against the installed headers: at compile time, but a test, so that it is seen to be
// held.
#include <infiniband/mlx5dv.h>
#include <infiniband/verbs.h>
#include <rdma/ib_user_ioctl_cmds.h>
#include <rdma/ib_user_ioctl_verbs.h>
#include <rdma/ib_user_verbs.h>
#include <rdma/mlx5_user_ioctl_cmds.h>
#include <rdma/mlx5-abi.h>
#include <rdma/rdma_user_ioctl_cmds.h>

#include <cstddef>

#include "bpf/records.h"
#include "bpf/verbs.h"
#include "catch.h"

#define SAME(ours, our_field, theirs, their_field)                                             \
  static_assert(offsetof(ours, our_field) == offsetof(theirs, their_field), #ours #our_field); \
  static_assert(sizeof(ours::our_field) == sizeof(theirs::their_field), #ours #our_field)

SAME(sigma_ibv_qp, context, ibv_qp, context);
SAME(sigma_ibv_qp, send_cq, ibv_qp, send_cq);
SAME(sigma_ibv_qp, recv_cq, ibv_qp, recv_cq);
SAME(sigma_ibv_qp, srq, ibv_qp, srq);
SAME(sigma_ibv_qp, handle, ibv_qp, handle);
SAME(sigma_ibv_qp, qp_num, ibv_qp, qp_num);
SAME(sigma_ibv_qp, state, ibv_qp, state);
SAME(sigma_ibv_qp, qp_type, ibv_qp, qp_type);

static_assert(sizeof(sigma_ibv_send_wr) == sizeof(ibv_send_wr));
SAME(sigma_ibv_send_wr, wr_id, ibv_send_wr, wr_id);
SAME(sigma_ibv_send_wr, next, ibv_send_wr, next);
SAME(sigma_ibv_send_wr, sg_list, ibv_send_wr, sg_list);
SAME(sigma_ibv_send_wr, num_sge, ibv_send_wr, num_sge);
SAME(sigma_ibv_send_wr, opcode, ibv_send_wr, opcode);
SAME(sigma_ibv_send_wr, send_flags, ibv_send_wr, send_flags);
SAME(sigma_ibv_send_wr, imm, ibv_send_wr, imm_data);
SAME(sigma_ibv_send_wr, imm, ibv_send_wr, invalidate_rkey);
SAME(sigma_ibv_send_wr, wr.rdma.remote_addr, ibv_send_wr, wr.rdma.remote_addr);
SAME(sigma_ibv_send_wr, wr.rdma.rkey, ibv_send_wr, wr.rdma.rkey);
SAME(sigma_ibv_send_wr, wr.atomic.remote_addr, ibv_send_wr, wr.atomic.remote_addr);
SAME(sigma_ibv_send_wr, wr.atomic.rkey, ibv_send_wr, wr.atomic.rkey);
SAME(sigma_ibv_send_wr, wr.ud.ah, ibv_send_wr, wr.ud.ah);
SAME(sigma_ibv_send_wr, wr.ud.remote_qpn, ibv_send_wr, wr.ud.remote_qpn);
SAME(sigma_ibv_send_wr, bind_mw.rkey, ibv_send_wr, bind_mw.rkey);
SAME(sigma_ibv_send_wr, tso.hdr_sz, ibv_send_wr, tso.hdr_sz);

static_assert(sizeof(sigma_ibv_recv_wr) == sizeof(ibv_recv_wr));
SAME(sigma_ibv_recv_wr, wr_id, ibv_recv_wr, wr_id);
SAME(sigma_ibv_recv_wr, next, ibv_recv_wr, next);
SAME(sigma_ibv_recv_wr, sg_list, ibv_recv_wr, sg_list);
SAME(sigma_ibv_recv_wr, num_sge, ibv_recv_wr, num_sge);
static_assert(offsetof(ibv_send_wr, next) == offsetof(ibv_recv_wr, next), "list walks rely on it");

static_assert(sizeof(sigma_ibv_sge) == sizeof(ibv_sge));
SAME(sigma_ibv_sge, addr, ibv_sge, addr);
SAME(sigma_ibv_sge, length, ibv_sge, length);
SAME(sigma_ibv_sge, lkey, ibv_sge, lkey);
static_assert(sizeof(sigma_ibv_data_buf) == sizeof(ibv_data_buf));
SAME(sigma_ibv_data_buf, addr, ibv_data_buf, addr);
SAME(sigma_ibv_data_buf, length, ibv_data_buf, length);

static_assert(sizeof(sigma_ibv_wc) == sizeof(ibv_wc));
SAME(sigma_ibv_wc, wr_id, ibv_wc, wr_id);
SAME(sigma_ibv_wc, status, ibv_wc, status);
SAME(sigma_ibv_wc, opcode, ibv_wc, opcode);
SAME(sigma_ibv_wc, vendor_err, ibv_wc, vendor_err);
SAME(sigma_ibv_wc, byte_len, ibv_wc, byte_len);
SAME(sigma_ibv_wc, imm, ibv_wc, imm_data);
SAME(sigma_ibv_wc, qp_num, ibv_wc, qp_num);
SAME(sigma_ibv_wc, src_qp, ibv_wc, src_qp);
SAME(sigma_ibv_wc, wc_flags, ibv_wc, wc_flags);
SAME(sigma_ibv_wc, pkey_index, ibv_wc, pkey_index);
SAME(sigma_ibv_wc, slid, ibv_wc, slid);
SAME(sigma_ibv_wc, sl, ibv_wc, sl);
SAME(sigma_ibv_wc, dlid_path_bits, ibv_wc, dlid_path_bits);

static_assert(SIGMA_IBV_CQ_EX_COMP_MASK == offsetof(ibv_cq_ex, comp_mask));
static_assert(SIGMA_IBV_CQ_EX_COMP_MASK + offsetof(sigma_ibv_cq_ex, status) ==
              offsetof(ibv_cq_ex, status));
static_assert(SIGMA_IBV_CQ_EX_COMP_MASK + offsetof(sigma_ibv_cq_ex, wr_id) ==
              offsetof(ibv_cq_ex, wr_id));
static_assert(SIGMA_IBV_CQ_CONTEXT == offsetof(ibv_cq_ex, context));

static_assert(sizeof(sigma_mlx5_cqe) == sizeof(mlx5_cqe64));
SAME(sigma_mlx5_cqe, ml_path, mlx5_cqe64, ml_path);
SAME(sigma_mlx5_cqe, slid, mlx5_cqe64, slid);
SAME(sigma_mlx5_cqe, flags_rqpn, mlx5_cqe64, flags_rqpn);
SAME(sigma_mlx5_cqe, imm_inval_pkey, mlx5_cqe64, imm_inval_pkey);
SAME(sigma_mlx5_cqe, byte_cnt, mlx5_cqe64, byte_cnt);
SAME(sigma_mlx5_cqe, timestamp, mlx5_cqe64, timestamp);
SAME(sigma_mlx5_cqe, sop_drop_qpn, mlx5_cqe64, sop_drop_qpn);
SAME(sigma_mlx5_cqe, op_own, mlx5_cqe64, op_own);
static_assert(offsetof(sigma_mlx5_cqe, timestamp) + 6 == offsetof(mlx5_err_cqe, vendor_err_synd));
static_assert(offsetof(mlx5_err_cqe, s_wqe_opcode_qpn) == offsetof(mlx5_cqe64, sop_drop_qpn));

// The address vector follows struct ibv_ah, of which the handle is the last member.
#define SAME_AV(member)                                                  \
  static_assert(SIGMA_IBV_AH_HANDLE + offsetof(sigma_mlx5_ah, member) == \
                sizeof(ibv_ah) + offsetof(mlx5_wqe_av, member));
SAME_AV(key)
SAME_AV(dqp_dct)
SAME_AV(rlid)
SAME_AV(rmac)
SAME_AV(grh_gid_fl)

static_assert(SIGMA_IBV_CONTEXT_DEVICE == offsetof(ibv_context, device));
static_assert(SIGMA_IBV_CONTEXT_CMD_FD == offsetof(ibv_context, cmd_fd));
static_assert(SIGMA_IBV_DEVICE_NAME == offsetof(ibv_device, name));
static_assert(sizeof(sigma_context::device) >= sizeof(ibv_device::name));
static_assert(SIGMA_IBV_SRQ_CONTEXT == offsetof(ibv_srq, context));
static_assert(SIGMA_IBV_CQ_CONTEXT == offsetof(ibv_cq, context));
static_assert(SIGMA_IBV_AH_HANDLE == offsetof(ibv_ah, handle));
static_assert(SIGMA_IBV_QP_EX_WR_ID == offsetof(ibv_qp_ex, wr_id));
static_assert(SIGMA_IBV_QP_EX_WR_ID + 8 == offsetof(ibv_qp_ex, wr_flags));

SAME(sigma_ioctl_hdr, object_id, ib_uverbs_ioctl_hdr, object_id);
SAME(sigma_ioctl_hdr, method_id, ib_uverbs_ioctl_hdr, method_id);
SAME(sigma_ioctl_hdr, num_attrs, ib_uverbs_ioctl_hdr, num_attrs);
SAME(sigma_ioctl_hdr, driver_id, ib_uverbs_ioctl_hdr, driver_id);
static_assert(sizeof(sigma_ioctl_hdr) == offsetof(ib_uverbs_ioctl_hdr, attrs));
SAME(sigma_uverbs_attr, attr_id, ib_uverbs_attr, attr_id);
SAME(sigma_uverbs_attr, len, ib_uverbs_attr, len);
SAME(sigma_uverbs_attr, flags, ib_uverbs_attr, flags);
SAME(sigma_uverbs_attr, data, ib_uverbs_attr, data);
static_assert(sizeof(sigma_uverbs_attr) == sizeof(ib_uverbs_attr));
static_assert(int{SIGMA_UVERBS_ATTR_F_VALID_OUTPUT} == int{UVERBS_ATTR_F_VALID_OUTPUT});
static_assert(int{SIGMA_UVERBS_OBJECT_DEVICE} == int{UVERBS_OBJECT_DEVICE});
static_assert(int{SIGMA_UVERBS_OBJECT_QP} == int{UVERBS_OBJECT_QP});
static_assert(int{SIGMA_UVERBS_METHOD_INVOKE_WRITE} == int{UVERBS_METHOD_INVOKE_WRITE});
static_assert(int{SIGMA_UVERBS_METHOD_QP_CREATE} == int{UVERBS_METHOD_QP_CREATE});
static_assert(int{SIGMA_UVERBS_ATTR_CREATE_QP_USER_HANDLE} ==
              int{UVERBS_ATTR_CREATE_QP_USER_HANDLE});
static_assert(int{SIGMA_UVERBS_ATTR_CREATE_QP_RESP_QP_NUM} ==
              int{UVERBS_ATTR_CREATE_QP_RESP_QP_NUM});
static_assert(int{SIGMA_UVERBS_ATTR_UHW_IN} == int{UVERBS_ATTR_UHW_IN});
static_assert(int{SIGMA_RDMA_DRIVER_MLX5} == int{RDMA_DRIVER_MLX5});
static_assert(int{SIGMA_MLX5_CREATE_QP_DB_ADDR} == offsetof(mlx5_ib_create_qp, db_addr));

// What BPF reads of rings as they are made, resized and ended.
SAME(sigma_mlx5_create_qp, buf_addr, mlx5_ib_create_qp, buf_addr);
SAME(sigma_mlx5_create_qp, db_addr, mlx5_ib_create_qp, db_addr);
SAME(sigma_mlx5_create_qp, sq_wqe_count, mlx5_ib_create_qp, sq_wqe_count);
SAME(sigma_mlx5_create_qp, rq_wqe_count, mlx5_ib_create_qp, rq_wqe_count);
SAME(sigma_mlx5_create_qp, rq_wqe_shift, mlx5_ib_create_qp, rq_wqe_shift);
SAME(sigma_mlx5_create_qp, sq_buf_addr, mlx5_ib_create_qp, sq_buf_addr);
SAME(sigma_mlx5_create_cq, buf_addr, mlx5_ib_create_cq, buf_addr);
SAME(sigma_mlx5_create_cq, db_addr, mlx5_ib_create_cq, db_addr);
SAME(sigma_mlx5_create_cq, cqe_size, mlx5_ib_create_cq, cqe_size);
SAME(sigma_mlx5_resize_cq, buf_addr, mlx5_ib_resize_cq, buf_addr);
SAME(sigma_mlx5_resize_cq, cqe_size, mlx5_ib_resize_cq, cqe_size);
SAME(sigma_resize_cq, cq_handle, ib_uverbs_resize_cq, cq_handle);
SAME(sigma_resize_cq, cqe, ib_uverbs_resize_cq, cqe);
static_assert(int{SIGMA_RESIZE_CQ_HANDLE} == offsetof(ib_uverbs_resize_cq, cq_handle));
static_assert(int{SIGMA_RESIZE_CQ_HANDLE} == offsetof(ib_uverbs_destroy_cq, cq_handle));
static_assert(int{SIGMA_RESIZE_CQ_HANDLE} == offsetof(ib_uverbs_destroy_qp, qp_handle));
static_assert(int{SIGMA_UVERBS_CMD_RESIZE_CQ} == int{IB_USER_VERBS_CMD_RESIZE_CQ});
static_assert(int{SIGMA_UVERBS_CMD_DESTROY_CQ} == int{IB_USER_VERBS_CMD_DESTROY_CQ});
static_assert(int{SIGMA_UVERBS_CMD_DESTROY_QP} == int{IB_USER_VERBS_CMD_DESTROY_QP});
static_assert(int{SIGMA_UVERBS_CMD_MODIFY_QP} == int{IB_USER_VERBS_CMD_MODIFY_QP});
static_assert(int{SIGMA_MODIFY_QP_HANDLE} == offsetof(ib_uverbs_modify_qp, qp_handle));
static_assert(int{SIGMA_MODIFY_QP_MASK} == offsetof(ib_uverbs_modify_qp, attr_mask));
static_assert(int{SIGMA_MODIFY_QP_STATE} == offsetof(ib_uverbs_modify_qp, qp_state));
static_assert(int{SIGMA_UVERBS_OBJECT_CQ} == int{UVERBS_OBJECT_CQ});
static_assert(int{SIGMA_UVERBS_OBJECT_DEVX_OBJ} == int{MLX5_IB_OBJECT_DEVX_OBJ});
static_assert(int{SIGMA_UVERBS_METHOD_CQ_DESTROY} == int{UVERBS_METHOD_CQ_DESTROY});
static_assert(int{SIGMA_UVERBS_METHOD_QP_DESTROY} == int{UVERBS_METHOD_QP_DESTROY});
static_assert(int{SIGMA_UVERBS_METHOD_DEVX_OBJ_MODIFY} == int{MLX5_IB_METHOD_DEVX_OBJ_MODIFY});
static_assert(int{SIGMA_UVERBS_METHOD_DEVX_OBJ_DESTROY} == int{MLX5_IB_METHOD_DEVX_OBJ_DESTROY});
static_assert(int{SIGMA_UVERBS_ATTR_DEVX_CMD_IN} == int{MLX5_IB_ATTR_DEVX_OBJ_MODIFY_CMD_IN});
static_assert(int{SIGMA_UVERBS_ATTR_DEVX_CMD_OUT} == int{MLX5_IB_ATTR_DEVX_OBJ_CREATE_CMD_OUT});
static_assert(int{SIGMA_UVERBS_ATTR_UHW_OUT} == int{UVERBS_ATTR_UHW_OUT});
static_assert(offsetof(mlx5_ib_create_cq_resp, cqn) == 0);
static_assert(int{SIGMA_UVERBS_ATTR_DEVX_HANDLE} == int{MLX5_IB_ATTR_DEVX_OBJ_MODIFY_HANDLE});
static_assert(int{SIGMA_UVERBS_OBJECT_DEVX_UMEM} == int{MLX5_IB_OBJECT_DEVX_UMEM});
static_assert(int{SIGMA_UVERBS_METHOD_DEVX_UMEM_REG} == int{MLX5_IB_METHOD_DEVX_UMEM_REG});
static_assert(int{SIGMA_UVERBS_ATTR_DEVX_UMEM_ADDR} == int{MLX5_IB_ATTR_DEVX_UMEM_REG_ADDR});
static_assert(int{SIGMA_UVERBS_ATTR_DEVX_UMEM_LEN} == int{MLX5_IB_ATTR_DEVX_UMEM_REG_LEN});
static_assert(int{SIGMA_UVERBS_ATTR_DEVX_UMEM_ID} == int{MLX5_IB_ATTR_DEVX_UMEM_REG_OUT_ID});
static_assert(int{SIGMA_UVERBS_METHOD_GET_CONTEXT} == int{UVERBS_METHOD_GET_CONTEXT});
static_assert(int{SIGMA_UVERBS_CMD_GET_CONTEXT} == int{IB_USER_VERBS_CMD_GET_CONTEXT});
static_assert(int{SIGMA_UVERBS_ATTR_WRITE_CMD} == int{UVERBS_ATTR_WRITE_CMD});
static_assert(int{SIGMA_UVERBS_ATTR_CORE_IN} == int{UVERBS_ATTR_CORE_IN});

TEST_CASE("verbs constants are those of the installed header") {
  REQUIRE(static_cast<int>(SIGMA_IBV_QPT_UD) == IBV_QPT_UD);
  REQUIRE(static_cast<int>(SIGMA_IBV_QPT_DRIVER) == IBV_QPT_DRIVER);
  REQUIRE(static_cast<int>(SIGMA_IBV_SEND_INLINE) == IBV_SEND_INLINE);
  REQUIRE(static_cast<int>(SIGMA_IBV_WR_RDMA_WRITE) == IBV_WR_RDMA_WRITE);
  REQUIRE(static_cast<int>(SIGMA_IBV_WR_RDMA_WRITE_WITH_IMM) == IBV_WR_RDMA_WRITE_WITH_IMM);
  REQUIRE(static_cast<int>(SIGMA_IBV_WR_SEND) == IBV_WR_SEND);
  REQUIRE(static_cast<int>(SIGMA_IBV_WR_SEND_WITH_IMM) == IBV_WR_SEND_WITH_IMM);
  REQUIRE(static_cast<int>(SIGMA_IBV_WR_RDMA_READ) == IBV_WR_RDMA_READ);
  REQUIRE(static_cast<int>(SIGMA_IBV_WR_ATOMIC_CMP_AND_SWP) == IBV_WR_ATOMIC_CMP_AND_SWP);
  REQUIRE(static_cast<int>(SIGMA_IBV_WR_ATOMIC_FETCH_AND_ADD) == IBV_WR_ATOMIC_FETCH_AND_ADD);
  REQUIRE(static_cast<int>(SIGMA_IBV_WR_LOCAL_INV) == IBV_WR_LOCAL_INV);
  REQUIRE(static_cast<int>(SIGMA_IBV_WR_BIND_MW) == IBV_WR_BIND_MW);
  REQUIRE(static_cast<int>(SIGMA_IBV_WR_SEND_WITH_INV) == IBV_WR_SEND_WITH_INV);
  REQUIRE(static_cast<int>(SIGMA_IBV_WR_TSO) == IBV_WR_TSO);
}
