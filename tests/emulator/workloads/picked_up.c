// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// RDMA writes whose completions are picked up after a while.
//
//     picked_up DEVICE
//
// Says "ready", and makes a connected pair when it gets its first line. For each line "N US" it posts N writes,
// one at a time: waits until the data is there, sleeps US microseconds (0: does not), polls until the completion is
// there, and says "done LEAST MOST", in ns: the shortest sleep, and the longest time from before the post to after
// the poll that returned it. Ends with its input.
#include "verbs_common.h"

static int64_t now_ns(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * 1000000000LL + now.tv_nsec;
}

int main(int argc, char** argv) {
  require(argc == 2, "usage: picked_up DEVICE");
  printf("ready\n");
  fflush(stdout);
  char line[64];
  if (!fgets(line, sizeof line, stdin)) return 0;
  struct node node = open_node(argv[1], 64);
  uint64_t* memory = calloc(2, sizeof *memory);
  struct ibv_mr* mr = reg(&node, memory, 2 * sizeof *memory);
  struct ibv_qp *a = create_rc(&node, NULL, 16, 1, 0), *b = create_rc(&node, NULL, 1, 1, 0);
  connect_pair(a, &node, b, &node, kPatient);
  uint64_t sent = 0;
  do {
    long count, us;
    require(sscanf(line, "%ld %ld", &count, &us) == 2, "not a line: %s", line);
    int64_t least = INT64_MAX, most = 0;
    for (long i = 0; i < count; ++i) {
      struct ibv_sge sge = {(uintptr_t)memory, sizeof *memory, mr->lkey};
      struct ibv_send_wr wr = {.wr_id = memory[0] = ++sent,
                               .sg_list = &sge,
                               .num_sge = 1,
                               .opcode = IBV_WR_RDMA_WRITE,
                               .send_flags = IBV_SEND_SIGNALED},
                         *bad;
      wr.wr.rdma.remote_addr = (uintptr_t)(memory + 1);
      wr.wr.rdma.rkey = mr->rkey;
      const int64_t begin = now_ns();
      require(!ibv_post_send(a, &wr, &bad), "cannot post");
      while (__atomic_load_n(memory + 1, __ATOMIC_ACQUIRE) != sent) {
      }
      const int64_t arrived = now_ns();
      const struct timespec pause = {us / 1000000, us % 1000000 * 1000};
      if (us) nanosleep(&pause, NULL);
      const int64_t slept = now_ns() - arrived;
      struct ibv_wc wc;
      int got;
      while ((got = ibv_poll_cq(node.cq, 1, &wc)) == 0) {
      }
      const int64_t took = now_ns() - begin;
      require(got == 1 && wc.status == IBV_WC_SUCCESS && wc.wr_id == sent, "status %d", wc.status);
      if (slept < least) least = slept;
      if (took > most) most = took;
    }
    printf("done %ld %ld\n", (long)least, (long)most);
    fflush(stdout);
  } while (fgets(line, sizeof line, stdin));
  ibv_destroy_qp(a);
  ibv_destroy_qp(b);
  ibv_dereg_mr(mr);
  close_node(&node);
  return 0;
}
