// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// A program that posts until the queue is full, polls, and goes on: calls are refused all the time,
// whole ones and parts of lists.
//
//     post_full DEVICE ROUNDS LIST [threads]
//
// ROUNDS times: lists of LIST writes until ibv_post_send refuses one, then everything is polled.
// "threads": two threads post single writes to one queue pair at once, without any agreement.
// Prints "accepted N", "refused N" and "partly N" (calls of which a part was accepted).
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>

#include "verbs_common.h"

enum { kDepth = 32, kMaxList = 16, kMaxSize = 200 };

static struct node node;
static struct ibv_qp *active, *passive;
static uint8_t memory[2 * kMaxSize];
static struct ibv_mr* mr;
static atomic_long accepted, refused, partly, polled;
static long rounds;
static atomic_int posters;

// Posts a list of `count` writes. Returns how many were accepted.
static int post_list(int count) {
  struct ibv_sge sge[kMaxList];
  struct ibv_send_wr wr[kMaxList], *bad = NULL;
  for (int i = 0; i < count; ++i) {
    // Every other one is inline and takes several basic blocks.
    const uint32_t length = i % 2 ? kMaxSize : 8;
    sge[i] = (struct ibv_sge){(uintptr_t)memory, length, mr->lkey};
    wr[i] = (struct ibv_send_wr){.next = i + 1 < count ? &wr[i + 1] : NULL,
                                 .sg_list = &sge[i],
                                 .num_sge = 1,
                                 .opcode = IBV_WR_RDMA_WRITE,
                                 .send_flags = IBV_SEND_SIGNALED | (i % 2 ? IBV_SEND_INLINE : 0)};
    wr[i].wr.rdma.remote_addr = (uintptr_t)memory + kMaxSize;
    wr[i].wr.rdma.rkey = mr->rkey;
  }
  const int error = ibv_post_send(active, wr, &bad);
  const int good = error ? (int)(bad - wr) : count;
  require(!error || error == ENOMEM, "error %d", error);
  atomic_fetch_add(&accepted, good);
  atomic_fetch_add(&refused, count - good);
  if (good && good < count) atomic_fetch_add(&partly, 1);
  return good;
}

static void poll_all(void) {
  struct ibv_wc wc[kDepth];
  const long outstanding = atomic_load(&accepted) - atomic_load(&polled);
  for (long left = outstanding; left > 0;) {
    const int part = left < kDepth ? (int)left : kDepth;
    poll_exactly(node.cq, part, wc);
    for (int i = 0; i < part; ++i)
      require(wc[i].status == IBV_WC_SUCCESS, "status %d", wc[i].status);
    left -= part;
  }
  atomic_fetch_add(&polled, outstanding);
}

static void* poster(void* argument) {
  (void)argument;
  for (long round = 0; round < rounds; ++round)
    while (!post_list(1)) sched_yield();
  atomic_fetch_sub(&posters, 1);
  return NULL;
}

static void post_by_threads(void) {
  pthread_t threads[2];
  atomic_store(&posters, 2);
  for (int i = 0; i < 2; ++i)
    require(!pthread_create(&threads[i], NULL, poster, NULL), "cannot start a thread");
  while (atomic_load(&posters) > 0) {
    poll_all();
    sched_yield();
  }
  for (int i = 0; i < 2; ++i) pthread_join(threads[i], NULL);
  poll_all();
}

int main(int argc, char** argv) {
  require(argc == 4 || (argc == 5 && !strcmp(argv[4], "threads")),
          "usage: post_full DEVICE ROUNDS LIST [threads]");
  rounds = atol(argv[2]);
  const int list = atoi(argv[3]);
  require(list >= 1 && list <= kMaxList, "a list of 1 to %d", kMaxList);
  node = open_node(argv[1], 4 * kDepth);
  mr = reg(&node, memory, sizeof memory);
  active = create_rc(&node, NULL, kDepth, 1, kMaxSize);
  passive = create_rc(&node, NULL, 1, 1, 0);
  connect_pair(active, &node, passive, &node, kPatient);
  if (argc == 5) {
    post_by_threads();
  } else {
    for (long round = 0; round < rounds; ++round) {
      while (post_list(list) == list) {
      }
      poll_all();
    }
  }
  // The last call is an accepted one: of a refused one only a later call could tell.
  require(post_list(1) == 1, "an empty queue refuses a request");
  poll_all();
  ibv_destroy_qp(active);
  ibv_destroy_qp(passive);
  ibv_dereg_mr(mr);
  close_node(&node);
  printf("accepted %ld\nrefused %ld\npartly %ld\n", atomic_load(&accepted), atomic_load(&refused),
         atomic_load(&partly));
  return 0;
}
