// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
/*
 * ibv_start_poll and ibv_next_poll of the extended CQ: after either returns 0 the CQ stands at one
 * completion. wr_id and status are public members of struct ibv_cq_ex; all else the application
 * asks the provider's read_* functions for, which look into the provider's own structures. Where
 * they look, the resolver found in their code: `cq_layouts`. What it did not find is told as
 * unknown. end_poll tells nothing more, and is not probed.
 */
#include "bpf/context.h"

struct {
  __uint(type, BPF_MAP_TYPE_ARRAY);
  __uint(max_entries, SIGMA_MAX_CQ_LAYOUTS);
  __type(key, __u32);
  __type(value, struct sigma_cq_layout);
} cq_layouts SEC(".maps");

enum {
  UNKNOWN_ALL = SIGMA_WC_NO_QP_NUM | SIGMA_WC_NO_OPCODE | SIGMA_WC_NO_BYTES |
                SIGMA_WC_NO_VENDOR_ERR | SIGMA_WC_NO_SOURCE | SIGMA_WC_NO_IMM
};

/* The opcode that libmlx5 reports for a requester's completion; false: it depends on more. */
static __always_inline bool mlx5_send_opcode(__u8 wqe_opcode, __u32* opcode) {
  switch (wqe_opcode) {
    case SIGMA_MLX5_OPCODE_RDMA_WRITE:
    case SIGMA_MLX5_OPCODE_RDMA_WRITE_IMM:
      *opcode = SIGMA_IBV_WC_RDMA_WRITE;
      return true;
    case SIGMA_MLX5_OPCODE_SEND:
    case SIGMA_MLX5_OPCODE_SEND_IMM:
    case SIGMA_MLX5_OPCODE_SEND_INVAL:
      *opcode = SIGMA_IBV_WC_SEND;
      return true;
    case SIGMA_MLX5_OPCODE_RDMA_READ:
      *opcode = SIGMA_IBV_WC_RDMA_READ;
      return true;
    case SIGMA_MLX5_OPCODE_ATOMIC_CS:
      *opcode = SIGMA_IBV_WC_COMP_SWAP;
      return true;
    case SIGMA_MLX5_OPCODE_ATOMIC_FA:
      *opcode = SIGMA_IBV_WC_FETCH_ADD;
      return true;
    default:
      return false;
  }
}

static __always_inline void fill_mlx5(struct sigma_totals* totals, struct sigma_completion* record,
                                      __u32 pointer) {
  struct sigma_mlx5_cqe cqe;
  __u64 address;
  if (!read_user(totals, &address, sizeof(address), record->cq_ptr + pointer) ||
      !read_user(totals, &cqe, sizeof(cqe), address))
    return;
  __u8 kind = cqe.op_own >> 4;
  __u32 qpn = __builtin_bswap32(cqe.sop_drop_qpn);
  if (kind > SIGMA_MLX5_CQE_RESP_SEND_INV && kind != SIGMA_MLX5_CQE_REQ_ERR &&
      kind != SIGMA_MLX5_CQE_RESP_ERR)
    return; /* tag matching and others: their fields mean other things */
  record->qp_num = qpn & 0xffffff;
  record->unknown &= ~SIGMA_WC_NO_QP_NUM;
  if (record->status) {
    /* struct mlx5_err_cqe: vendor_err_synd stands at 54, in the time stamp's place. */
    record->vendor_err = ((const __u8*)&cqe.timestamp)[6];
    record->unknown &= ~SIGMA_WC_NO_VENDOR_ERR;
    return;
  }
  record->unknown &= ~(SIGMA_WC_NO_VENDOR_ERR | SIGMA_WC_NO_BYTES | SIGMA_WC_NO_IMM);
  record->byte_len = __builtin_bswap32(cqe.byte_cnt);
  record->nic_stamp = __builtin_bswap64(cqe.timestamp);
  record->flags = SIGMA_WC_NIC_STAMP;
  if (kind == SIGMA_MLX5_CQE_REQ) {
    if (mlx5_send_opcode(qpn >> 24, &record->opcode)) record->unknown &= ~SIGMA_WC_NO_OPCODE;
    record->unknown &= ~SIGMA_WC_NO_SOURCE; /* a send has none */
    return;
  }
  record->unknown &= ~SIGMA_WC_NO_OPCODE;
  record->opcode =
      kind == SIGMA_MLX5_CQE_RESP_WR_IMM ? SIGMA_IBV_WC_RECV_RDMA_WITH_IMM : SIGMA_IBV_WC_RECV;
  if (kind == SIGMA_MLX5_CQE_RESP_WR_IMM || kind == SIGMA_MLX5_CQE_RESP_SEND_IMM) {
    record->wc_flags |= SIGMA_IBV_WC_WITH_IMM;
    record->imm = cqe.imm_inval_pkey;
  } else if (kind == SIGMA_MLX5_CQE_RESP_SEND_INV) {
    record->wc_flags |= SIGMA_IBV_WC_WITH_INV;
    record->imm = __builtin_bswap32(cqe.imm_inval_pkey);
  }
  if (cqe.op_own & SIGMA_MLX5_INLINE_SCATTER_32) return;
  __u32 source = __builtin_bswap32(cqe.flags_rqpn);
  record->src_qp = source & 0xffffff;
  record->sl = source >> 24 & 0xf;
  if (source >> 28 & 3) record->wc_flags |= SIGMA_IBV_WC_GRH;
  record->slid = __builtin_bswap16(cqe.slid);
  record->dlid_path_bits = cqe.ml_path & 0x7f;
  record->unknown &= ~SIGMA_WC_NO_SOURCE;
}

static __noinline int read_field(const struct sigma_cq_field* field, __u64 cq, __u32* value) {
  struct sigma_totals* totals = totals_of_cpu();
  if (!totals || !field || !value || !field->size) return 0;
  __u64 base = cq;
  if (field->pointer != SIGMA_CQ_EMBEDDED &&
      !read_user(totals, &base, sizeof(base), cq + field->pointer))
    return 0;
  __u32 read = 0;
  if (field->size == 4) {
    if (!read_user(totals, &read, 4, base + field->offset)) return 0;
    if (field->swapped) read = __builtin_bswap32(read);
  } else if (field->size == 2) {
    __u16 half;
    if (!read_user(totals, &half, 2, base + field->offset)) return 0;
    read = field->swapped ? __builtin_bswap16(half) : half;
  } else {
    __u8 byte;
    if (!read_user(totals, &byte, 1, base + field->offset)) return 0;
    read = byte;
  }
  *value = read >> (field->shift & 31) & field->mask;
  return 1;
}

static __always_inline void fill_fields(struct sigma_completion* record,
                                        const struct sigma_cq_layout* layout) {
  __u64 cq = record->cq_ptr;
  __u32 value;
  if (read_field(&layout->fields[SIGMA_CQ_QP_NUM], cq, &value)) {
    record->qp_num = value;
    record->unknown &= ~SIGMA_WC_NO_QP_NUM;
  }
  if (record->status) {
    if (read_field(&layout->fields[SIGMA_CQ_VENDOR_ERR], cq, &value)) {
      record->vendor_err = value;
      record->unknown &= ~SIGMA_WC_NO_VENDOR_ERR;
    }
    return;
  }
  record->unknown &= ~SIGMA_WC_NO_VENDOR_ERR;
  if (read_field(&layout->fields[SIGMA_CQ_OPCODE], cq, &value)) {
    record->opcode = value;
    record->unknown &= ~SIGMA_WC_NO_OPCODE;
  }
  if (read_field(&layout->fields[SIGMA_CQ_BYTE_LEN], cq, &value)) {
    record->byte_len = value;
    record->unknown &= ~SIGMA_WC_NO_BYTES;
  }
  if (read_field(&layout->fields[SIGMA_CQ_WC_FLAGS], cq, &value)) {
    record->wc_flags = value;
    if (!(value & (SIGMA_IBV_WC_WITH_IMM | SIGMA_IBV_WC_WITH_INV))) {
      record->unknown &= ~SIGMA_WC_NO_IMM;
    } else if (read_field(&layout->fields[SIGMA_CQ_IMM], cq, &value)) {
      record->imm = value;
      record->unknown &= ~SIGMA_WC_NO_IMM;
    }
  }
  if (read_field(&layout->fields[SIGMA_CQ_SRC_QP], cq, &value)) {
    record->src_qp = value;
    record->unknown &= ~SIGMA_WC_NO_SOURCE;
  }
}

SIGMA_VERIFIED_ONCE int completion_at(__u64 function, __u32 layout_number) {
  struct sigma_hit hit;
  struct sigma_call* call = recall(&hit, function);
  if (!call) return 0;
  __u64 cq = call->object;
  call->call_ns = 0;
  struct sigma_ibv_cq_ex public;
  __u64 context;
  if (!read_user(hit.totals, &public, sizeof(public), cq + SIGMA_IBV_CQ_EX_COMP_MASK) ||
      !read_user(hit.totals, &context, sizeof(context), cq + SIGMA_IBV_CQ_CONTEXT))
    return 0;
  see_context(hit.id, context, false);

  struct sigma_completion* record = reserve(hit.totals, sizeof(*record));
  if (!record) return 0;
  __builtin_memset(record, 0, sizeof(*record));
  /* The time after what first sight emits: readers sort by it. */
  fill_header(&record->h, SIGMA_COMPLETION, sizeof(*record), hit.id, bpf_ktime_get_ns());
  record->context = context;
  record->cq_ptr = cq;
  record->wr_id = public.wr_id;
  record->status = public.status;
  record->batch = 1;
  record->unknown = UNKNOWN_ALL;
  const struct sigma_cq_layout* layout = bpf_map_lookup_elem(&cq_layouts, &layout_number);
  if (layout && layout->kind == SIGMA_CQ_MLX5)
    fill_mlx5(hit.totals, record, layout->pointer);
  else if (layout && layout->kind == SIGMA_CQ_FIELDS)
    fill_fields(record, layout);
  submit(record);
  return 0;
}

static __always_inline bool poll_ex_entry(struct pt_regs* ctx, __u64 function) {
  struct sigma_hit hit;
  if (!sigma_admit(&hit)) return false;
  struct sigma_call call = {.call_ns = 1, /* in use; nobody asks when */
                            .object = PT_REGS_PARM1(ctx),
                            .target_flags = hit.target_flags};
  remember_call(&hit, function, &call);
  return true;
}

static __always_inline void poll_ex_exit(struct pt_regs* ctx, __u64 function) {
  if ((__s32)PT_REGS_RC(ctx)) return; /* ENOENT: empty */
  completion_at(function,
                bpf_get_attach_cookie(ctx) >> SIGMA_COOKIE_LAYOUT_SHIFT & SIGMA_COOKIE_LAYOUT);
}

#define POLL_PROGRAMS(name, function)                                                          \
  SEC("uprobe") int name(struct pt_regs* ctx) {                                                \
    poll_ex_entry(ctx, function);                                                              \
    return 0;                                                                                  \
  }                                                                                            \
  SEC("uprobe") int name##_return(struct pt_regs* ctx) {                                       \
    if (!is_strangers(ctx)) poll_ex_exit(ctx, function);                                       \
    return 0;                                                                                  \
  }                                                                                            \
  SEC("uprobe") int name##_session(struct pt_regs* ctx) {                                      \
    if (is_return(ctx)) {                                                                      \
      poll_ex_exit(ctx, function);                                                             \
      return 0;                                                                                \
    }                                                                                          \
    return poll_ex_entry(ctx, function) ? SIGMA_SESSION_WANT_RETURN : SIGMA_SESSION_NO_RETURN; \
  }

POLL_PROGRAMS(start_poll, SIGMA_FN_START_POLL)
POLL_PROGRAMS(next_poll, SIGMA_FN_NEXT_POLL)

char LICENSE[] SEC("license") = "Dual BSD/GPL";
