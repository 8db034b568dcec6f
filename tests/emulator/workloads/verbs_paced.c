// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// RDMA writes of 64 bytes over several queue pairs, at a given rate. Each goes to an address of its
// own in turn; every SIGNAL-th of a queue pair asks for a completion. The pairs' senders share one
// completion queue, their peers another.
//
//     verbs_paced DEVICE QPS SEND_WR SIGNAL RATE BEFORE [MEANWHILE AFTER SYNC]
//
// BEFORE: writes in all, at RATE a second. Then, with SYNC: it makes the file SYNC.stop, waits for
// SYNC.stopped, posts MEANWHILE writes as fast as they go, makes SYNC.resume, waits for SYNC.resumed,
// and ends with AFTER writes at RATE.
#include <fcntl.h>
#include <unistd.h>

#include "verbs_common.h"

enum { kMaxQps = 64, kBytes = 64, kSlots = 1024 };

static struct node node, peers;
static struct ibv_qp *senders[kMaxQps], *receivers[kMaxQps];
static long posted[kMaxQps], done[kMaxQps], qps, send_wr, signal_each, total;
static uint8_t* memory;
static struct ibv_mr *mr, *remote;

static int64_t now_ns(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * 1000000000LL + now.tv_nsec;
}

static void poll_all(void) {
  struct ibv_wc wc[64];
  const int got = poll_some(node.cq, 64, wc);
  for (int i = 0; i < got; ++i) {
    require(wc[i].status == IBV_WC_SUCCESS, "status %d", wc[i].status);
    done[wc[i].wr_id % (unsigned long)qps] += signal_each;
  }
}

static void post_next(void) {
  const long qp = total % qps;
  while (posted[qp] - done[qp] >= send_wr) poll_all();
  const size_t slot = (size_t)(total % kSlots) * kBytes;
  struct ibv_sge sge = {(uintptr_t)memory + slot, kBytes, mr->lkey};
  struct ibv_send_wr wr = {.wr_id = (uint64_t)total,
                           .sg_list = &sge,
                           .num_sge = 1,
                           .opcode = IBV_WR_RDMA_WRITE,
                           .send_flags = ++posted[qp] % signal_each ? 0 : IBV_SEND_SIGNALED},
                     *bad;
  wr.wr.rdma.remote_addr = (uintptr_t)memory + (size_t)kSlots * kBytes + slot;
  wr.wr.rdma.rkey = remote->rkey;
  require(!ibv_post_send(senders[qp], &wr, &bad), "cannot post");
  ++total;
}

static void post_paced(long count, long rate) {
  const int64_t start = now_ns();
  for (long sent = 0; sent < count;) {
    const long due = rate ? (now_ns() - start) / 1000 * rate / 1000000 : count;
    for (; sent < count && sent < due; ++sent) post_next();
    poll_all();
    const struct timespec pause = {0, 50000};
    if (rate) nanosleep(&pause, NULL);
  }
}

static void make_file(const char* sync, const char* name) {
  char path[512];
  snprintf(path, sizeof path, "%s.%s", sync, name);
  const int fd = open(path, O_CREAT | O_WRONLY, 0600);
  require(fd >= 0 && !close(fd), "cannot make %s", path);
}

static void wait_file(const char* sync, const char* name) {
  char path[512];
  snprintf(path, sizeof path, "%s.%s", sync, name);
  const time_t deadline = time(NULL) + 120;
  while (access(path, F_OK)) {
    require(time(NULL) < deadline, "nobody made %s", path);
    const struct timespec pause = {0, 1000000};
    nanosleep(&pause, NULL);
  }
}

int main(int argc, char** argv) {
  require(argc == 7 || argc == 10,
          "usage: verbs_paced DEVICE QPS SEND_WR SIGNAL RATE BEFORE [MEANWHILE AFTER SYNC]");
  qps = atol(argv[2]);
  send_wr = atol(argv[3]);
  signal_each = atol(argv[4]);
  const long rate = atol(argv[5]);
  require(qps >= 1 && qps <= kMaxQps && signal_each >= 1 && signal_each <= send_wr, "arguments");
  node = open_node(argv[1], (int)(qps * (send_wr / signal_each + 1)));
  peers = open_node(argv[1], 16);
  memory = calloc(2 * kSlots, kBytes);
  mr = reg(&node, memory, (size_t)kSlots * kBytes);
  remote = reg(&peers, memory + (size_t)kSlots * kBytes, (size_t)kSlots * kBytes);
  for (long i = 0; i < qps; ++i) {
    senders[i] = create_rc(&node, NULL, (int)send_wr, 1, 0);
    receivers[i] = create_rc(&peers, NULL, 1, 1, 0);
    connect_pair(senders[i], &node, receivers[i], &peers, kPatient);
  }
  post_paced(atol(argv[6]), rate);
  if (argc == 10) {
    make_file(argv[9], "stop");
    wait_file(argv[9], "stopped");
    post_paced(atol(argv[7]), 0);
    make_file(argv[9], "resume");
    wait_file(argv[9], "resumed");
    post_paced(atol(argv[8]), rate);
  }
  const time_t deadline = time(NULL) + 60;
  for (long i = 0; i < qps; ++i)
    while (done[i] < posted[i] - posted[i] % signal_each) {
      poll_all();
      require(time(NULL) < deadline, "no completion");
    }
  for (long i = 0; i < qps; ++i)
    require(!ibv_destroy_qp(senders[i]) && !ibv_destroy_qp(receivers[i]), "cannot destroy a QP");
  ibv_dereg_mr(mr);
  ibv_dereg_mr(remote);
  close_node(&peers);
  close_node(&node);
  printf("posted %ld\n", total);
  return 0;
}
