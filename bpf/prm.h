/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/*
 * Places in the firmware's commands that make queues, once for BPF (devx_rings.h) and for user
 * space (userspace/decode/prm.cpp, which has the fields that it alone reads).
 *
 * A place is "bit, width". Bits are counted as in the PRM's tables: from the begin of the command,
 * the most significant one of each byte first. Contexts begin at SIGMA_PRM_CQC and SIGMA_PRM_QPC.
 * Source: openucx/ucx, src/uct/ib/mlx5/dv/ib_mlx5_ifc.h (create_cq_in, cqc, create_qp_in, qpc), and
 * the kernel's include/linux/mlx5/mlx5_ifc.h.
 */
#ifndef SIGMA_PRM_H
#define SIGMA_PRM_H

enum {
  SIGMA_PRM_CREATE_CQ = 0x400, /* opcodes */
  SIGMA_PRM_CREATE_QP = 0x500,
  SIGMA_PRM_RST2INIT_QP = 0x502,
  SIGMA_PRM_2RST_QP = 0x50a,
};

#define SIGMA_PRM_AT(byte) ((byte)*8)

#define SIGMA_PRM_OPCODE SIGMA_PRM_AT(0), 16
#define SIGMA_PRM_NUMBER SIGMA_PRM_AT(9), 24 /* of the answer, or of the queue that is modified */

/* CREATE_CQ */
#define SIGMA_PRM_CQC 0x10
#define SIGMA_PRM_CQ_UMEM_OFFSET SIGMA_PRM_AT(0x50), 64
#define SIGMA_PRM_CQ_UMEM_ID SIGMA_PRM_AT(0x58), 32
#define SIGMA_PRM_CQ_ENTRY_SIZE SIGMA_PRM_AT(SIGMA_PRM_CQC) + 8, 3 /* 0: 64 bytes, else 128 */
#define SIGMA_PRM_CQ_COLLAPSED SIGMA_PRM_AT(SIGMA_PRM_CQC) + 11, 1
#define SIGMA_PRM_CQ_DOORBELL_UMEM_ID SIGMA_PRM_AT(SIGMA_PRM_CQC + 4), 32
#define SIGMA_PRM_CQ_LOG_ENTRIES SIGMA_PRM_AT(SIGMA_PRM_CQC) + 99, 5
#define SIGMA_PRM_CQ_DOORBELL_OFFSET SIGMA_PRM_AT(SIGMA_PRM_CQC + 0x38), 64

/* CREATE_QP */
#define SIGMA_PRM_QPC 0x18
#define SIGMA_PRM_QP_UMEM_OFFSET SIGMA_PRM_AT(0x100), 64
#define SIGMA_PRM_QP_UMEM_ID SIGMA_PRM_AT(0x108), 32
#define SIGMA_PRM_QP_LOG_RECEIVES SIGMA_PRM_AT(SIGMA_PRM_QPC) + 73, 4
#define SIGMA_PRM_QP_LOG_RECEIVE_SIZE SIGMA_PRM_AT(SIGMA_PRM_QPC) + 77, 3 /* of 16 bytes */
#define SIGMA_PRM_QP_NO_SEND_RING SIGMA_PRM_AT(SIGMA_PRM_QPC) + 80, 1
#define SIGMA_PRM_QP_LOG_BLOCKS SIGMA_PRM_AT(SIGMA_PRM_QPC) + 81, 4
#define SIGMA_PRM_QP_SEND_CQN SIGMA_PRM_AT(SIGMA_PRM_QPC + 0x7d), 24
#define SIGMA_PRM_QP_RECV_CQN SIGMA_PRM_AT(SIGMA_PRM_QPC + 0x9d), 24
#define SIGMA_PRM_QP_DOORBELL_OFFSET SIGMA_PRM_AT(SIGMA_PRM_QPC + 0xa0), 64
#define SIGMA_PRM_QP_RECEIVES_BY SIGMA_PRM_AT(SIGMA_PRM_QPC) + 0x565, 3 /* 0: a ring of its own */
#define SIGMA_PRM_QP_DOORBELL_UMEM_ID SIGMA_PRM_AT(SIGMA_PRM_QPC + 0xe4), 32

#endif
