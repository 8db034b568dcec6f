// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// A job that goes on until it is told to end: some thousand RDMA writes a second, by a thread that sleeps in
// between, or that takes all of its CPU.
//
//     placed DEVICE
//
// Says "ready" when it posts. Lines: "spin" and "sleep", the latter as it begins. Ends with its input, and says
// "posted N".
#include <poll.h>
#include <unistd.h>

#include "verbs_common.h"

enum { kSendWr = 256, kPerMs = 8 };

static int64_t now_ns(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * 1000000000LL + now.tv_nsec;
}

int main(int argc, char** argv) {
  require(argc == 2, "usage: placed DEVICE");
  struct node node = open_node(argv[1], kSendWr);
  uint64_t* memory = calloc(2, sizeof *memory);
  struct ibv_mr* mr = reg(&node, memory, 2 * sizeof *memory);
  struct ibv_qp *a = create_rc(&node, NULL, kSendWr, 1, 0), *b = create_rc(&node, NULL, 1, 1, 0);
  connect_pair(a, &node, b, &node, kPatient);
  printf("ready\n");
  fflush(stdout);

  struct ibv_sge sge = {(uintptr_t)memory, sizeof *memory, mr->lkey};
  struct ibv_send_wr wr = {
                         .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE, .send_flags = IBV_SEND_SIGNALED},
                     *bad;
  wr.wr.rdma.remote_addr = (uintptr_t)(memory + 1);
  wr.wr.rdma.rkey = mr->rkey;
  long posted = 0, done = 0;
  int spins = 0, ends = 0;
  int64_t begin = now_ns(), last_done = begin;
  for (long due = 0; !ends || done < posted;) {
    const int64_t now = now_ns();
    // What could not be posted in time is not made up for.
    const long wanted = (now - begin) / 1000000 * kPerMs;
    for (long n = wanted - due; n > 0 && !ends && posted - done < kSendWr; --n) {
      wr.wr_id = (uint64_t)++posted;
      require(!ibv_post_send(a, &wr, &bad), "cannot post");
    }
    due = wanted;
    struct ibv_wc wc[16];
    const int got = ibv_poll_cq(node.cq, 16, wc);
    require(got >= 0, "cannot poll");
    for (int i = 0; i < got; ++i)
      require(wc[i].status == IBV_WC_SUCCESS && wc[i].wr_id == (uint64_t)++done, "status %d", wc[i].status);
    if (got > 0) last_done = now;
    require(posted == done || now - last_done < 60000000000LL, "no completion");
    struct pollfd input = {.fd = STDIN_FILENO, .events = POLLIN};
    if (!ends && poll(&input, 1, spins ? 0 : 1) > 0) {
      char line[64];
      const ssize_t length = read(STDIN_FILENO, line, sizeof line - 1);
      if (length <= 0)
        ends = 1;
      else
        spins = !strncmp(line, "spin", 4);
    }
  }
  require(!ibv_destroy_qp(a) && !ibv_destroy_qp(b), "cannot destroy a QP");
  ibv_dereg_mr(mr);
  close_node(&node);
  printf("posted %ld\n", posted);
  return 0;
}
