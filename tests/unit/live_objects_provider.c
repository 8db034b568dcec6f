/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* A file with functions, for live_objects_target.c to point to. They are never called; each
 * differs, so that no linker folds them. */
#define FUNCTION(name, value) \
  int name(void);             \
  int name(void) {            \
    return value;             \
  }
FUNCTION(provider_poll_cq, 1)
FUNCTION(provider_req_notify_cq, 2)
FUNCTION(provider_post_srq_recv, 3)
FUNCTION(provider_post_send, 4)
FUNCTION(provider_post_recv, 5)
FUNCTION(provider_other, 6)
FUNCTION(provider_wr_start, 7)
FUNCTION(provider_wr_complete, 8)
FUNCTION(provider_wr_abort, 9)
FUNCTION(provider_wr_rdma_write, 10)
FUNCTION(provider_wr_set_sge, 11)
