// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// A job to attach to once it runs: makes a connected pair and CHILDREN forked processes that have
// copies of all of it and do nothing, and writes when it is told.
//
//     held DEVICE CHILDREN [told]
//
// With "told" it makes nothing before it has got a line. Says "ready PID CHILD..." when all is made; posts N RDMA writes for each line "N", waits for
// them, checks what arrived, and says "done N". Ends with its input, and its children with it. With
// -DLINKED_IN it is linked with the static libraries of rdma-core: then it names its provider
// itself.
#ifdef LINKED_IN
#define RDMA_STATIC_PROVIDERS mlx5
#endif
#include <sys/wait.h>
#include <unistd.h>

#include "verbs_common.h"

static void write_and_wait(struct node* node, struct ibv_qp* qp, struct ibv_mr* mr,
                           uint64_t* memory, long count) {
  static uint64_t sent;
  struct ibv_sge sge = {(uintptr_t)memory, sizeof *memory, mr->lkey};
  struct ibv_send_wr wr = {.sg_list = &sge,
                           .num_sge = 1,
                           .opcode = IBV_WR_RDMA_WRITE,
                           .send_flags = IBV_SEND_SIGNALED},
                     *bad;
  wr.wr.rdma.remote_addr = (uintptr_t)(memory + 1);
  wr.wr.rdma.rkey = mr->rkey;
  for (long i = 0; i < count; ++i) {
    wr.wr_id = memory[0] = ++sent;
    require(!ibv_post_send(qp, &wr, &bad), "cannot post");
    struct ibv_wc wc;
    int got;
    while ((got = ibv_poll_cq(node->cq, 1, &wc)) == 0) {
    }
    require(got == 1 && wc.status == IBV_WC_SUCCESS && wc.wr_id == sent, "status %d", wc.status);
    require(memory[1] == sent, "%lu arrived, not %lu", memory[1], sent);
  }
}

int main(int argc, char** argv) {
  require(argc == 3 || argc == 4, "usage: held DEVICE CHILDREN [told]");
  char told[64];
  require(argc == 3 || fgets(told, sizeof told, stdin), "nobody told");
  struct node node = open_node(argv[1], 64);
  uint64_t* memory = calloc(2, sizeof *memory);
  struct ibv_mr* mr = reg(&node, memory, 2 * sizeof *memory);
  struct ibv_qp *a = create_rc(&node, NULL, 16, 1, 0), *b = create_rc(&node, NULL, 1, 1, 0);
  connect_pair(a, &node, b, &node, kPatient);

  int end[2];
  require(pipe(end) == 0, "pipe");
  printf("ready %d", getpid());
  fflush(stdout);
  for (int i = 0; i < atoi(argv[2]); ++i) {
    const pid_t child = fork();
    require(child >= 0, "fork");
    if (child == 0) {
      char byte;
      close(end[1]);
      _exit(read(end[0], &byte, 1) == 0 ? 0 : 1);  // when the parent has closed it
    }
    printf(" %d", child);
  }
  printf("\n");
  fflush(stdout);
  for (char line[64]; fgets(line, sizeof line, stdin);) {
    write_and_wait(&node, a, mr, memory, atol(line));
    printf("done %ld\n", atol(line));
    fflush(stdout);
  }
  close(end[0]);
  close(end[1]);
  int status = 0;
  while (wait(&status) > 0) require(status == 0, "a child failed");
  ibv_destroy_qp(a);
  ibv_destroy_qp(b);
  ibv_dereg_mr(mr);
  close_node(&node);
  return 0;
}
