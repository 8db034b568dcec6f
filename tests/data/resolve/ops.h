/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/*
 * The private table of the test's own libibverbs and providers: the shape of rdma-core's
 * verbs_context_ops, alphabetical, but an order of slots that no release has.
 */
#ifndef FIXTURE_OPS_H
#define FIXTURE_OPS_H

#include <infiniband/verbs.h>

/* OP(name, public field of ibv_context.ops) and PRIVATE(name): not in the public structure. */
#define FIXTURE_OPS(OP, PRIVATE)             \
  PRIVATE(alloc_dmah)                        \
  OP(alloc_mw, alloc_mw)                     \
  OP(alloc_pd, _compat_alloc_pd)             \
  PRIVATE(alloc_something)                   \
  OP(async_event, _compat_async_event)       \
  OP(attach_mcast, _compat_attach_mcast)     \
  OP(bind_mw, bind_mw)                       \
  OP(cq_event, _compat_cq_event)             \
  OP(create_ah, _compat_create_ah)           \
  OP(create_cq, _compat_create_cq)           \
  PRIVATE(create_more)                       \
  OP(create_qp, _compat_create_qp)           \
  OP(create_srq, _compat_create_srq)         \
  OP(dealloc_mw, dealloc_mw)                 \
  OP(dealloc_pd, _compat_dealloc_pd)         \
  OP(dereg_mr, _compat_dereg_mr)             \
  OP(destroy_ah, _compat_destroy_ah)         \
  OP(destroy_cq, _compat_destroy_cq)         \
  OP(destroy_qp, _compat_destroy_qp)         \
  OP(destroy_srq, _compat_destroy_srq)       \
  OP(detach_mcast, _compat_detach_mcast)     \
  PRIVATE(free_context)                      \
  OP(modify_qp, _compat_modify_qp)           \
  OP(modify_srq, _compat_modify_srq)         \
  OP(poll_cq, poll_cq)                       \
  OP(post_recv, post_recv)                   \
  OP(post_send, post_send)                   \
  PRIVATE(post_something)                    \
  OP(post_srq_recv, post_srq_recv)           \
  PRIVATE(query_ece)                         \
  OP(query_qp, _compat_query_qp)             \
  OP(query_srq, _compat_query_srq)           \
  OP(reg_mr, _compat_reg_mr)                 \
  OP(req_notify_cq, req_notify_cq)           \
  OP(rereg_mr, _compat_rereg_mr)             \
  OP(resize_cq, _compat_resize_cq)           \
  PRIVATE(set_ece)

typedef void (*fixture_fn)(void);

struct verbs_context_ops {
#define FIXTURE_FIELD(name, field) fixture_fn name;
#define FIXTURE_PRIVATE(name) fixture_fn name;
  FIXTURE_OPS(FIXTURE_FIELD, FIXTURE_PRIVATE)
#undef FIXTURE_FIELD
#undef FIXTURE_PRIVATE
};

struct verbs_ex_private {
  unsigned long before[5];
  struct verbs_context_ops ops;
};

void verbs_set_ops(struct verbs_context *vctx, const struct verbs_context_ops *ops);

/* Commands: what a provider's control path ends in. */
#define FIXTURE_COMMANDS(COMMAND)                                                             \
  COMMAND(alloc_pd) COMMAND(dealloc_pd) COMMAND(reg_mr) COMMAND(dereg_mr) COMMAND(create_cq)  \
  COMMAND(destroy_cq) COMMAND(create_qp) COMMAND(modify_qp) COMMAND(query_qp)                 \
  COMMAND(destroy_qp) COMMAND(attach_mcast)

#define FIXTURE_DECLARE(name) int ibv_cmd_##name(void *object);
FIXTURE_COMMANDS(FIXTURE_DECLARE)
#undef FIXTURE_DECLARE

#endif
