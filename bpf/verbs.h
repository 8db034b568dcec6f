/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/*
 * The public structures of libibverbs as the programs read them from the traced process. Their
 * layout is frozen: inline functions of infiniband/verbs.h bake it into every application. Pointers
 * are __u64. tests/native/verbs_layout.cpp holds each field against the installed header.
 */
#ifndef SIGMA_VERBS_H
#define SIGMA_VERBS_H

#include <linux/types.h>

#include "bpf/records.h"

struct sigma_ibv_qp {
  __u64 context;
  __u64 qp_context;
  __u64 pd;
  __u64 send_cq;
  __u64 recv_cq;
  __u64 srq;
  __u32 handle;
  __u32 qp_num;
  __u32 state;
  __u32 qp_type;
};
SIGMA_SIZE(struct sigma_ibv_qp, 64);

struct sigma_ibv_send_wr {
  __u64 wr_id;
  __u64 next;
  __u64 sg_list;
  __s32 num_sge;
  __u32 opcode;
  __u32 send_flags;
  __be32 imm; /* or invalidate_rkey, host order */
  union {
    struct {
      __u64 remote_addr;
      __u32 rkey;
    } rdma;
    struct {
      __u64 remote_addr;
      __u64 compare_add;
      __u64 swap;
      __u32 rkey;
    } atomic;
    struct {
      __u64 ah;
      __u32 remote_qpn;
      __u32 remote_qkey;
    } ud;
  } wr;
  __u64 qp_type; /* remote_srqn of XRC */
  union {
    struct {
      __u64 mw;
      __u32 rkey;
    } bind_mw;
    struct {
      __u64 hdr;
      __u16 hdr_sz;
      __u16 mss;
    } tso;
    __u64 size[6];
  };
};
SIGMA_SIZE(struct sigma_ibv_send_wr, 128);

struct sigma_ibv_recv_wr {
  __u64 wr_id;
  __u64 next;
  __u64 sg_list;
  __s32 num_sge;
  __u32 padding;
};
SIGMA_SIZE(struct sigma_ibv_recv_wr, 32);

struct sigma_ibv_sge {
  __u64 addr;
  __u32 length;
  __u32 lkey;
};
SIGMA_SIZE(struct sigma_ibv_sge, 16);

struct sigma_ibv_data_buf {
  __u64 addr;
  __u64 length;
};

struct sigma_ibv_wc {
  __u64 wr_id;
  __u32 status;
  __u32 opcode;
  __u32 vendor_err;
  __u32 byte_len;
  __be32 imm; /* or invalidated_rkey, host order */
  __u32 qp_num;
  __u32 src_qp;
  __u32 wc_flags;
  __u16 pkey_index;
  __u16 slid;
  __u8 sl;
  __u8 dlid_path_bits;
  __u16 padding;
};
SIGMA_SIZE(struct sigma_ibv_wc, 48);

/* struct ibv_cq_ex from comp_mask on: what start_poll and next_poll leave in it. */
struct sigma_ibv_cq_ex {
  __u32 comp_mask;
  __u32 status;
  __u64 wr_id;
};
SIGMA_SIZE(struct sigma_ibv_cq_ex, 16);

/* struct mlx5_cqe64 of infiniband/mlx5dv.h. */
struct sigma_mlx5_cqe {
  __u8 rsvd[17];
  __u8 ml_path;
  __u8 rsvd20[4];
  __be16 slid;
  __be32 flags_rqpn;
  __u8 hds_ip_ext;
  __u8 l4_hdr_type_etc;
  __be16 vlan_info;
  __be32 srqn_uidx;
  __be32 imm_inval_pkey;
  __u8 app;
  __u8 app_op;
  __be16 app_info;
  __be32 byte_cnt;
  __be64 timestamp;
  __be32 sop_drop_qpn;
  __be16 wqe_counter;
  __u8 signature;
  __u8 op_own;
};
SIGMA_SIZE(struct sigma_mlx5_cqe, 64);

/* struct ibv_ah, followed in libmlx5 by struct mlx5_wqe_av of mlx5dv.h (struct mlx5_ah: the same in
 * rdma-core 33 to 65; tests/unit/resolve_installed.cpp sees the library read it there). */
struct sigma_mlx5_ah { /* from its handle on */
  __u32 handle;        /* 0: no command made it */
  __u32 padding;
  __be64 key;
  __be32 dqp_dct; /* filled in the WQE only */
  __u8 stat_rate_sl;
  __u8 fl_mlid;
  __be16 rlid; /* RoCE: the UDP port */
  __u8 reserved0[4];
  __u8 rmac[6]; /* RoCE */
  __u8 tclass;
  __u8 hop_limit;
  __be32 grh_gid_fl;
};
SIGMA_SIZE(struct sigma_mlx5_ah, 40);

enum {
  SIGMA_IBV_QPT_UD = 4,
  SIGMA_IBV_QPT_DRIVER = 0xff,
  SIGMA_IBV_SEND_INLINE = 1 << 3,

  SIGMA_IBV_WC_SEND = 0,
  SIGMA_IBV_WC_RDMA_WRITE,
  SIGMA_IBV_WC_RDMA_READ,
  SIGMA_IBV_WC_COMP_SWAP,
  SIGMA_IBV_WC_FETCH_ADD,
  SIGMA_IBV_WC_RECV = 1 << 7,
  SIGMA_IBV_WC_RECV_RDMA_WITH_IMM,
  SIGMA_IBV_WC_GRH = 1 << 0,
  SIGMA_IBV_WC_WITH_IMM = 1 << 1,
  SIGMA_IBV_WC_WITH_INV = 1 << 3,

  /* mlx5dv.h: MLX5_CQE_*, of op_own's high bits, and MLX5_OPCODE_*, of sop_drop_qpn's. */
  SIGMA_MLX5_CQE_REQ = 0,
  SIGMA_MLX5_CQE_RESP_WR_IMM,
  SIGMA_MLX5_CQE_RESP_SEND,
  SIGMA_MLX5_CQE_RESP_SEND_IMM,
  SIGMA_MLX5_CQE_RESP_SEND_INV,
  SIGMA_MLX5_CQE_REQ_ERR = 13,
  SIGMA_MLX5_CQE_RESP_ERR = 14,
  SIGMA_MLX5_INLINE_SCATTER_32 = 4, /* of op_own: the payload stands over the first 32 bytes */
  SIGMA_MLX5_OPCODE_SEND_INVAL = 0x01,
  SIGMA_MLX5_OPCODE_RDMA_WRITE = 0x08,
  SIGMA_MLX5_OPCODE_RDMA_WRITE_IMM = 0x09,
  SIGMA_MLX5_OPCODE_SEND = 0x0a,
  SIGMA_MLX5_OPCODE_SEND_IMM = 0x0b,
  SIGMA_MLX5_OPCODE_RDMA_READ = 0x10,
  SIGMA_MLX5_OPCODE_ATOMIC_CS = 0x11,
  SIGMA_MLX5_OPCODE_ATOMIC_FA = 0x12,

  SIGMA_IBV_WR_RDMA_WRITE = 0,
  SIGMA_IBV_WR_RDMA_WRITE_WITH_IMM,
  SIGMA_IBV_WR_SEND,
  SIGMA_IBV_WR_SEND_WITH_IMM,
  SIGMA_IBV_WR_RDMA_READ,
  SIGMA_IBV_WR_ATOMIC_CMP_AND_SWP,
  SIGMA_IBV_WR_ATOMIC_FETCH_AND_ADD,
  SIGMA_IBV_WR_LOCAL_INV,
  SIGMA_IBV_WR_BIND_MW,
  SIGMA_IBV_WR_SEND_WITH_INV,
  SIGMA_IBV_WR_TSO,

  /* Offsets in structures of which only single fields are read. */
  SIGMA_IBV_CONTEXT_DEVICE = 0,
  SIGMA_IBV_CONTEXT_CMD_FD = 264,
  SIGMA_IBV_DEVICE_NAME = 24,
  SIGMA_IBV_SRQ_CONTEXT = 0,
  SIGMA_IBV_CQ_CONTEXT = 0,
  SIGMA_IBV_AH_HANDLE = 16,
  SIGMA_IBV_CQ_EX_COMP_MASK = 128,
  SIGMA_IBV_QP_EX_WR_ID = 168, /* followed by unsigned int wr_flags at 176 */
};

/* struct ib_uverbs_ioctl_hdr (rdma/rdma_user_ioctl_cmds.h); its attributes follow. */
struct sigma_ioctl_hdr {
  __u16 length;
  __u16 object_id;
  __u16 method_id;
  __u16 num_attrs;
  __u64 reserved1;
  __u32 driver_id;
  __u32 reserved2;
};
SIGMA_SIZE(struct sigma_ioctl_hdr, 24);

enum {
  /* Where libibverbs' struct ibv_command_buffer holds the finished header: the same in rdma-core 33
     to 65. */
  SIGMA_COMMAND_BUFFER_HDR = 0x20,
  SIGMA_UVERBS_ATTR_F_VALID_OUTPUT = 1 << 1,
  SIGMA_UVERBS_OBJECT_DEVICE = 0,
  SIGMA_UVERBS_OBJECT_QP = 4,
  SIGMA_UVERBS_METHOD_INVOKE_WRITE = 0,
  SIGMA_UVERBS_METHOD_GET_CONTEXT = 3,
  SIGMA_UVERBS_METHOD_QP_CREATE = 0,
  SIGMA_UVERBS_ATTR_CREATE_QP_USER_HANDLE = 7,
  SIGMA_UVERBS_ATTR_CREATE_QP_RESP_QP_NUM = 14,
  SIGMA_UVERBS_ATTR_UHW_IN = 1 << 12, /* the driver's own part */
  SIGMA_UVERBS_ATTR_UHW_OUT = SIGMA_UVERBS_ATTR_UHW_IN + 1,
  SIGMA_RDMA_DRIVER_MLX5 = 1,
  SIGMA_MLX5_CREATE_QP_DB_ADDR = 8, /* in struct mlx5_ib_create_qp */

  /* For the last look at rings (rings.h). rdma/ib_user_ioctl_cmds.h, ib_user_verbs.h,
     mlx5_user_ioctl_cmds.h. */
  SIGMA_COMMAND_BUFFER_NEXT_ATTR = 8, /* libibverbs: end of the attributes so far */
  SIGMA_UVERBS_OBJECT_CQ = 3,
  SIGMA_UVERBS_OBJECT_DEVX_OBJ = 0x1001,
  SIGMA_UVERBS_OBJECT_DEVX_UMEM = 0x1002,
  SIGMA_UVERBS_METHOD_CQ_CREATE = 0,
  SIGMA_UVERBS_METHOD_CQ_DESTROY = 1,
  SIGMA_UVERBS_METHOD_QP_DESTROY = 1,
  SIGMA_UVERBS_METHOD_DEVX_OBJ_CREATE = 0x1000,
  SIGMA_UVERBS_METHOD_DEVX_OBJ_DESTROY = 0x1001,
  SIGMA_UVERBS_METHOD_DEVX_OBJ_MODIFY = 0x1002,
  SIGMA_UVERBS_METHOD_DEVX_UMEM_REG = 0x1000,
  SIGMA_UVERBS_ATTR_HANDLE = 0, /* of create and destroy, QP and CQ */
  SIGMA_UVERBS_ATTR_CREATE_QP_SEND_CQ = 4,
  SIGMA_UVERBS_ATTR_CREATE_QP_RECV_CQ = 5,
  SIGMA_UVERBS_ATTR_CREATE_QP_TYPE = 9,
  SIGMA_UVERBS_ATTR_CREATE_CQ_RESP_CQE = 6,
  SIGMA_UVERBS_ATTR_DEVX_HANDLE = 0x1000,
  SIGMA_UVERBS_ATTR_DEVX_CMD_IN = 0x1001,
  SIGMA_UVERBS_ATTR_DEVX_CMD_OUT = 0x1002,
  SIGMA_UVERBS_ATTR_DEVX_UMEM_ADDR = 0x1001,
  SIGMA_UVERBS_ATTR_DEVX_UMEM_LEN = 0x1002,
  SIGMA_UVERBS_ATTR_DEVX_UMEM_ID = 0x1004,
  SIGMA_UVERBS_ATTR_CORE_IN = 0,
  SIGMA_UVERBS_ATTR_WRITE_CMD = 2,
  SIGMA_UVERBS_CMD_GET_CONTEXT = 0,
  SIGMA_UVERBS_CMD_RESIZE_CQ = 19,
  SIGMA_UVERBS_CMD_DESTROY_CQ = 20,
  SIGMA_UVERBS_CMD_MODIFY_QP = 26,
  SIGMA_UVERBS_CMD_DESTROY_QP = 27,
  SIGMA_UVERBS_CMD_NUMBER = 0xff, /* what is not flags */
  SIGMA_MODIFY_QP_HANDLE = 64,    /* in struct ib_uverbs_modify_qp, as INVOKE_WRITE passes it */
  SIGMA_MODIFY_QP_MASK = 68,
  SIGMA_MODIFY_QP_STATE = 96,
  SIGMA_RESIZE_CQ_HANDLE = 8, /* in struct ib_uverbs_resize_cq; of the destroy commands likewise */
  SIGMA_IBV_QP_STATE = 1,
  SIGMA_IBV_QPS_RESET = 0,
  SIGMA_IBV_QPS_INIT = 1,
  SIGMA_IBV_QPT_RAW_PACKET = 8,
};

/* struct mlx5_ib_create_qp and mlx5_ib_create_cq (rdma/mlx5-abi.h), as far as they are read. */
struct sigma_mlx5_create_qp {
  __u64 buf_addr;
  __u64 db_addr;
  __u32 sq_wqe_count;
  __u32 rq_wqe_count;
  __u32 rq_wqe_shift;
  __u32 flags;
  __u32 uidx;
  __u32 bfreg_index;
  __u64 sq_buf_addr; /* raw packet queue pairs */
};
struct sigma_mlx5_resize_cq {
  __u64 buf_addr;
  __u16 cqe_size;
  __u16 reserved[3];
};
/* struct ib_uverbs_resize_cq, as INVOKE_WRITE passes it. */
struct sigma_resize_cq {
  __u64 response;
  __u32 cq_handle;
  __u32 cqe;
};
struct sigma_mlx5_create_cq {
  __u64 buf_addr;
  __u64 db_addr;
  __u32 cqe_size;
  __u32 reserved;
};

#endif
