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

enum {
  SIGMA_IBV_QPT_UD = 4,
  SIGMA_IBV_QPT_DRIVER = 0xff,
  SIGMA_IBV_SEND_INLINE = 1 << 3,

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
  SIGMA_UVERBS_METHOD_QP_CREATE = 0,
  SIGMA_UVERBS_ATTR_CREATE_QP_USER_HANDLE = 7,
  SIGMA_UVERBS_ATTR_CREATE_QP_RESP_QP_NUM = 14,
  SIGMA_UVERBS_ATTR_UHW_IN = 1 << 12, /* the driver's own part */
  SIGMA_RDMA_DRIVER_MLX5 = 1,
  SIGMA_MLX5_CREATE_QP_DB_ADDR = 8, /* in struct mlx5_ib_create_qp */
};

#endif
