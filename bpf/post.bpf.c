// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
/*
 * post_send, post_recv, post_srq_recv: one record for each work request of the list.
 *
 * The records are made at the entry, where the list is sure to be whole. A return probe, where
 * there is one, speaks only of calls that failed. The return looks at the return value first, so
 * that the common case costs nothing more.
 */
#include "bpf/context.h"

/* Requests beyond SIGMA_MAX_WR of which at least the number is told; then `omitted` is saturated.
 */
#define COUNTED_WR 4096
/* Bytes of a send request that all but a few opcodes are content with; those read what they lack.
 * Small reads cross fewer cache lines. */
#define SEND_WR_USUAL __builtin_offsetof(struct sigma_ibv_send_wr, wr.atomic.swap)
/* Without bpf_loop. */
#define UNROLLED_WR 32

/* What the records of one call share, and where the walk is. */
struct walk {
  __u64 id;
  __u64 call_ns;
  __u64 context;
  __u64 queue_ptr;
  __u64 wr; /* the next one; 0 at the end of the list */
  __u32 qp_num;
  __u32 index;
  __u16 flags;
  __u8 queue;
  __u8 qp_type;
};

static __always_inline void fill_send(struct sigma_totals* totals, struct sigma_post* record,
                                      const struct sigma_ibv_send_wr* wr, __u64 address) {
  __u16 header_size;
  record->opcode = wr->opcode;
  record->send_flags = wr->send_flags;
  switch (wr->opcode) {
    case SIGMA_IBV_WR_RDMA_WRITE_WITH_IMM:
      record->imm = wr->imm; /* fall through */
    case SIGMA_IBV_WR_RDMA_WRITE:
    case SIGMA_IBV_WR_RDMA_READ:
      record->remote_addr = wr->wr.rdma.remote_addr;
      record->rkey = wr->wr.rdma.rkey;
      return;
    case SIGMA_IBV_WR_ATOMIC_CMP_AND_SWP:
    case SIGMA_IBV_WR_ATOMIC_FETCH_AND_ADD:
      record->remote_addr = wr->wr.atomic.remote_addr;
      read_user(totals, &record->rkey, sizeof(record->rkey),
                address + offsetof(struct sigma_ibv_send_wr, wr.atomic.rkey));
      return;
    case SIGMA_IBV_WR_SEND_WITH_INV:
    case SIGMA_IBV_WR_LOCAL_INV:
      record->rkey = (__u32)wr->imm;
      return;
    case SIGMA_IBV_WR_BIND_MW:
      read_user(totals, &record->rkey, sizeof(record->rkey),
                address + offsetof(struct sigma_ibv_send_wr, bind_mw.rkey));
      return;
    case SIGMA_IBV_WR_TSO:
      if (read_user(totals, &header_size, sizeof(header_size),
                    address + offsetof(struct sigma_ibv_send_wr, tso.hdr_sz)))
        record->bytes = header_size;
      break;
    case SIGMA_IBV_WR_SEND_WITH_IMM:
      record->imm = wr->imm;
      break;
    case SIGMA_IBV_WR_SEND:
      break;
    default:
      return;
  }
  /* A datagram carries its address. EFA's SRD, the one driver-defined type posted to by
   * ibv_post_send, uses the UD fields as well; the number of its type also stands for an unknown
   * one. */
  bool known = !(record->flags & SIGMA_POST_UNREADABLE);
  if (record->qp_type != SIGMA_IBV_QPT_UD && !(record->qp_type == SIGMA_IBV_QPT_DRIVER && known))
    return;
  read_address_handle(totals, record, wr->wr.ud.ah);
  record->remote_qpn = wr->wr.ud.remote_qpn;
}

/* How many requests follow `wr`, which is not counted itself. */
struct tail {
  __u64 wr;
  __u64 until; /* stop at this one */
  __u32 n;
};

static long count_step(__u64 i, void* data) {
  struct tail* tail = data;
  if (!tail->wr || tail->wr == tail->until) return 1;
  tail->n = i + 1; /* not n++: the verifier would follow each value */
  /* `next` is the second field of both kinds of request. */
  if (bpf_probe_read_user(&tail->wr, sizeof(tail->wr), (const void*)(tail->wr + 8))) tail->wr = 0;
  return 0;
}

static __always_inline void count_tail(struct tail* tail) {
  if (config.has_loop) {
    bpf_loop(COUNTED_WR, count_step, tail, 0);
    return;
  }
  for (int i = 0; i < UNROLLED_WR; i++)
    if (count_step(i, tail)) return;
}

/* Emits the request at walk->wr and moves on. `last`: the walk ends here even if the list goes on.
 */
SIGMA_VERIFIED_ONCE int post_one(struct walk* walk, __u16 position, bool last) {
  struct sigma_totals* totals = totals_of_cpu();
  if (!totals || !walk) return 0;

  /* Only as much of a request as is read: the verifier of 6.1 adds the frames up, to 512 bytes. */
  __u64 head[SEND_WR_USUAL / 8];
  const struct sigma_ibv_send_wr* wr = (const struct sigma_ibv_send_wr*)head;
  bool readable = walk->queue == SIGMA_QUEUE_SEND
                      ? read_user(totals, head, sizeof(head), walk->wr)
                      : read_user(totals, head, sizeof(struct sigma_ibv_recv_wr), walk->wr);
  if (!readable) __builtin_memset(head, 0, sizeof(head));

  struct sigma_ibv_sge sge = {};
  bool sge_readable = wr->num_sge <= 0 || read_user(totals, &sge, sizeof(sge), wr->sg_list);

  struct tail tail = {.wr = last ? wr->next : 0};
  if (tail.wr) {
    count_tail(&tail);
    count(totals, SIGMA_COUNT_WR_OMITTED, tail.n);
  }

  struct sigma_post* record = reserve(totals, sizeof(*record));
  if (record) {
    fill_header(&record->h, SIGMA_POST, sizeof(*record), walk->id, walk->call_ns);
    record->context = walk->context;
    record->call_ns = walk->call_ns;
    record->queue_ptr = walk->queue_ptr;
    record->wr_id = wr->wr_id;
    record->local_addr = sge.addr;
    record->remote_addr = 0;
    record->bytes = 0;
    record->qp_num = walk->qp_num;
    record->lkey = sge.lkey;
    record->rkey = 0;
    record->imm = 0;
    record->remote_qpn = 0;
    record->ah_handle = 0;
    record->index = walk->index;
    record->position = position;
    record->num_sge = wr->num_sge > 0 ? wr->num_sge : 0;
    record->flags = walk->flags;
    record->queue = walk->queue;
    record->opcode = 0;
    record->send_flags = 0;
    record->qp_type = walk->qp_type;
    record->omitted = 0;
    record->remote_lid = 0;
    record->reserved[0] = record->reserved[1] = record->reserved[2] = 0;
    if (!readable || !sge_readable) record->flags |= SIGMA_POST_UNREADABLE;
    if (tail.n) {
      record->flags |= SIGMA_POST_LIST_TRUNCATED;
      record->omitted = tail.wr ? 0xffff : tail.n;
    }
    if (walk->queue == SIGMA_QUEUE_SEND && readable) fill_send(totals, record, wr, walk->wr);
    record->bytes += sge.length;
    if (wr->num_sge > 1 && sge_readable) add_sges(totals, record, wr->sg_list, wr->num_sge);
    submit(record);
  }
  walk->wr = wr->next;
  return 0;
}

static long walk_step(__u64 i, void* data) {
  struct walk* walk = data;
  if (!walk->wr) return 1;
  post_one(walk, i + 1, i == SIGMA_MAX_WR - 2);
  return 0;
}

static __always_inline void walk_list(struct walk* walk) {
  post_one(walk, 0, false);
  if (!walk->wr) return; /* nearly always */
  if (config.has_loop) {
    bpf_loop(SIGMA_MAX_WR - 1, walk_step, walk, 0);
    return;
  }
  for (int i = 1; i < UNROLLED_WR; i++) {
    if (!walk->wr) return;
    post_one(walk, i, i == UNROLLED_WR - 1);
  }
}

SIGMA_VERIFIED_ONCE int remember_post(const struct walk* walk, __u64 function, __u64 bad_wr,
                                    __u32 target_flags) {
  struct sigma_hit hit = {.totals = totals_of_cpu()};
  if (!hit.totals || !walk) return 0;
  hit.id = walk->id;
  struct sigma_call call = {.call_ns = walk->call_ns,
                            .object = walk->queue_ptr,
                            .context = walk->context,
                            .argument = walk->wr,
                            .bad_wr = bad_wr,
                            .number = walk->qp_num,
                            .target_flags = target_flags};
  remember_call(&hit, function, &call);
  return 0;
}

/* `checked`: the return is seen as well. */
static __always_inline bool post_entry(struct pt_regs* ctx, __u8 queue, __u64 function,
                                       bool checked) {
  struct sigma_hit hit;
  struct walk walk = {
      .queue_ptr = PT_REGS_PARM1(ctx), .wr = PT_REGS_PARM2(ctx), .queue = queue, .qp_type = 0xff};
  if (queue == SIGMA_QUEUE_SRQ) {
    if (!sigma_admit(&hit)) return false;
    if (read_user(hit.totals, &walk.context, sizeof(walk.context),
                  walk.queue_ptr + SIGMA_IBV_SRQ_CONTEXT))
      see_context(hit.id, walk.context, false);
    else
      walk.flags |= SIGMA_POST_UNREADABLE;
  } else {
    struct sigma_known_queue known = {};
    bool readable;
    if (!admit_queue_pair(&hit, walk.queue_ptr, &known, &readable)) return false;
    if (!readable) walk.flags |= SIGMA_POST_UNREADABLE;
    walk.context = known.context;
    walk.qp_num = known.qp_num;
    walk.qp_type = known.qp_type;
    if (read_index(hit.totals, known.doorbell, queue == SIGMA_QUEUE_SEND, &walk.index))
      walk.flags |= SIGMA_POST_HAS_INDEX;
  }
  walk.id = hit.id;
  walk.call_ns = bpf_ktime_get_ns(); /* after what first sight emits: readers sort by time */
  if (!checked && !(queue == SIGMA_QUEUE_SEND && walk.flags & SIGMA_POST_HAS_INDEX))
    walk.flags |= SIGMA_POST_UNVERIFIED;
  if (checked) remember_post(&walk, function, PT_REGS_PARM3(ctx), hit.target_flags);
  if (walk.wr) walk_list(&walk);
  return true;
}

/* Where sessions see the returns, a plain entry never has one: that spares asking for the cookie.
 */
static __always_inline bool return_is_probed(struct pt_regs* ctx) {
  return config.check_posts && !config.has_sessions &&
         (bpf_get_attach_cookie(ctx) & SIGMA_COOKIE_CHECKED);
}

SIGMA_VERIFIED_ONCE int refused(__u64 function, __u32 queue, __s32 error) {
  struct sigma_hit hit;
  struct sigma_call* call = recall(&hit, function);
  if (!call) return 0;

  /* The requests before *bad_wr were accepted. A provider that leaves bad_wr alone accepted none.
   */
  struct tail tail = {.wr = call->argument};
  __u64 first_bad = 0;
  if (read_user(hit.totals, &first_bad, sizeof(first_bad), call->bad_wr) && first_bad) {
    tail.until = first_bad;
    count_tail(&tail);
  }
  bool found = first_bad && tail.wr == first_bad;

  struct sigma_post_result* record = reserve(hit.totals, sizeof(*record));
  if (record) {
    fill_header(&record->h, SIGMA_POST_RESULT, sizeof(*record), hit.id, bpf_ktime_get_ns());
    record->context = call->context;
    record->call_ns = call->call_ns;
    record->queue_ptr = call->object;
    record->qp_num = call->number;
    record->error = error < 0 ? -error : error;
    record->accepted = found ? tail.n : 0;
    record->outcome = SIGMA_OUTCOME_REFUSED;
    record->queue = queue;
    submit(record);
  }
  call->call_ns = 0;
  return 0;
}

static __always_inline void post_exit(struct pt_regs* ctx, __u8 queue, __u64 function) {
  __s32 error = (__s32)PT_REGS_RC(ctx);
  if (error) refused(function, queue, error);
}

#define POST_PROGRAMS(name, queue, function)                                  \
  SEC("uprobe") int name(struct pt_regs* ctx) {                               \
    post_entry(ctx, queue, function, return_is_probed(ctx));                  \
    return 0;                                                                 \
  }                                                                           \
  SEC("uprobe") int name##_return(struct pt_regs* ctx) {                      \
    if (PT_REGS_RC(ctx) && !is_strangers(ctx))                                \
      post_exit(ctx, queue, function);                                        \
    return 0;                                                                 \
  }                                                                           \
  SEC("uprobe") int name##_session(struct pt_regs* ctx) {                     \
    if (is_return(ctx)) {                                                     \
      post_exit(ctx, queue, function);                                        \
      return 0;                                                               \
    }                                                                         \
    return post_entry(ctx, queue, function, true) ? SIGMA_SESSION_WANT_RETURN \
                                                  : SIGMA_SESSION_NO_RETURN;  \
  }

POST_PROGRAMS(post_send, SIGMA_QUEUE_SEND, SIGMA_FN_POST_SEND)
POST_PROGRAMS(post_recv, SIGMA_QUEUE_RECV, SIGMA_FN_POST_RECV)
POST_PROGRAMS(post_srq_recv, SIGMA_QUEUE_SRQ, SIGMA_FN_POST_SRQ_RECV)

char LICENSE[] SEC("license") = "Dual BSD/GPL";
