// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// A job that has been running for a while when somebody comes to look: queue pairs that have been
// used, that have not, one that can only receive, and remains of some that were destroyed. It says so, waits, and goes on with
// all of them, with new ones, with one after a RESET, and destroys them in the end.
//
//     [LATE_CONTEXTS=1] late_queues DEVICE PAIRS USED BEFORE AFTER READY GO
//
// BEFORE writes on each of the first USED of PAIRS connected pairs; then the FIFO READY is opened
// and gets a line, and the FIFO GO is read; then AFTER writes on each pair, and on one more. With
// LATE_CONTEXTS every second pair is of another context of the device.
#include "verbs_common.h"

enum { kMaxPairs = 512, kDepth = 64, kBytes = 4096 };

static struct node nodes[2];  // contexts of one device
static long contexts = 1;     // so many of them are used, in turn
static struct ibv_qp *active[kMaxPairs], *passive[kMaxPairs];
static uint8_t source[kBytes], target[kBytes];
static struct ibv_mr *source_mr[2], *target_mr[2];
static uint64_t next_id;

static void make(long i) {
  // Rings of several sizes, with and without a receive ring before them.
  static const int kDepths[] = {16, 64, 200, 300};
  const int depth = kDepths[i % 4];
  struct node* node = &nodes[i % contexts];
  active[i] = create_rc(node, NULL, depth, 1 + (int)(i / 4 % 3), (int)(i % 2) * 64);
  passive[i] = create_rc(node, NULL, 1, 1, 0);
  connect_pair(active[i], node, passive[i], node, kPatient);
}

static struct ibv_qp* make_receiver(void) {
  struct ibv_qp_init_attr init = {.send_cq = nodes[0].cq,
                                  .recv_cq = nodes[0].cq,
                                  .qp_type = IBV_QPT_RC,
                                  .cap = {.max_recv_wr = 8, .max_recv_sge = 1}};
  struct ibv_qp* qp = ibv_create_qp(nodes[0].pd, &init);
  require(qp != NULL, "cannot create a QP that only receives");
  return qp;
}

static void write_all(long i, long count) {
  const long of = i % contexts;
  for (long done = 0; done < count;) {
    const long batch = count - done < 8 ? count - done : 8;
    for (long k = 0; k < batch; ++k) {
      const uint32_t bytes = (uint32_t)(1 + (next_id * 37) % 1000);
      struct ibv_sge sge = {(uintptr_t)source, bytes, source_mr[of]->lkey};
      struct ibv_send_wr wr = {.wr_id = ++next_id,
                               .sg_list = &sge,
                               .num_sge = 1,
                               .opcode = IBV_WR_RDMA_WRITE,
                               .send_flags = IBV_SEND_SIGNALED,
                               .wr.rdma = {(uintptr_t)target + (next_id & 0xff), target_mr[of]->rkey}};
      struct ibv_send_wr* bad;
      require(!ibv_post_send(active[i], &wr, &bad), "cannot post");
    }
    struct ibv_wc completions[8];
    poll_exactly(nodes[of].cq, (int)batch, completions);
    for (long k = 0; k < batch; ++k)
      require(completions[k].status == IBV_WC_SUCCESS, "status %d", completions[k].status);
    done += batch;
  }
}

// Where the device is asked to refuse it first, the queue pair goes on meanwhile.
static void destroy(long i) {
  const int refuses = getenv("SIGMA_CONNECTX_BUSY") != NULL;
  if (refuses) {
    require(ibv_destroy_qp(active[i]) == EBUSY, "destroyed a QP that is busy");
    write_all(i, 3);
    require(ibv_destroy_qp(passive[i]) == EBUSY, "destroyed a QP that is busy");
  }
  require(!ibv_destroy_qp(active[i]) && !ibv_destroy_qp(passive[i]), "cannot destroy a QP");
}

int main(int argc, char** argv) {
  require(argc == 8, "usage: late_queues DEVICE PAIRS USED BEFORE AFTER READY GO");
  const long pairs = atol(argv[2]), used = atol(argv[3]), before = atol(argv[4]), after = atol(argv[5]);
  require(pairs + 5 <= kMaxPairs && used <= pairs, "too many pairs");
  if (getenv("LATE_CONTEXTS") != NULL) contexts = 2;
  for (long i = 0; i < contexts; ++i) {
    nodes[i] = open_node(argv[1], 8192);  // more than all completions: a slow reader laps nothing
    source_mr[i] = reg(&nodes[i], source, sizeof source);
    target_mr[i] = reg(&nodes[i], target, sizeof target);
  }
  // Remains in the heap.
  for (long i = 0; i < 4; ++i) {
    make(pairs + i);
    if (before > 0) write_all(pairs + i, 3);
  }
  for (long i = 0; i < pairs; ++i) make(i);
  struct ibv_qp* receiver = make_receiver();
  for (long i = 0; i < 4; ++i) destroy(pairs + i);
  for (long i = 0; i < used; ++i) write_all(i, before);

  say_and_wait(argv[6], argv[7]);

  for (long i = 0; i < pairs; ++i) write_all(i, after);
  make(pairs);
  write_all(pairs, after);
  // A CQ in use cannot be destroyed, and goes on.
  require(ibv_destroy_cq(nodes[pairs % contexts].cq) == EBUSY, "destroyed a CQ that is in use");
  write_all(pairs, after);
  // A new life of an old queue pair. Which file is whose context commands do not tell to whom names both.
  if (pairs > 0 && contexts == 1) {
    modify_state(active[0], IBV_QPS_RESET);
    modify_state(passive[0], IBV_QPS_RESET);
    connect_pair(active[0], &nodes[0], passive[0], &nodes[0], kPatient);
    write_all(0, after);
  }
  for (long i = 0; i <= pairs; ++i) destroy(i);
  while (ibv_destroy_qp(receiver) == EBUSY) {
  }
  for (long i = 0; i < contexts; ++i) {
    ibv_dereg_mr(source_mr[i]);
    ibv_dereg_mr(target_mr[i]);
    close_node(&nodes[i]);
  }
  printf("ok\n");
  return 0;
}
