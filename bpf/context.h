/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* First sight of contexts and queue pairs: SIGMA_CONTEXT and SIGMA_QP_SEEN. */
#ifndef SIGMA_CONTEXT_H
#define SIGMA_CONTEXT_H

#include "bpf/maps.h"

SIGMA_VERIFIED_ONCE int emit_context(__u64 id, __u64 context, __u32 kind) {
  struct sigma_totals* totals = totals_of_cpu();
  if (!totals) return 0;
  struct sigma_context* record = reserve(totals, sizeof(*record));
  if (!record) return 0;
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
  return 0;
}

/* Reports the context when new. `hooked`: seen at the hook on its commands. True: it is known to
 * be. */
static __always_inline bool see_context(__u64 id, __u64 context, bool hooked) {
  struct sigma_context_key key = {.tgid = tgid_of(id), .context = context};
  __u32 current = epoch;
  struct sigma_known_context* known = bpf_map_lookup_elem(&contexts, &key);
  if (known && known->epoch == current) {
    if (hooked) known->hooked = 1;
    return known->hooked;
  }
  struct sigma_known_context fresh = {.epoch = current, .hooked = hooked};
  bpf_map_update_elem(&contexts, &key, &fresh, BPF_ANY);
  emit_context(id, context, SIGMA_CONTEXT_SEEN);
  return hooked;
}

static __always_inline bool same_queue_pair(const struct sigma_queue_pair* known,
                                            const struct sigma_ibv_qp* qp) {
  return known->qp_num == qp->qp_num && known->context == qp->context &&
         known->handle == qp->handle && known->qp_type == qp->qp_type;
}

/* Notes what was read, and reports it when new. */
SIGMA_VERIFIED_ONCE int note_queue_pair(__u64 id, __u64 qp_ptr, const struct sigma_ibv_qp* qp,
                                      __u32 as_of, __u32 target_flags) {
  struct sigma_totals* totals = totals_of_cpu();
  if (!totals || !qp) return 0;
  bool hooked = see_context(id, qp->context, false);

  struct sigma_queue_pair_key key = {.tgid = tgid_of(id), .qp_ptr = qp_ptr};
  struct sigma_queue_pair now = {.context = qp->context,
                                 .qp_num = qp->qp_num,
                                 .handle = qp->handle,
                                 .qp_type = qp->qp_type,
                                 /* It may go and another come in its place without our notice? */
                                 .generation = hooked || kernel_control ? as_of : 0,
                                 .epoch = epoch,
                                 .target_flags = target_flags};
  struct sigma_queue_pair* known = bpf_map_lookup_elem(&queue_pairs, &key);
  if (known && known->qp_num == qp->qp_num) {
    now.doorbell = known->doorbell;
    now.hits = known->hits;
  }
  bool reported = known && known->epoch == now.epoch && same_queue_pair(known, qp);
  if (known)
    *known = now;
  else
    bpf_map_update_elem(&queue_pairs, &key, &now, BPF_ANY);
  if (reported) return 0;

  struct sigma_qp_seen* record = reserve(totals, sizeof(*record));
  if (!record) return 0;
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
  return 0;
}

/* What a post needs to know of its queue pair. */
struct sigma_known_queue {
  __u64 context;
  __u64 doorbell;
  __u32 qp_num;
  __u8 qp_type;
};

/* Reads the QP from the job. False: unreadable, and `queue` says unknown. */
static __always_inline bool read_queue_pair(const struct sigma_hit* hit, __u64 qp_ptr,
                                            struct sigma_known_queue* queue) {
  __u32 as_of = generation; /* before the read: what changes meanwhile makes it stale */
  struct sigma_ibv_qp qp;
  queue->context = 0;
  queue->doorbell = 0;
  queue->qp_num = 0;
  queue->qp_type = 0xff;
  if (!read_user(hit->totals, &qp, sizeof(qp), qp_ptr)) return false;
  queue->context = qp.context;
  queue->qp_num = qp.qp_num;
  queue->qp_type = qp.qp_type;

  struct sigma_queue_pair_key key = {.tgid = tgid_of(hit->id), .qp_ptr = qp_ptr};
  struct sigma_queue_pair* known = bpf_map_lookup_elem(&queue_pairs, &key);
  if (!known || known->generation != as_of || known->epoch != epoch ||
      !same_queue_pair(known, &qp)) {
    note_queue_pair(hit->id, qp_ptr, &qp, as_of, hit->target_flags);
    known = bpf_map_lookup_elem(&queue_pairs, &key);
  }
  if (known) queue->doorbell = known->doorbell;
  return true;
}

/*
 * Filter and queue pair in one. As long as nothing has happened since the last look (`generation`),
 * one look-up answers both: the process is traced, and the QP is what it was. That spares the read
 * of the QP and the look-up of the target, a third of the program's time. False: not traced.
 */
static __always_inline bool admit_queue_pair(struct sigma_hit* hit, __u64 qp_ptr,
                                             struct sigma_known_queue* queue, bool* readable) {
  *readable = true;
  hit->id = bpf_get_current_pid_tgid();
  struct sigma_queue_pair_key key = {.tgid = tgid_of(hit->id), .qp_ptr = qp_ptr};
  struct sigma_queue_pair* known = bpf_map_lookup_elem(&queue_pairs, &key);
  if (known && known->generation == generation) {
    hit->totals = totals_of_cpu();
    if (!hit->totals) return false;
    hit->target_flags = known->target_flags;
    queue->context = known->context;
    queue->doorbell = known->doorbell;
    queue->qp_num = known->qp_num;
    queue->qp_type = known->qp_type;
    if (__sync_fetch_and_add(&known->hits, 1) % SIGMA_HITS_BATCH == SIGMA_HITS_BATCH - 1) {
      count(hit->totals, SIGMA_COUNT_HITS, SIGMA_HITS_BATCH);
      struct sigma_target* target = bpf_map_lookup_elem(&targets, &key.tgid);
      if (target) __sync_fetch_and_add(&target->hits, SIGMA_HITS_BATCH);
    }
    return true;
  }
  if (!sigma_admit(hit)) return false;
  *readable = read_queue_pair(hit, qp_ptr, queue);
  return true;
}

/*
 * UD: the address handle's number, by which the command that made it is known. On InfiniBand ports
 * libmlx5 makes address handles without a command: then the LID is read from the address vector that
 * it copies into the WQE. Only where the queue is known to be mlx5's (it has a doorbell record) and
 * the vector is plausible; else the destination stays unknown.
 */
static __always_inline void read_address_handle(struct sigma_totals* totals,
                                                struct sigma_post* record, __u64 ah) {
  struct sigma_mlx5_ah mlx5 = {};
  bool is_mlx5 = record->flags & SIGMA_POST_HAS_INDEX;
  if (!(is_mlx5 ? read_user(totals, &mlx5, sizeof(mlx5), ah + SIGMA_IBV_AH_HANDLE)
                : read_user(totals, &mlx5.handle, sizeof(mlx5.handle), ah + SIGMA_IBV_AH_HANDLE)))
    return;
  record->ah_handle = mlx5.handle;
  record->flags |= SIGMA_POST_HAS_AH;
  __u16 lid = __builtin_bswap16(mlx5.rlid);
  __u8 ethernet = mlx5.rmac[0] | mlx5.rmac[1] | mlx5.rmac[2] | mlx5.rmac[3] | mlx5.rmac[4] |
                  mlx5.rmac[5];
  /* Unicast LIDs end at 0xbfff (IBA 4.1.3). */
  if (!is_mlx5 || mlx5.handle || ethernet || mlx5.dqp_dct || !lid || lid > 0xbfff) return;
  record->remote_lid = lid;
  record->flags |= SIGMA_POST_HAS_LID;
}

/* mlx5: the index of the first WQE of this call. The doorbell record is two be32, receive then
 * send. */
static __always_inline bool read_index(struct sigma_totals* totals, __u64 doorbell, bool send,
                                       __u32* index) {
  __be32 posted;
  if (!doorbell || !read_user(totals, &posted, sizeof(posted), doorbell + (send ? 4 : 0)))
    return false;
  *index = __builtin_bswap32(posted) & 0xffff;
  return true;
}

#endif
