/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* A libibverbs of the test's own: verbs_set_ops as rdma-core's does it, on the table of ops.h. */
#include "ops.h"

void verbs_set_ops(struct verbs_context *vctx, const struct verbs_context_ops *ops) {
  struct verbs_ex_private *priv = vctx->priv;
  struct ibv_context *context = &vctx->context;

#define FIXTURE_COPY(name, field)                            \
  if (ops->name) {                                           \
    priv->ops.name = ops->name;                              \
    context->ops.field = (__typeof__(context->ops.field))ops->name; \
  }
#define FIXTURE_COPY_PRIVATE(name) \
  if (ops->name) priv->ops.name = ops->name;
  FIXTURE_OPS(FIXTURE_COPY, FIXTURE_COPY_PRIVATE)
}

#define FIXTURE_DEFINE(name) \
  int ibv_cmd_##name(void *object) { return object != 0; }
FIXTURE_COMMANDS(FIXTURE_DEFINE)

int execute_ioctl(struct ibv_context *context, void *command) { return context && command; }

/* Two versions of one name, as libibverbs has them: the first is dead. */
__asm__(".symver close_1_0, ibv_close_device@IBVERBS_1.0");
__asm__(".symver close_1_1, ibv_close_device@@IBVERBS_1.1");
int close_1_0(struct ibv_context *context) { return context ? -10 : -11; }
int close_1_1(struct ibv_context *context) { return context ? -20 : -21; }
