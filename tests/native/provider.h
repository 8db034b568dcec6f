// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// A library of a provider's shape: the functions that libibverbs would call through its tables,
// with the public structures of infiniband/verbs.h and nothing behind them. Built with frame
// pointers, so that each begins with a push, as most of the real ones do.
#pragma once

#include <infiniband/verbs.h>

#ifdef __cplusplus
extern "C" {
#endif

// Work requests with this bit in wr_id are refused with ENOMEM, and bad_wr set to them.
#define PROVIDER_REFUSED (1ull << 63)

// What the next poll of a CQ finds; hung on ibv_cq.cq_context.
struct provider_completions {
  const struct ibv_wc* wc;
  int n;
};

int provider_post_send(struct ibv_qp* qp, struct ibv_send_wr* wr, struct ibv_send_wr** bad_wr);
int provider_post_recv(struct ibv_qp* qp, struct ibv_recv_wr* wr, struct ibv_recv_wr** bad_wr);
int provider_post_srq_recv(struct ibv_srq* srq, struct ibv_recv_wr* wr,
                           struct ibv_recv_wr** bad_wr);
int provider_poll_cq(struct ibv_cq* cq, int n, struct ibv_wc* wc);

// An extended CQ: after start_poll or next_poll returned 0, `current` is where it stands.
struct provider_cq_ex {
  struct ibv_cq_ex ex;
  const struct ibv_wc* current;
  struct provider_completions ready;
};
int provider_start_poll(struct ibv_cq_ex* cq, struct ibv_poll_cq_attr* attributes);
int provider_next_poll(struct ibv_cq_ex* cq);

// Fills in the pointers of an ibv_qp_ex, all but its base. wr_complete returns *(int *)qp_context.
void provider_make_ex(struct ibv_qp_ex* qp);

// As libibverbs' function of the name: finishes the header in the command buffer, "runs" the
// command by writing the outputs, and returns `result` of the command.
struct provider_command {
  uint64_t head[4]; /* the bookkeeping of struct ibv_command_buffer */
  struct {
    uint16_t length, object_id, method_id, num_attrs;
    uint64_t reserved1;
    uint32_t driver_id, reserved2;
  } hdr;
  struct {
    uint16_t attr_id, len, flags, elem;
    uint64_t data;
  } attrs[40];
  /* not part of the real thing */
  int num_attrs, result;
};
int provider_execute_ioctl(struct ibv_context* context, struct provider_command* command);
int provider_close_device(struct ibv_context* context);
void provider_sigmatrace_gpu_emit(const void* records, unsigned bytes);

#ifdef __cplusplus
}
#endif
