// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// RDMA writes as fast as the queue takes them, every SIGNAL-th signaled, for the rig's own speed
// and for benches. Prints the rate that the application saw.
//
//     verbs_rate DEVICE OPERATIONS [BYTES [SIGNAL [DEPTH]]]
#include "verbs_common.h"

static double seconds(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

int main(int argc, char** argv) {
  require(argc >= 3, "usage: verbs_rate DEVICE OPERATIONS [BYTES [SIGNAL [DEPTH]]]");
  const long operations = atol(argv[2]), bytes = argc > 3 ? atol(argv[3]) : 8,
             signal = argc > 4 ? atol(argv[4]) : 16;
  const long depth = argc > 5 ? atol(argv[5]) : 512;
  require(operations % signal == 0 && depth > signal,
          "OPERATIONS must be a multiple of SIGNAL, DEPTH above it");
  struct node node = open_node(argv[1], (int)depth);
  uint8_t* memory = calloc(2, (size_t)bytes);
  struct ibv_mr* mr = reg(&node, memory, 2 * (size_t)bytes);
  struct ibv_qp *a = create_rc(&node, NULL, (int)depth, 1, 0), *b = create_rc(&node, NULL, 1, 1, 0);
  connect_pair(a, &node, b, &node, kPatient);
  struct ibv_sge sge = {(uintptr_t)memory, (uint32_t)bytes, mr->lkey};
  struct ibv_send_wr wr = {.sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE}, *bad;
  wr.wr.rdma.remote_addr = (uintptr_t)memory + (uintptr_t)bytes;
  wr.wr.rdma.rkey = mr->rkey;
  const double start = seconds();
  for (long posted = 0, done = 0; done < operations;) {
    while (posted < operations && posted - done < depth) {
      wr.wr_id = (uint64_t)posted;
      wr.send_flags = ++posted % signal ? 0 : IBV_SEND_SIGNALED;
      require(!ibv_post_send(a, &wr, &bad), "cannot post");
    }
    struct ibv_wc wc[32];
    const int got = poll_some(node.cq, 32, wc);
    for (int i = 0; i < got; ++i)
      require(wc[i].status == IBV_WC_SUCCESS, "status %d", wc[i].status);
    done += got * signal;
  }
  const double spent = seconds() - start;
  printf("%ld writes of %ld bytes in %.3f s: %.3f M/s\n", operations, bytes, spent,
         (double)operations / spent * 1e-6);
  ibv_destroy_qp(a);
  ibv_destroy_qp(b);
  ibv_dereg_mr(mr);
  close_node(&node);
  return 0;
}
