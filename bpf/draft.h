/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/*
 * The record of a uverbs command in the making: its attributes with their payloads, read from the
 * job's memory, and beside them what the programs themselves need of them.
 */
#ifndef SIGMA_DRAFT_H
#define SIGMA_DRAFT_H

#include "bpf/maps.h"

#define MAX_RECORD 4096
#define ATTR_BYTES sizeof(struct sigma_uverbs_attr)

/*
 * A record in the making: too large for the stack. In the map only while one program runs. `end` is
 * here and not in a register so that the verifier takes all rounds of the loop over attributes for
 * alike.
 */
struct draft {
  union {
    struct sigma_uverbs uverbs;
    __u8 bytes[MAX_RECORD];
  };
  __u32 start; /* of the payload area */
  __u32 end;   /* of what is filled in */
  /* Attributes of QP CREATE: struct ibv_qp *, and where the number and the driver's part are. */
  __u64 qp_ptr;
  __u64 qp_num_at;
  __u64 driver_at;
  __u64 data[16]; /* of the attributes with the smallest numbers */
  __u64 devx[8]; /* likewise of those that mlx5 numbers from SIGMA_UVERBS_ATTR_DEVX_HANDLE on */
};

struct {
  __uint(type, BPF_MAP_TYPE_HASH);
  __uint(max_entries, 256);
  __type(key, __u64); /* pid_tgid */
  __type(value, struct draft);
} drafts SEC(".maps");

/* Never written: what a draft begins as. */
static struct draft blank_draft;

/* Inputs of up to 8 bytes stand in `data` itself; outputs are pointers whatever their size. */
static __always_inline bool is_pointer(const struct sigma_uverbs_attr* attr) {
  return attr->len > sizeof(attr->data) ||
         (attr->len && (attr->flags & SIGMA_UVERBS_ATTR_F_VALID_OUTPUT));
}

/* Copies one attribute and its payload into the draft. */
SIGMA_VERIFIED_ONCE int add_attribute(struct draft* draft, __u64 attrs, __u32 i) {
  struct sigma_totals* totals = totals_of_cpu();
  if (!totals || !draft || i >= SIGMA_UVERBS_MAX_ATTRS) return 0;
  struct sigma_uverbs_attr attr = {};
  read_user(totals, &attr, sizeof(attr), attrs + i * ATTR_BYTES);
  attr.offset = SIGMA_UVERBS_NO_PAYLOAD;
  __u32 low = attr.attr_id;
  if (low < 16) draft->data[low & 15] = attr.data;
  if (low >> 3 == SIGMA_UVERBS_ATTR_DEVX_HANDLE >> 3) draft->devx[low & 7] = attr.data;
  if (attr.attr_id == SIGMA_UVERBS_ATTR_CREATE_QP_USER_HANDLE) draft->qp_ptr = attr.data;
  if (attr.attr_id == SIGMA_UVERBS_ATTR_CREATE_QP_RESP_QP_NUM) draft->qp_num_at = attr.data;
  if (attr.attr_id == SIGMA_UVERBS_ATTR_UHW_IN && attr.len >= SIGMA_MLX5_CREATE_QP_DB_ADDR + 8)
    draft->driver_at = attr.data;
  if (is_pointer(&attr)) {
    __u32 end = draft->end;
    __u32 length = attr.len;
    bool whole = length <= SIGMA_UVERBS_ATTR_BYTES;
    if (!whole) length = SIGMA_UVERBS_ATTR_BYTES;
    /* Opaque, then bounded again: the verifier of 6.1 does not connect the test with the register. */
    barrier_var(length);
    if (length > SIGMA_UVERBS_ATTR_BYTES) return 0;
    if (end <= MAX_RECORD - SIGMA_UVERBS_ATTR_BYTES &&
        read_user(totals, draft->bytes + end, length, attr.data)) {
      attr.offset = end - draft->start;
      draft->end = end + ((length + 7) & ~7u);
    } else {
      whole = false;
    }
    if (!whole) draft->uverbs.flags |= SIGMA_UVERBS_TRUNCATED;
  }
  *(struct sigma_uverbs_attr*)(draft->bytes + sizeof(struct sigma_uverbs) + i * ATTR_BYTES) = attr;
  return 0;
}

/* Of an attribute that mlx5 numbers from SIGMA_UVERBS_ATTR_DEVX_HANDLE on. */
static __always_inline __u64 devx_data(const struct draft* draft, __u32 attr) {
  return draft->devx[attr & 7];
}

#endif
