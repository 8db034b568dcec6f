// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Completions of a CQ that asks for wall-clock stamps alone: libmlx5 makes it with stamps in the
// real-time format, seconds in the upper half and nanoseconds in the lower, and hands them on as
// they are. Each must lie between the times before its post and after its poll.
//
//     cq_wallclock DEVICE OPERATIONS
#include <errno.h>

#include "verbs_common.h"

static uint64_t now_ns(void) {
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

int main(int argc, char** argv) {
  require(argc == 3, "usage: cq_wallclock DEVICE OPERATIONS");
  struct node node = open_node(argv[1], 16);
  struct ibv_cq_init_attr_ex init = {.cqe = 16,
                                     .wc_flags = IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK};
  struct ibv_cq_ex* cq = ibv_create_cq_ex(node.context, &init);
  require(cq != NULL, "cannot create a CQ with wall-clock stamps");
  ibv_destroy_cq(node.cq);
  node.cq = ibv_cq_ex_to_cq(cq);
  static uint8_t memory[128];
  struct ibv_mr* mr = reg(&node, memory, sizeof memory);
  struct ibv_qp *a = create_rc(&node, NULL, 8, 1, 0), *b = create_rc(&node, NULL, 8, 1, 0);
  connect_pair(a, &node, b, &node, kPatient);
  struct ibv_sge sge = {(uintptr_t)memory, 64, mr->lkey};
  struct ibv_send_wr wr = {.sg_list = &sge,
                           .num_sge = 1,
                           .opcode = IBV_WR_RDMA_WRITE,
                           .send_flags = IBV_SEND_SIGNALED},
                     *bad;
  wr.wr.rdma.remote_addr = (uintptr_t)memory + 64;
  wr.wr.rdma.rkey = mr->rkey;
  for (long i = 0; i < atol(argv[2]); ++i) {
    const uint64_t before_ns = now_ns();
    const time_t deadline = time(NULL) + 60;
    wr.wr_id = (uint64_t)i;
    require(!ibv_post_send(a, &wr, &bad), "cannot post");
    struct ibv_poll_cq_attr options = {0};
    while (ibv_start_poll(cq, &options) == ENOENT)
      require(time(NULL) < deadline, "no completion within a minute");
    require(cq->status == IBV_WC_SUCCESS && cq->wr_id == (uint64_t)i, "a wrong completion");
    const uint64_t stamp = ibv_wc_read_completion_wallclock_ns(cq);
    ibv_end_poll(cq);
    const uint64_t at_ns = (stamp >> 32) * 1000000000 + (stamp & 0xffffffff), after_ns = now_ns();
    require(before_ns <= at_ns && at_ns <= after_ns,
            "stamped %ld ns after the post, polled after %lu", (long)(at_ns - before_ns),
            (unsigned long)(after_ns - before_ns));
  }
  ibv_destroy_qp(a);
  ibv_destroy_qp(b);
  ibv_dereg_mr(mr);
  close_node(&node);
  printf("ok\n");
  return 0;
}
