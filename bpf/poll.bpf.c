// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
/*
 * poll_cq: one record for each completion that the poll returned. Threads spin on it, so nearly all
 * polls are empty: the entry stores two pointers in place, an empty return looks at one register.
 */
#include "bpf/context.h"

struct batch {
  __u64 id;
  __u64 now;
  __u64 context;
  __u64 cq_ptr;
  __u64 wc;
  __u32 n;
};

SIGMA_VERIFIED_ONCE int completion(const struct batch* batch, __u32 i) {
  struct sigma_totals* totals = totals_of_cpu();
  if (!totals || !batch) return 0;
  struct sigma_ibv_wc wc;
  if (!read_user(totals, &wc, sizeof(wc), batch->wc + (__u64)i * sizeof(wc))) return 0;
  struct sigma_completion* record = reserve(totals, sizeof(*record));
  if (!record) return 0;
  fill_header(&record->h, SIGMA_COMPLETION, sizeof(*record), batch->id, batch->now);
  record->context = batch->context;
  record->cq_ptr = batch->cq_ptr;
  record->wr_id = wc.wr_id;
  record->status = wc.status;
  record->opcode = wc.opcode;
  record->vendor_err = wc.vendor_err;
  record->byte_len = wc.byte_len;
  record->imm = wc.imm;
  record->qp_num = wc.qp_num;
  record->src_qp = wc.src_qp;
  record->wc_flags = wc.wc_flags;
  record->pkey_index = wc.pkey_index;
  record->slid = wc.slid;
  record->sl = wc.sl;
  record->dlid_path_bits = wc.dlid_path_bits;
  record->batch = batch->n > 0xffff ? 0xffff : batch->n;
  record->nic_stamp = 0;
  record->unknown = 0;
  record->flags = 0;
  record->reserved = 0;
  submit(record);
  return 0;
}

static long completion_step(__u64 i, void* data) {
  const struct batch* batch = data;
  if (i + 1 >= batch->n) return 1;
  completion(batch, i + 1);
  return 0;
}

SIGMA_VERIFIED_ONCE int completions(__s32 n) {
  struct sigma_hit hit;
  struct sigma_call* call = recall(&hit, SIGMA_FN_POLL_CQ);
  if (!call) return 0;
  struct batch batch = {.id = hit.id, .cq_ptr = call->object, .wc = call->argument, .n = n};
  call->call_ns = 0;
  if (read_user(hit.totals, &batch.context, sizeof(batch.context),
                batch.cq_ptr + SIGMA_IBV_CQ_CONTEXT))
    see_context(hit.id, batch.context, false);
  batch.now = bpf_ktime_get_ns(); /* after what first sight emits: readers sort by time */

  __u32 limit = config.has_loop ? SIGMA_MAX_WC : 32;
  if (batch.n > limit) count(hit.totals, SIGMA_COUNT_WC_OMITTED, batch.n - limit);
  completion(&batch, 0);
  if (batch.n == 1) return 0;
  if (config.has_loop) {
    bpf_loop(SIGMA_MAX_WC - 1, completion_step, &batch, 0);
    return 0;
  }
  for (__u32 i = 1; i < 32; i++) {
    if (i >= batch.n) break;
    completion(&batch, i);
  }
  return 0;
}

static __always_inline bool poll_entry(struct pt_regs* ctx) {
  struct sigma_hit hit;
  if (!sigma_admit(&hit)) return false;
  struct sigma_call call = {.call_ns = 1, /* in use; nobody asks when */
                            .object = PT_REGS_PARM1(ctx),
                            .argument = PT_REGS_PARM3(ctx),
                            .target_flags = hit.target_flags};
  remember_call(&hit, SIGMA_FN_POLL_CQ, &call);
  return true;
}

static __always_inline void poll_exit(struct pt_regs* ctx) {
  __s32 n = (__s32)PT_REGS_RC(ctx);
  if (n > 0) completions(n);
}

SEC("uprobe") int poll_cq(struct pt_regs* ctx) {
  poll_entry(ctx);
  return 0;
}

SEC("uprobe") int poll_cq_return(struct pt_regs* ctx) {
  if ((__s32)PT_REGS_RC(ctx) > 0 && !is_strangers(ctx)) poll_exit(ctx);
  return 0;
}

SEC("uprobe") int poll_cq_session(struct pt_regs* ctx) {
  if (is_return(ctx)) {
    poll_exit(ctx);
    return 0;
  }
  return poll_entry(ctx) ? SIGMA_SESSION_WANT_RETURN : SIGMA_SESSION_NO_RETURN;
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
