/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/*
 * The provider that late_job loads, for the libibverbs of tests/data/resolve: sends complete in order,
 * when polled for; `account` adds up what came in. Stripped, as providers are.
 *
 * With -DHIDDEN the table is made at run time, from pointers that are computed: nothing in the file says
 * which function is which.
 */
#include <errno.h>
#include <stdlib.h>

#include "../data/resolve/ops.h"

enum { MAX_SGE = 16, SEND_WEIGHT = 3, RECV_WEIGHT = 7 };

volatile unsigned long account;
static volatile uint64_t posted, completed; /* wr_ids, which the job numbers from 1 */

static void add(unsigned long sum) {
  __atomic_fetch_add(&account, sum, __ATOMIC_RELAXED); /* threads post side by side */
}

static int job_post_send(struct ibv_qp* qp, struct ibv_send_wr* wr, struct ibv_send_wr** bad_wr) {
  for (; wr; wr = wr->next) {
    if (wr->num_sge > MAX_SGE || qp->state != IBV_QPS_RTS) {
      *bad_wr = wr;
      return ENOMEM;
    }
    for (int i = 0; i < wr->num_sge; i++) add(SEND_WEIGHT * wr->sg_list[i].length);
    add(wr->wr_id + 1);
    posted = wr->wr_id;
  }
  return 0;
}

static int job_post_recv(struct ibv_qp* qp, struct ibv_recv_wr* wr, struct ibv_recv_wr** bad_wr) {
  for (; wr; wr = wr->next) {
    if (wr->num_sge > MAX_SGE || qp->state == IBV_QPS_RESET) {
      *bad_wr = wr;
      return ENOMEM;
    }
    for (int i = 0; i < wr->num_sge; i++) add(RECV_WEIGHT * wr->sg_list[i].length);
    add(wr->wr_id + 1);
  }
  return 0;
}

static int job_poll_cq(struct ibv_cq* cq, int count, struct ibv_wc* wc) {
  int done = 0;
  for (; done < count && completed < posted; done++) {
    wc[done] = (struct ibv_wc){.wr_id = ++completed, .status = IBV_WC_SUCCESS, .opcode = IBV_WC_SEND};
    wc[done].qp_num = *(uint32_t*)cq->cq_context;
  }
  return done;
}

#define FN(function) (fixture_fn)(function)
#ifdef HIDDEN
static volatile unsigned long key = 0x5a5a; /* unknown to the compiler, and to who reads the file */

static fixture_fn unhide(unsigned long hidden) {
  return (fixture_fn)(hidden ^ key ^ 0x5a5a);
}

int late_open(struct verbs_context* vctx) {
  struct verbs_context_ops* table = calloc(1, sizeof *table);
  if (!table) return ENOMEM;
  fixture_fn* slots = (fixture_fn*)table;
  const unsigned long nothing = key - 0x5a5a;
  slots[nothing + offsetof(struct verbs_context_ops, post_send) / sizeof *slots] = unhide((unsigned long)job_post_send);
  slots[nothing + offsetof(struct verbs_context_ops, post_recv) / sizeof *slots] = unhide((unsigned long)job_post_recv);
  slots[nothing + offsetof(struct verbs_context_ops, poll_cq) / sizeof *slots] = unhide((unsigned long)job_poll_cq);
  verbs_set_ops(vctx, table);
  free(table);
  return 0;
}
#else
static const struct verbs_context_ops table = {
    .poll_cq = FN(job_poll_cq), .post_recv = FN(job_post_recv), .post_send = FN(job_post_send)};

int late_open(struct verbs_context* vctx) {
  verbs_set_ops(vctx, &table);
  return 0;
}
#endif
