// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
#include "provider.h"

#include <errno.h>
#include <string.h>

int provider_post_send(struct ibv_qp* qp, struct ibv_send_wr* wr, struct ibv_send_wr** bad_wr) {
  for (; wr; wr = wr->next)
    if (wr->wr_id & PROVIDER_REFUSED) {
      *bad_wr = wr;
      return ENOMEM;
    }
  return 0;
}

int provider_post_recv(struct ibv_qp* qp, struct ibv_recv_wr* wr, struct ibv_recv_wr** bad_wr) {
  for (; wr; wr = wr->next)
    if (wr->wr_id & PROVIDER_REFUSED) {
      *bad_wr = wr;
      return ENOMEM;
    }
  return 0;
}

int provider_post_srq_recv(struct ibv_srq* srq, struct ibv_recv_wr* wr,
                           struct ibv_recv_wr** bad_wr) {
  for (; wr; wr = wr->next)
    if (wr->wr_id & PROVIDER_REFUSED) {
      *bad_wr = wr;
      return ENOMEM;
    }
  return 0;
}

int provider_poll_cq(struct ibv_cq* cq, int n, struct ibv_wc* wc) {
  struct provider_completions* ready = cq->cq_context;
  if (ready->n < 0) return ready->n;
  if (n > ready->n) n = ready->n;
  memcpy(wc, ready->wc, (size_t)n * sizeof(*wc));
  ready->wc += n;
  ready->n -= n;
  return n;
}

static int advance(struct ibv_cq_ex* ex) {
  struct provider_cq_ex* cq = (struct provider_cq_ex*)ex;
  if (cq->ready.n == 0) return ENOENT;
  cq->current = cq->ready.wc++;
  cq->ready.n--;
  ex->wr_id = cq->current->wr_id;
  ex->status = cq->current->status;
  return 0;
}

int provider_start_poll(struct ibv_cq_ex* cq, struct ibv_poll_cq_attr* attributes) {
  return attributes->comp_mask ? EINVAL : advance(cq);
}
int provider_next_poll(struct ibv_cq_ex* cq) {
  return advance(cq);
}

// The builders keep nothing: the tracer must have looked at the arguments. Each differs from the
// others in a constant, so that no linker folds them into one.
#define KEEP(n) __asm__ volatile("" : : "i"(n) : "memory")

void provider_wr_start(struct ibv_qp_ex* qp) {
  KEEP(1);
}
void provider_wr_abort(struct ibv_qp_ex* qp) {
  KEEP(2);
}
int provider_wr_complete(struct ibv_qp_ex* qp) {
  return *(int*)qp->qp_base.qp_context;
}

void provider_wr_atomic_cmp_swp(struct ibv_qp_ex* qp, uint32_t rkey, uint64_t addr,
                                uint64_t compare, uint64_t swap) {
  KEEP(3);
}
void provider_wr_atomic_fetch_add(struct ibv_qp_ex* qp, uint32_t rkey, uint64_t addr,
                                  uint64_t add) {
  KEEP(4);
}
void provider_wr_bind_mw(struct ibv_qp_ex* qp, struct ibv_mw* mw, uint32_t rkey,
                         const struct ibv_mw_bind_info* info) {
  KEEP(5);
}
void provider_wr_local_inv(struct ibv_qp_ex* qp, uint32_t rkey) {
  KEEP(6);
}
void provider_wr_rdma_read(struct ibv_qp_ex* qp, uint32_t rkey, uint64_t addr) {
  KEEP(7);
}
void provider_wr_rdma_write(struct ibv_qp_ex* qp, uint32_t rkey, uint64_t addr) {
  KEEP(8);
}
void provider_wr_rdma_write_imm(struct ibv_qp_ex* qp, uint32_t rkey, uint64_t addr, __be32 imm) {
  KEEP(9);
}
void provider_wr_send(struct ibv_qp_ex* qp) {
  KEEP(10);
}
void provider_wr_send_imm(struct ibv_qp_ex* qp, __be32 imm) {
  KEEP(11);
}
void provider_wr_send_inv(struct ibv_qp_ex* qp, uint32_t rkey) {
  KEEP(12);
}
void provider_wr_send_tso(struct ibv_qp_ex* qp, void* hdr, uint16_t hdr_sz, uint16_t mss) {
  KEEP(13);
}
void provider_wr_set_ud_addr(struct ibv_qp_ex* qp, struct ibv_ah* ah, uint32_t qpn, uint32_t qkey) {
  KEEP(14);
}
void provider_wr_set_xrc_srqn(struct ibv_qp_ex* qp, uint32_t srqn) {
  KEEP(15);
}
void provider_wr_set_inline_data(struct ibv_qp_ex* qp, void* addr, size_t length) {
  KEEP(16);
}
void provider_wr_set_inline_data_list(struct ibv_qp_ex* qp, size_t n,
                                      const struct ibv_data_buf* list) {
  KEEP(17);
}
void provider_wr_set_sge(struct ibv_qp_ex* qp, uint32_t lkey, uint64_t addr, uint32_t length) {
  KEEP(18);
}
void provider_wr_set_sge_list(struct ibv_qp_ex* qp, size_t n, const struct ibv_sge* list) {
  KEEP(19);
}

void provider_make_ex(struct ibv_qp_ex* qp) {
  qp->wr_start = provider_wr_start;
  qp->wr_complete = provider_wr_complete;
  qp->wr_abort = provider_wr_abort;
  qp->wr_atomic_cmp_swp = provider_wr_atomic_cmp_swp;
  qp->wr_atomic_fetch_add = provider_wr_atomic_fetch_add;
  qp->wr_bind_mw = provider_wr_bind_mw;
  qp->wr_local_inv = provider_wr_local_inv;
  qp->wr_rdma_read = provider_wr_rdma_read;
  qp->wr_rdma_write = provider_wr_rdma_write;
  qp->wr_rdma_write_imm = provider_wr_rdma_write_imm;
  qp->wr_send = provider_wr_send;
  qp->wr_send_imm = provider_wr_send_imm;
  qp->wr_send_inv = provider_wr_send_inv;
  qp->wr_send_tso = provider_wr_send_tso;
  qp->wr_set_ud_addr = provider_wr_set_ud_addr;
  qp->wr_set_xrc_srqn = provider_wr_set_xrc_srqn;
  qp->wr_set_inline_data = provider_wr_set_inline_data;
  qp->wr_set_inline_data_list = provider_wr_set_inline_data_list;
  qp->wr_set_sge = provider_wr_set_sge;
  qp->wr_set_sge_list = provider_wr_set_sge_list;
}

int provider_execute_ioctl(struct ibv_context* context, struct provider_command* command) {
  command->hdr.num_attrs = (uint16_t)command->num_attrs;
  for (int i = 0; i < command->num_attrs; i++)
    if (command->attrs[i].flags & 2) /* an output: the kernel fills it in */
      memset((void*)(uintptr_t)command->attrs[i].data, 0xa0 + i, command->attrs[i].len);
  return command->result;
}

int provider_close_device(struct ibv_context* context) {
  KEEP(20);
  return 0;
}

/* The GPU library's, so that there is one of each probed function. */
void provider_sigmatrace_gpu_emit(const void* records, unsigned bytes) {
  KEEP(21);
}
