// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Queue pairs that come and go: ROUNDS times, a pair is made, connected, writes WRITES messages of
// 8 bytes and is destroyed; with `reset` one pair goes to RESET instead. The completion queue is shared by
// all and outlives them; every second round ends with completions that nobody polled. With `exec` the process
// becomes another program while its last pair is there, `sleep 2`.
//
//     verbs_churn DEVICE ROUNDS WRITES [reset|exec]
#include <unistd.h>

#include "verbs_common.h"

enum { kDepth = 16 };

int main(int argc, char** argv) {
  const int reset = argc == 5 && !strcmp(argv[4], "reset"), exec = argc == 5 && !strcmp(argv[4], "exec");
  require(argc == 4 || reset || exec, "usage: verbs_churn DEVICE ROUNDS WRITES [reset|exec]");
  const long rounds = atol(argv[2]), writes = atol(argv[3]);
  require(writes < kDepth, "at most %d writes a round", kDepth - 1);
  struct node node = open_node(argv[1], 4 * kDepth);
  static uint64_t memory[kDepth + 1];
  volatile uint64_t* const arrived = &memory[kDepth];
  struct ibv_mr* mr = reg(&node, memory, sizeof memory);
  struct ibv_qp *a = NULL, *b = NULL;
  for (long round = 1; round <= rounds; ++round) {
    if (!reset || round == 1) {
      a = create_rc(&node, NULL, kDepth, 1, 0);
      b = create_rc(&node, NULL, 1, 1, 0);
    }
    connect_pair(a, &node, b, &node, kPatient);
    for (long i = 0; i < writes; ++i) {
      memory[i] = (uint64_t)(round * writes + i);
      struct ibv_sge sge = {(uintptr_t)&memory[i], 8, mr->lkey};
      struct ibv_send_wr wr = {.wr_id = (uint64_t)i,
                               .sg_list = &sge,
                               .num_sge = 1,
                               .opcode = IBV_WR_RDMA_WRITE,
                               .send_flags = IBV_SEND_SIGNALED},
                         *bad;
      wr.wr.rdma.remote_addr = (uintptr_t)arrived;
      wr.wr.rdma.rkey = mr->rkey;
      require(!ibv_post_send(a, &wr, &bad), "cannot post");
    }
    const uint64_t last = (uint64_t)(round * writes + writes - 1);
    struct ibv_wc wc[kDepth];
    if (round % 2) {
      poll_exactly(node.cq, (int)writes, wc);
      for (long i = 0; i < writes; ++i)
        require(wc[i].status == IBV_WC_SUCCESS && wc[i].wr_id == (uint64_t)i, "status %d",
                wc[i].status);
      require(*arrived == last, "round %ld: %lu arrived", round, (unsigned long)*arrived);
    } else {
      const time_t deadline = time(NULL) + 60;
      while (*arrived != last) require(time(NULL) < deadline, "round %ld: nothing arrived", round);
    }
    if (exec && round == rounds) {
      usleep(200000);  // for a reader that is not told before
      execlp("sleep", "sleep", "2", (char*)NULL);
      require(0, "cannot exec");
    }
    if (reset && round < rounds) {
      modify_state(a, IBV_QPS_RESET);
      modify_state(b, IBV_QPS_RESET);
    } else if (!reset || round == rounds) {
      require(!ibv_destroy_qp(a) && !ibv_destroy_qp(b), "cannot destroy a QP");
    }
  }
  ibv_dereg_mr(mr);
  close_node(&node);
  printf("ok\n");
  return 0;
}
