// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Many threads, many queue pairs, one completion queue, wr_id always 0: each operation adds 1 to a
// counter of its queue pair's peer, so that the sums tell whether each was done once.
//
//     verbs_threads DEVICE POSTERS QPS OPERATIONS POLLERS [shared]
//
// OPERATIONS per queue pair. "shared": every poster posts to every queue pair, else each has its
// own.
#include <pthread.h>
#include <stdatomic.h>

#include "verbs_common.h"

enum { kMaxQps = 512, kDepth = 64 };

static struct node node;
static struct ibv_qp *active[kMaxQps], *passive[kMaxQps];
static uint64_t counters[kMaxQps], results[kMaxQps];
static struct ibv_mr *counter_mr, *result_mr;
static atomic_long to_post[kMaxQps], outstanding[kMaxQps], completed, refused;
static long posters, qps, operations;
static int shared_qps;

static struct ibv_qp* qp_of(uint32_t number, long* index) {
  for (*index = 0; *index < qps; ++*index)
    if (active[*index]->qp_num == number) return active[*index];
  require(0, "a completion of an unknown QP %u", number);
  return NULL;
}

// Posts one operation if there is one left and room for it.
static int post_one(long index) {
  if (atomic_fetch_add(&outstanding[index], 1) >= kDepth) {
    atomic_fetch_sub(&outstanding[index], 1);
    return 0;
  }
  if (atomic_fetch_sub(&to_post[index], 1) <= 0) {
    atomic_fetch_sub(&outstanding[index], 1);
    return 0;
  }
  struct ibv_sge sge = {(uintptr_t)&results[index], 8, result_mr->lkey};
  struct ibv_send_wr wr = {.sg_list = &sge,
                           .num_sge = 1,
                           .opcode = IBV_WR_ATOMIC_FETCH_AND_ADD,
                           .send_flags = IBV_SEND_SIGNALED},
                     *bad;
  wr.wr.atomic.remote_addr = (uintptr_t)&counters[index];
  wr.wr.atomic.rkey = counter_mr->rkey;
  wr.wr.atomic.compare_add = 1;
  while (ibv_post_send(active[index], &wr,
                       &bad)) {  // full after all: the queue counts what is not polled yet
    atomic_fetch_add(&refused, 1);
    sched_yield();
  }
  return 1;
}

static void* poster(void* argument) {
  const long self = (long)argument;
  for (int left = 1; left;) {
    left = 0;
    int posted = 0;
    for (long index = shared_qps ? 0 : self; index < qps; index += shared_qps ? 1 : posters) {
      posted += post_one(index);
      left |= atomic_load(&to_post[index]) > 0;
    }
    if (!posted) sched_yield();
  }
  return NULL;
}

static void* poller(void* argument) {
  (void)argument;
  while (atomic_load(&completed) < qps * operations) {
    struct ibv_wc wc[16];
    const int got = poll_some(node.cq, 16, wc);
    for (int i = 0; i < got; ++i) {
      long index;
      require(wc[i].status == IBV_WC_SUCCESS && wc[i].wr_id == 0, "status %d", wc[i].status);
      qp_of(wc[i].qp_num, &index);
      atomic_fetch_sub(&outstanding[index], 1);
      atomic_fetch_add(&completed, 1);
    }
    if (got <= 0) sched_yield();
  }
  return NULL;
}

int main(int argc, char** argv) {
  require(argc >= 6, "usage: verbs_threads DEVICE POSTERS QPS OPERATIONS POLLERS [shared]");
  posters = atol(argv[2]);
  qps = atol(argv[3]);
  operations = atol(argv[4]);
  const long pollers = atol(argv[5]);
  shared_qps = argc > 6 && !strcmp(argv[6], "shared");
  require(qps <= kMaxQps && posters <= 64 && pollers <= 64, "too many");
  node = open_node(argv[1], (int)(qps * (kDepth + 2)));
  counter_mr = reg(&node, counters, sizeof counters);
  result_mr = reg(&node, results, sizeof results);
  for (long i = 0; i < qps; ++i) {
    active[i] = create_rc(&node, NULL, kDepth, 1, 0);
    passive[i] = create_rc(&node, NULL, 1, 1, 0);
    connect_pair(active[i], &node, passive[i], &node, kPatient);
    to_post[i] = operations;
  }
  pthread_t threads[128];
  int count = 0;
  for (long i = 0; i < posters; ++i)
    require(!pthread_create(&threads[count++], NULL, poster, (void*)i), "no thread");
  for (long i = 0; i < pollers; ++i)
    require(!pthread_create(&threads[count++], NULL, poller, NULL), "no thread");
  while (count > 0) pthread_join(threads[--count], NULL);
  for (long i = 0; i < qps; ++i) {
    require(counters[i] == (uint64_t)operations, "QP %ld: %lu operations arrived", i,
            (unsigned long)counters[i]);
    ibv_destroy_qp(active[i]);
    ibv_destroy_qp(passive[i]);
  }
  ibv_dereg_mr(counter_mr);
  ibv_dereg_mr(result_mr);
  close_node(&node);
  printf("posted ATOMIC_FA %ld\nrefused %ld\nok\n", qps * operations, (long)refused);
  return 0;
}
