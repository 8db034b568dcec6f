/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/*
 * A provider with the shapes that matter: a full table, a second generation's, a table of one slot, an
 * imported slot, an ibv_qp_ex filled per QP type. Names are the truth that the test checks against: the
 * provider that is resolved is stripped of them.
 */
#include <stdlib.h>

#include "ops.h"

struct fake_qp {
  unsigned long header[7];
  union {
    struct ibv_qp qp;
    struct ibv_qp_ex qp_ex;
  };
  unsigned long count;
  int (*finish)(struct fake_qp *qp, int status);
  volatile unsigned char ring[256];
};

volatile unsigned long sink;
int generation;

__attribute__((noinline)) static int ring_doorbell(void *queue, unsigned long value) {
  sink += value + (queue != 0);
  return (int)sink & 1;
}

/* Posting: loops over the list, calls, several pushes. */
#define POST(name, request, salt)                                                          \
  static int name(struct ibv_qp *qp, struct request *wr, struct request **bad_wr) {        \
    for (; wr; wr = wr->next) {                                                            \
      if (wr->num_sge > 16) {                                                              \
        *bad_wr = wr;                                                                      \
        return 12;                                                                         \
      }                                                                                    \
      for (int i = 0; i < wr->num_sge; i++) sink += wr->sg_list[i].length * (salt);        \
      ring_doorbell(qp, wr->wr_id);                                                        \
    }                                                                                      \
    return 0;                                                                              \
  }
POST(fake_post_send, ibv_send_wr, 3)
POST(fake_post_recv, ibv_recv_wr, 7)
#ifndef EMBEDDED_TABLE
POST(fake_post_send_old, ibv_send_wr, 5)
POST(fake_post_recv_old, ibv_recv_wr, 9)
#endif

static int fake_post_srq_recv(struct ibv_srq *srq, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad_wr) {
  if (!wr) return 0;
  *bad_wr = wr;
  return ring_doorbell(srq, wr->wr_id * 11);
}

static int fake_poll_cq(struct ibv_cq *cq, int count, struct ibv_wc *wc) {
  int done = 0;
  for (; done < count && ring_doorbell(cq, 13); done++) wc[done].wr_id = sink;
  return done;
}
static int fake_poll_cq_v1(struct ibv_cq *cq, int count, struct ibv_wc *wc) {
  int done = 0;
  while (done < count && ring_doorbell(cq, 17)) wc[done++].wr_id = sink ^ 1;
  return done;
}
static int fake_req_notify_cq(struct ibv_cq *cq, int solicited) { return ring_doorbell(cq, (unsigned long)solicited); }

/* ibv_qp_ex. Bodies differ in a constant, lest the compiler fold them into one. */
#define BUILDER(name, salt) \
  static void name(struct ibv_qp_ex *qp) { ((struct fake_qp *)((char *)qp - 56))->ring[salt] = salt; }
BUILDER(fake_wr_start, 1)
BUILDER(fake_wr_abort, 2)
BUILDER(fake_wr_send_rc, 3)
BUILDER(fake_wr_send_ud, 4)
BUILDER(fake_wr_send_imm_rc, 5)
BUILDER(fake_wr_send_imm_ud, 6)
BUILDER(fake_wr_rdma_write, 7)
BUILDER(fake_wr_rdma_write_imm, 8)
BUILDER(fake_wr_rdma_read, 9)
BUILDER(fake_wr_set_sge_rc, 10)
BUILDER(fake_wr_set_sge_ud, 11)
BUILDER(fake_wr_set_sge_list, 12)
BUILDER(fake_wr_set_ud_addr, 13)
BUILDER(fake_wr_atomic_cmp_swp, 14)
BUILDER(fake_wr_atomic_fetch_add, 15)
BUILDER(fake_wr_set_inline_data, 16)

static int fake_wr_complete(struct ibv_qp_ex *qp) {
  struct fake_qp *fake = (struct fake_qp *)((char *)qp - offsetof(struct fake_qp, qp_ex));
  return fake->finish ? fake->finish(fake, 0) : ring_doorbell(qp, 18);
}
static int fake_wr_complete_error(struct ibv_qp_ex *qp) { return ring_doorbell(qp, 20) + 5; }
static int fake_finish(struct fake_qp *qp, int status) { return ring_doorbell(qp, 19) + status; }

#define SET(member, function) qp->qp_ex.member = (__typeof__(qp->qp_ex.member))(fixture_fn)(function)
static void fill_builders(struct fake_qp *qp, int type) {
  SET(wr_start, fake_wr_start);
  SET(wr_complete, fake_wr_complete);
  SET(wr_abort, fake_wr_abort);
  switch (type) {
    case IBV_QPT_RC:
      SET(wr_send, fake_wr_send_rc);
      SET(wr_send_imm, fake_wr_send_imm_rc);
      SET(wr_rdma_write, fake_wr_rdma_write);
      SET(wr_rdma_write_imm, fake_wr_rdma_write_imm);
      SET(wr_rdma_read, fake_wr_rdma_read);
      SET(wr_atomic_cmp_swp, fake_wr_atomic_cmp_swp);
      SET(wr_atomic_fetch_add, fake_wr_atomic_fetch_add);
      SET(wr_set_sge, fake_wr_set_sge_rc);
      break;
    case IBV_QPT_UD:
      SET(wr_send, fake_wr_send_ud);
      SET(wr_send_imm, fake_wr_send_imm_ud);
      SET(wr_set_ud_addr, fake_wr_set_ud_addr);
      SET(wr_set_sge, fake_wr_set_sge_ud);
      break;
    default:
      return;
  }
  SET(wr_set_sge_list, fake_wr_set_sge_list);
  SET(wr_set_inline_data, fake_wr_set_inline_data);
}

/* As libmlx5: another wr_complete while the QP is in error. Their like with another member is no such thing. */
__attribute__((noinline)) void fail_completes(struct fake_qp *qp) {
  if (qp->qp_ex.wr_complete) SET(wr_complete, fake_wr_complete_error);
}
__attribute__((noinline)) void restore_completes(struct fake_qp *qp) {
  if (qp->qp_ex.wr_complete) SET(wr_complete, fake_wr_complete);
}
__attribute__((noinline)) void set_finish(struct fake_qp *qp) { qp->finish = fake_finish; }

/* ibv_cq_ex: the completion stands behind a pointer; its readers are rows of one line. */
struct entry {
  unsigned char kind, flags;
  unsigned short id;
  unsigned bytes, number, source;
};
struct fake_cq {
  union {
    struct ibv_cq cq;
    struct ibv_cq_ex cq_ex;
  };
  unsigned long count;
  struct entry *current;
};
#define FAKE_CQ(cq) ((struct fake_cq *)(cq))

#define POLL(name, salt)                                                       \
  static int name(struct ibv_cq_ex *cq, struct ibv_poll_cq_attr *attributes) { \
    if (!ring_doorbell(attributes, salt)) return 2;                            \
    FAKE_CQ(cq)->current += salt;                                              \
    return 0;                                                                  \
  }
POLL(fake_start_poll, 21)
POLL(fake_start_poll_locked, 22)
static int fake_next_poll(struct ibv_cq_ex *cq) {
  FAKE_CQ(cq)->current++;
  return ring_doorbell(cq, 23);
}
static void fake_end_poll(struct ibv_cq_ex *cq) { FAKE_CQ(cq)->current = 0; }
static void fake_end_poll_locked(struct ibv_cq_ex *cq) {
  FAKE_CQ(cq)->current = 0;
  ring_doorbell(cq, 24);
}
static enum ibv_wc_opcode fake_read_opcode(struct ibv_cq_ex *cq) {
  return FAKE_CQ(cq)->current->kind == 3 ? IBV_WC_RECV : IBV_WC_SEND;
}
static unsigned fake_read_vendor_err(struct ibv_cq_ex *cq) { return FAKE_CQ(cq)->current->flags; }
static unsigned fake_read_byte_len(struct ibv_cq_ex *cq) { return __builtin_bswap32(FAKE_CQ(cq)->current->bytes); }
static unsigned fake_read_qp_num(struct ibv_cq_ex *cq) {
  return __builtin_bswap32(FAKE_CQ(cq)->current->number) & 0xffffff;
}
static unsigned fake_read_src_qp(struct ibv_cq_ex *cq) { return FAKE_CQ(cq)->current->source >> 8; }
static unsigned fake_read_wc_flags(struct ibv_cq_ex *cq) { return FAKE_CQ(cq)->cq_ex.comp_mask; }

#ifdef POLL_TABLE
/* As libmlx5: by properties of the CQ, some of which exclude each other. */
static const struct {
  int (*start)(struct ibv_cq_ex *, struct ibv_poll_cq_attr *);
  int (*next)(struct ibv_cq_ex *);
  void (*end)(struct ibv_cq_ex *);
} polls[4] = {[0] = {fake_start_poll, fake_next_poll, fake_end_poll},
              [3] = {fake_start_poll_locked, fake_next_poll, fake_end_poll_locked}};
#endif

__attribute__((noinline)) static void fill_polls(struct fake_cq *cq, unsigned flags, unsigned long fields) {
#ifdef POLL_TABLE
  cq->cq_ex.start_poll = polls[(flags & 1) + (flags >> 4 & 2)].start;
  cq->cq_ex.next_poll = polls[(flags & 1) + (flags >> 4 & 2)].next;
  cq->cq_ex.end_poll = polls[(flags & 1) + (flags >> 4 & 2)].end;
#else
  cq->cq_ex.start_poll = flags ? fake_start_poll_locked : fake_start_poll;
  cq->cq_ex.next_poll = fake_next_poll;
  cq->cq_ex.end_poll = flags ? fake_end_poll_locked : fake_end_poll;
#endif
  cq->cq_ex.read_opcode = fake_read_opcode;
  cq->cq_ex.read_vendor_err = fake_read_vendor_err;
  cq->cq_ex.read_wc_flags = fake_read_wc_flags;
  if (fields & IBV_WC_EX_WITH_BYTE_LEN) cq->cq_ex.read_byte_len = fake_read_byte_len;
  if (fields & IBV_WC_EX_WITH_QP_NUM) cq->cq_ex.read_qp_num = fake_read_qp_num;
  if (fields & IBV_WC_EX_WITH_SRC_QP) cq->cq_ex.read_src_qp = fake_read_src_qp;
}

/* Control path. */
#define CONTROL(name) \
  static int fake_##name(void *object) { return ibv_cmd_##name(object) ? 0 : ring_doorbell(object, sizeof #name); }
CONTROL(alloc_pd)
CONTROL(dealloc_pd)
CONTROL(reg_mr)
CONTROL(dereg_mr)
CONTROL(destroy_cq)
CONTROL(modify_qp)
CONTROL(query_qp)
CONTROL(destroy_qp)
static void *fake_create_cq(void *context, unsigned flags, unsigned long fields) {
  struct fake_cq *cq = calloc(1, sizeof *cq);
  if (cq && !ibv_cmd_create_cq(context)) fill_polls(cq, flags, fields);
  return cq;
}
static struct ibv_qp *fake_create_qp(void *pd, struct ibv_qp_init_attr *attributes) {
  struct fake_qp *qp = calloc(1, sizeof *qp);
  if (!qp) return 0;
  if (ibv_cmd_create_qp(pd)) {
    free(qp);
    return 0;
  }
  qp->finish = fake_finish;
  fill_builders(qp, attributes->qp_type);
  return &qp->qp;
}

#define FN(function) (fixture_fn)(function)
#define COMMON                                                                       \
  .alloc_pd = FN(fake_alloc_pd), .dealloc_pd = FN(fake_dealloc_pd),                  \
  .reg_mr = FN(fake_reg_mr), .dereg_mr = FN(fake_dereg_mr),                          \
  .create_cq = FN(fake_create_cq), .destroy_cq = FN(fake_destroy_cq),                \
  .create_qp = FN(fake_create_qp), .modify_qp = FN(fake_modify_qp),                  \
  .query_qp = FN(fake_query_qp), .destroy_qp = FN(fake_destroy_qp),                  \
  .attach_mcast = FN(ibv_cmd_attach_mcast), .req_notify_cq = FN(fake_req_notify_cq)

#ifdef EMBEDDED_TABLE
/* As libhns: the table lies within a structure that the hardware's generation chooses. */
struct hardware {
  unsigned long version;
  struct verbs_context_ops ops;
  int (*start)(struct verbs_context *);
};
static int start(struct verbs_context *vctx) { return vctx != 0; }
static const struct hardware only_hardware = {
    2, {COMMON, .poll_cq = FN(fake_poll_cq), .post_send = FN(fake_post_send),
        .post_recv = FN(fake_post_recv), .post_srq_recv = FN(fake_post_srq_recv)}, start};
static const struct hardware *const hardware_list[] = {0, &only_hardware};
__attribute__((noinline)) const struct hardware *fake_hardware(void) { return hardware_list[generation]; }
#else
static const struct verbs_context_ops new_ops = {
    COMMON, .poll_cq = FN(fake_poll_cq), .post_send = FN(fake_post_send),
    .post_recv = FN(fake_post_recv), .post_srq_recv = FN(fake_post_srq_recv),
};
static const struct verbs_context_ops old_ops = {
    COMMON, .poll_cq = FN(fake_poll_cq), .post_send = FN(fake_post_send_old),
    .post_recv = FN(fake_post_recv_old),
};
#endif
static const struct verbs_context_ops v1_ops = {.poll_cq = FN(fake_poll_cq_v1)};

int fake_open(struct verbs_context *vctx) {
#ifdef EMBEDDED_TABLE
  verbs_set_ops(vctx, &fake_hardware()->ops);
#else
  verbs_set_ops(vctx, generation ? &new_ops : &old_ops);
#endif
  if (sink) verbs_set_ops(vctx, &v1_ops);
  return 0;
}
