/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* First sight of contexts and queue pairs: SIGMA_CONTEXT and SIGMA_QP_SEEN. */
#ifndef SIGMA_CONTEXT_H
#define SIGMA_CONTEXT_H

#include "bpf/maps.h"

static __noinline void emit_context(__u64 id, __u64 context, __u32 kind) {
  struct sigma_totals* totals = totals_of_cpu();
  if (!totals) return;
  struct sigma_context* record = reserve(totals, sizeof(*record));
  if (!record) return;
  fill_header(&record->h, SIGMA_CONTEXT, sizeof(*record), id, bpf_ktime_get_ns());
  record->context = context;
  record->kind = kind;
  record->cmd_fd = -1;
  __builtin_memset(record->device, 0, sizeof(record->device));
  __u64 device = 0;
  if (read_user(totals, &device, sizeof(device), context + SIGMA_IBV_CONTEXT_DEVICE))
    bpf_probe_read_user_str(record->device, sizeof(record->device),
                            (const void*)(device + SIGMA_IBV_DEVICE_NAME));
  __s32 cmd_fd;
  if (read_user(totals, &cmd_fd, sizeof(cmd_fd), context + SIGMA_IBV_CONTEXT_CMD_FD))
    record->cmd_fd = cmd_fd;
  submit(record);
}

static __always_inline void see_context(__u64 id, __u64 context) {
  struct sigma_context_key key = {.tgid = tgid_of(id), .context = context};
  __u32 current = generation;
  __u32* seen = bpf_map_lookup_elem(&contexts, &key);
  if (seen && *seen == current) return;
  bpf_map_update_elem(&contexts, &key, &current, BPF_ANY);
  emit_context(id, context, SIGMA_CONTEXT_SEEN);
}

static __noinline void first_sight(__u64 id, __u64 qp_ptr, const struct sigma_ibv_qp* qp) {
  struct sigma_totals* totals = totals_of_cpu();
  if (!totals || !qp) return;
  see_context(id, qp->context);

  struct sigma_queue_pair_key key = {.tgid = tgid_of(id), .qp_ptr = qp_ptr};
  struct sigma_queue_pair now = {.context = qp->context,
                                 .qp_num = qp->qp_num,
                                 .handle = qp->handle,
                                 .qp_type = qp->qp_type,
                                 .generation = generation};
  struct sigma_queue_pair* known = bpf_map_lookup_elem(&queue_pairs, &key);
  if (known && known->qp_num == qp->qp_num) now.doorbell = known->doorbell;
  bpf_map_update_elem(&queue_pairs, &key, &now, BPF_ANY);

  struct sigma_qp_seen* record = reserve(totals, sizeof(*record));
  if (!record) return;
  fill_header(&record->h, SIGMA_QP_SEEN, sizeof(*record), id, bpf_ktime_get_ns());
  record->context = qp->context;
  record->qp_ptr = qp_ptr;
  record->send_cq_ptr = qp->send_cq;
  record->recv_cq_ptr = qp->recv_cq;
  record->srq_ptr = qp->srq;
  record->qp_num = qp->qp_num;
  record->handle = qp->handle;
  record->qp_type = qp->qp_type;
  record->state = qp->state;
  record->source = SIGMA_QP_AT_POST;
  record->reserved = 0;
  submit(record);
}

/* Reads the QP, reports it when new, and gives its doorbell's address (0: unknown). */
static __always_inline bool see_queue_pair(const struct sigma_hit* hit, __u64 qp_ptr,
                                           struct sigma_ibv_qp* qp, __u64* doorbell) {
  *doorbell = 0;
  if (!read_user(hit->totals, qp, sizeof(*qp), qp_ptr)) return false;
  struct sigma_queue_pair_key key = {.tgid = tgid_of(hit->id), .qp_ptr = qp_ptr};
  struct sigma_queue_pair* known = bpf_map_lookup_elem(&queue_pairs, &key);
  if (known && known->generation == generation && known->qp_num == qp->qp_num &&
      known->context == qp->context && known->handle == qp->handle) {
    *doorbell = known->doorbell;
    return true;
  }
  first_sight(hit->id, qp_ptr, qp);
  known = bpf_map_lookup_elem(&queue_pairs, &key);
  if (known) *doorbell = known->doorbell;
  return true;
}

/* mlx5: the index of the first WQE of this call. The doorbell record is two be32, receive then
 * send. */
static __always_inline bool read_index(struct sigma_totals* totals, __u64 doorbell, __u32* index) {
  __be32 posted;
  if (!doorbell || !read_user(totals, &posted, sizeof(posted), doorbell + 4)) return false;
  *index = __builtin_bswap32(posted) & 0xffff;
  return true;
}

#endif
