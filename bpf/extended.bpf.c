// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
/*
 * ibv_wr_*: wr_start, then for each request a builder (opcode) and setters (data, address), then
 * wr_complete or wr_abort.
 *
 * A request is whole only when the next one begins or the batch ends. Until then its record is
 * built in `batches`, keyed by thread and queue pair: the provider holds the queue's lock from
 * wr_start on, and a thread may fill two queues by turns. Requests leave marked STAGED;
 * SIGMA_POST_RESULT tells their fate.
 */
#include "bpf/context.h"

struct batch_key {
  __u64 id; /* pid_tgid */
  __u64 qp_ptr;
};

struct batch {
  __u64 started;  /* not 0: between wr_start and its end */
  __u32 position; /* of the next request */
  __u32 open;     /* `post` holds a request */
  struct sigma_post post;
};

struct {
  __uint(type, BPF_MAP_TYPE_LRU_HASH);
  __uint(max_entries, 8192);
  __type(key, struct batch_key);
  __type(value, struct batch);
} batches SEC(".maps");

static __always_inline struct batch* batch_of(const struct sigma_hit* hit, __u64 qp_ptr) {
  struct batch_key key = {.id = hit->id, .qp_ptr = qp_ptr};
  return bpf_map_lookup_elem(&batches, &key);
}

/* The batch that a builder, setter or end belongs to; NULL (counted) when its wr_start was not
 * seen. */
static __always_inline struct batch* current_batch(const struct sigma_hit* hit, __u64 qp_ptr) {
  struct batch* batch = batch_of(hit, qp_ptr);
  if (batch && batch->started) return batch;
  count(hit->totals, SIGMA_COUNT_NO_ENTRY, 1);
  return NULL;
}

static __always_inline void flush(struct sigma_totals* totals, struct batch* batch, __u64 now) {
  if (!batch->open) return;
  batch->open = 0;
  struct sigma_post* record = reserve(totals, sizeof(*record));
  if (!record) return;
  *record = batch->post;
  record->h.time_ns = now;
  record->h.cpu = bpf_get_smp_processor_id();
  submit(record);
}

SEC("uprobe") int wr_start(struct pt_regs* ctx) {
  struct sigma_hit hit;
  struct sigma_known_queue queue = {};
  bool readable;
  __u64 qp_ptr = PT_REGS_PARM1(ctx);
  if (!admit_queue_pair(&hit, qp_ptr, &queue, &readable)) return 0;
  struct batch* batch = batch_of(&hit, qp_ptr);
  if (!batch) {
    struct batch_key key = {.id = hit.id, .qp_ptr = qp_ptr};
    struct batch fresh = {};
    bpf_map_update_elem(&batches, &key, &fresh, BPF_ANY);
    batch = bpf_map_lookup_elem(&batches, &key);
    if (!batch) {
      count(hit.totals, SIGMA_COUNT_ENTRY_FULL, 1);
      return 0;
    }
  }
  batch->started = 1;
  batch->position = 0;
  batch->open = 0;

  struct sigma_post* post = &batch->post;
  __builtin_memset(post, 0, sizeof(*post));
  fill_header(&post->h, SIGMA_POST, sizeof(*post), hit.id, 0); /* its time: when it leaves */
  post->queue_ptr = qp_ptr;
  post->queue = SIGMA_QUEUE_SEND;
  post->flags = SIGMA_POST_STAGED;

  post->context = queue.context;
  post->qp_num = queue.qp_num;
  post->qp_type = queue.qp_type;
  if (!readable) post->flags |= SIGMA_POST_UNREADABLE;
  post->call_ns = bpf_ktime_get_ns(); /* after what first sight emits: readers sort by time */
  if (read_index(hit.totals, queue.doorbell, true, &post->index)) post->flags |= SIGMA_POST_HAS_INDEX;
  bool checked = config.check_posts && (bpf_get_attach_cookie(ctx) & SIGMA_COOKIE_CHECKED);
  if (!checked && !(post->flags & SIGMA_POST_HAS_INDEX)) post->flags |= SIGMA_POST_UNVERIFIED;
  return 0;
}

/* What every request begins with; the rest of the record is the batch's own. */
static __always_inline void begin_request(struct sigma_totals* totals, struct batch* batch,
                                          __u64 qp_ptr) {
  struct sigma_post* post = &batch->post;
  struct {
    __u64 wr_id;
    __u32 wr_flags;
    __u32 padding;
  } given = {};
  post->flags &= ~(SIGMA_POST_SGE_TRUNCATED | SIGMA_POST_HAS_AH | SIGMA_POST_HAS_LID);
  if (!read_user(totals, &given, sizeof(given), qp_ptr + SIGMA_IBV_QP_EX_WR_ID))
    post->flags |= SIGMA_POST_UNREADABLE;
  post->wr_id = given.wr_id;
  post->send_flags = given.wr_flags;
  post->local_addr = 0;
  post->remote_addr = 0;
  post->bytes = 0;
  post->lkey = 0;
  post->rkey = 0;
  post->imm = 0;
  post->remote_qpn = 0;
  post->ah_handle = 0;
  post->num_sge = 0;
  post->position = batch->position > 0xffff ? 0xffff : batch->position;
  batch->position++;
  batch->open = 1;
}

SEC("uprobe") int wr_builder(struct pt_regs* ctx) {
  struct sigma_hit hit;
  if (!sigma_admit(&hit)) return 0;
  __u64 qp_ptr = PT_REGS_PARM1(ctx);
  struct batch* batch = current_batch(&hit, qp_ptr);
  if (!batch) return 0;
  flush(hit.totals, batch, bpf_ktime_get_ns());
  begin_request(hit.totals, batch, qp_ptr);

  struct sigma_post* post = &batch->post;
  __u64 second = PT_REGS_PARM2(ctx), third = PT_REGS_PARM3(ctx);
  switch (bpf_get_attach_cookie(ctx) & SIGMA_COOKIE_FUNCTION) {
    case SIGMA_FN_WR_ATOMIC_CMP_SWP:
      post->opcode = SIGMA_IBV_WR_ATOMIC_CMP_AND_SWP;
      post->rkey = second;
      post->remote_addr = third;
      break;
    case SIGMA_FN_WR_ATOMIC_FETCH_ADD:
      post->opcode = SIGMA_IBV_WR_ATOMIC_FETCH_AND_ADD;
      post->rkey = second;
      post->remote_addr = third;
      break;
    case SIGMA_FN_WR_RDMA_READ:
      post->opcode = SIGMA_IBV_WR_RDMA_READ;
      post->rkey = second;
      post->remote_addr = third;
      break;
    case SIGMA_FN_WR_RDMA_WRITE:
      post->opcode = SIGMA_IBV_WR_RDMA_WRITE;
      post->rkey = second;
      post->remote_addr = third;
      break;
    case SIGMA_FN_WR_RDMA_WRITE_IMM:
      post->opcode = SIGMA_IBV_WR_RDMA_WRITE_WITH_IMM;
      post->rkey = second;
      post->remote_addr = third;
      post->imm = PT_REGS_PARM4(ctx);
      break;
    case SIGMA_FN_WR_SEND:
      post->opcode = SIGMA_IBV_WR_SEND;
      break;
    case SIGMA_FN_WR_SEND_IMM:
      post->opcode = SIGMA_IBV_WR_SEND_WITH_IMM;
      post->imm = second;
      break;
    case SIGMA_FN_WR_SEND_INV:
      post->opcode = SIGMA_IBV_WR_SEND_WITH_INV;
      post->rkey = second;
      break;
    case SIGMA_FN_WR_SEND_TSO:
      post->opcode = SIGMA_IBV_WR_TSO;
      post->bytes = (__u16)third;
      break;
    case SIGMA_FN_WR_LOCAL_INV:
      post->opcode = SIGMA_IBV_WR_LOCAL_INV;
      post->rkey = second;
      break;
    case SIGMA_FN_WR_BIND_MW:
      post->opcode = SIGMA_IBV_WR_BIND_MW;
      post->rkey = third;
      break;
  }
  return 0;
}

static __always_inline void set_sge_list(struct sigma_totals* totals, struct sigma_post* post,
                                         __u64 n, __u64 list) {
  struct sigma_ibv_sge first;
  post->num_sge = n;
  if (!n) return;
  if (!read_user(totals, &first, sizeof(first), list)) {
    post->flags |= SIGMA_POST_UNREADABLE;
    return;
  }
  post->local_addr = first.addr;
  post->lkey = first.lkey;
  post->bytes += first.length;
  add_sges(totals, post, list, n);
}

static __always_inline void set_inline_list(struct sigma_totals* totals, struct sigma_post* post,
                                            __u64 n, __u64 list) {
  post->num_sge = n;
  for (__u32 i = 0; i < SIGMA_MAX_SGE; i++) {
    struct sigma_ibv_data_buf buffer;
    if (i >= n) return;
    if (!read_user(totals, &buffer, sizeof(buffer), list + i * sizeof(buffer))) {
      post->flags |= SIGMA_POST_UNREADABLE;
      return;
    }
    if (i == 0) post->local_addr = buffer.addr;
    post->bytes += buffer.length;
  }
  if (n > SIGMA_MAX_SGE) post->flags |= SIGMA_POST_SGE_TRUNCATED;
}

SEC("uprobe") int wr_setter(struct pt_regs* ctx) {
  struct sigma_hit hit;
  if (!sigma_admit(&hit)) return 0;
  struct batch* batch = current_batch(&hit, PT_REGS_PARM1(ctx));
  if (!batch || !batch->open) return 0;

  struct sigma_post* post = &batch->post;
  __u64 second = PT_REGS_PARM2(ctx), third = PT_REGS_PARM3(ctx);
  switch (bpf_get_attach_cookie(ctx) & SIGMA_COOKIE_FUNCTION) {
    case SIGMA_FN_WR_SET_SGE:
      post->num_sge = 1;
      post->lkey = second;
      post->local_addr = third;
      post->bytes += (__u32)PT_REGS_PARM4(ctx);
      break;
    case SIGMA_FN_WR_SET_SGE_LIST:
      set_sge_list(hit.totals, post, second, third);
      break;
    case SIGMA_FN_WR_SET_INLINE_DATA:
      post->num_sge = 1;
      post->local_addr = second;
      post->bytes += third;
      post->send_flags |= SIGMA_IBV_SEND_INLINE;
      break;
    case SIGMA_FN_WR_SET_INLINE_DATA_LIST:
      post->send_flags |= SIGMA_IBV_SEND_INLINE;
      set_inline_list(hit.totals, post, second, third);
      break;
    case SIGMA_FN_WR_SET_UD_ADDR:
      post->remote_qpn = third;
      read_address_handle(hit.totals, post, second);
      break;
  }
  return 0;
}

static __always_inline void emit_result(struct sigma_totals* totals, const struct sigma_post* post,
                                        __u16 outcome, __s32 error, __u64 now) {
  struct sigma_post_result* record = reserve(totals, sizeof(*record));
  if (!record) return;
  record->h = post->h;
  record->h.time_ns = now;
  record->h.type = SIGMA_POST_RESULT;
  record->h.size = sizeof(*record);
  record->h.cpu = bpf_get_smp_processor_id();
  record->context = post->context;
  record->call_ns = post->call_ns;
  record->queue_ptr = post->queue_ptr;
  record->qp_num = post->qp_num;
  record->error = error;
  record->accepted = 0;
  record->outcome = outcome;
  record->queue = SIGMA_QUEUE_SEND;
  submit(record);
}

/* True: the return is wanted. */
static __always_inline bool end_batch(struct pt_regs* ctx, __u16 outcome) {
  struct sigma_hit hit;
  if (!sigma_admit(&hit)) return false;
  struct batch* batch = current_batch(&hit, PT_REGS_PARM1(ctx));
  if (!batch) return false;
  __u64 now = bpf_ktime_get_ns();
  if (outcome == SIGMA_OUTCOME_COMMITTED) flush(hit.totals, batch, now);
  /* The record of an aborted request is of no use, but its batch may have been reported in part. */
  batch->started = 0;
  batch->open = 0;
  emit_result(hit.totals, &batch->post, outcome, 0, now);

  if (outcome != SIGMA_OUTCOME_COMMITTED || !config.check_posts) return false;
  if (!(bpf_get_attach_cookie(ctx) & SIGMA_COOKIE_CHECKED)) return false;
  struct sigma_call call = {
      .call_ns = now, .object = PT_REGS_PARM1(ctx), .target_flags = hit.target_flags};
  remember_call(&hit, SIGMA_FN_WR_COMPLETE, &call);
  return true;
}

SIGMA_VERIFIED_ONCE int batch_refused(__s32 error) {
  struct sigma_hit hit;
  struct sigma_call* call = recall(&hit, SIGMA_FN_WR_COMPLETE);
  if (!call) return 0;
  call->call_ns = 0;
  struct batch* batch = batch_of(&hit, call->object);
  if (batch) /* its post still has the batch's identity */
    emit_result(hit.totals, &batch->post, SIGMA_OUTCOME_REFUSED, error < 0 ? -error : error,
                bpf_ktime_get_ns());
  return 0;
}

static __always_inline void complete_exit(struct pt_regs* ctx) {
  __s32 error = (__s32)PT_REGS_RC(ctx);
  if (error) batch_refused(error);
}

SEC("uprobe") int wr_complete(struct pt_regs* ctx) {
  end_batch(ctx, SIGMA_OUTCOME_COMMITTED);
  return 0;
}

SEC("uprobe") int wr_complete_return(struct pt_regs* ctx) {
  if (PT_REGS_RC(ctx) && !is_strangers(ctx)) complete_exit(ctx);
  return 0;
}

SEC("uprobe") int wr_complete_session(struct pt_regs* ctx) {
  if (is_return(ctx)) {
    complete_exit(ctx);
    return 0;
  }
  return end_batch(ctx, SIGMA_OUTCOME_COMMITTED) ? SIGMA_SESSION_WANT_RETURN
                                                 : SIGMA_SESSION_NO_RETURN;
}

SEC("uprobe") int wr_abort(struct pt_regs* ctx) {
  end_batch(ctx, SIGMA_OUTCOME_ABORTED);
  return 0;
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
