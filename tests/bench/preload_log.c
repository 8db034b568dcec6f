// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// What bench ring compares with: the way of tools that are preloaded into the job. ibv_post_send and
// ibv_poll_cq are inline calls through the context, so the wrapper hooks ibv_open_device and puts
// itself in their place. Each work request and each completion is a record of 64 bytes with its
// time, gathered in memory and written to $PRELOAD_LOG when 1 MiB is full, without compression or
// matching: about the least that such a tool can do. The file goes round at 64 MiB.
#include <dlfcn.h>
#include <fcntl.h>
#include <infiniband/verbs.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

struct entry {
  uint64_t time_ns, wr_id, local_addr, remote_addr;
  uint32_t bytes, qp_num, lkey, rkey;
  uint32_t status, vendor_err;
  uint16_t opcode, flags;
  uint32_t is_completion;
};
_Static_assert(sizeof(struct entry) == 64, "one cache line");

enum { kEntries = (1 << 20) / sizeof(struct entry) };

static int (*real_post)(struct ibv_qp*, struct ibv_send_wr*, struct ibv_send_wr**);
static int (*real_poll)(struct ibv_cq*, int, struct ibv_wc*);
static int log_fd = -1;
static __thread struct entry* entries;
static __thread uint32_t used;

static void flush(void) {
  static off_t at;
  if (pwrite(log_fd, entries, used * sizeof *entries, at) < 0) abort();
  at = (at + (1 << 20)) % (64 << 20);
  used = 0;
}

static struct entry* next_entry(void) {
  if (!entries) entries = malloc(kEntries * sizeof *entries);
  if (!entries) abort();
  if (used == kEntries) flush();
  return &entries[used++];
}

static uint64_t now_ns(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

static int post(struct ibv_qp* qp, struct ibv_send_wr* first, struct ibv_send_wr** bad) {
  const uint64_t time_ns = now_ns();
  const int result = real_post(qp, first, bad);
  for (struct ibv_send_wr* wr = first; wr && (!result || wr != *bad); wr = wr->next) {
    struct entry* to = next_entry();
    *to = (struct entry){.time_ns = time_ns,
                         .wr_id = wr->wr_id,
                         .remote_addr = wr->wr.rdma.remote_addr,
                         .rkey = wr->wr.rdma.rkey,
                         .qp_num = qp->qp_num,
                         .opcode = (uint16_t)wr->opcode,
                         .flags = (uint16_t)wr->send_flags};
    for (int i = 0; i < wr->num_sge; ++i) to->bytes += wr->sg_list[i].length;
    if (wr->num_sge > 0) {
      to->local_addr = wr->sg_list[0].addr;
      to->lkey = wr->sg_list[0].lkey;
    }
  }
  return result;
}

static int poll(struct ibv_cq* cq, int count, struct ibv_wc* wc) {
  const int got = real_poll(cq, count, wc);
  if (got <= 0) return got;
  const uint64_t time_ns = now_ns();
  for (int i = 0; i < got; ++i)
    *next_entry() = (struct entry){.time_ns = time_ns,
                                   .wr_id = wc[i].wr_id,
                                   .bytes = wc[i].byte_len,
                                   .qp_num = wc[i].qp_num,
                                   .status = wc[i].status,
                                   .vendor_err = wc[i].vendor_err,
                                   .opcode = (uint16_t)wc[i].opcode,
                                   .is_completion = 1};
  return got;
}

__attribute__((visibility("default"))) struct ibv_context* ibv_open_device(struct ibv_device* device) {
  struct ibv_context* (*real)(struct ibv_device*) = dlvsym(RTLD_NEXT, "ibv_open_device", "IBVERBS_1.1");
  struct ibv_context* context = real ? real(device) : NULL;
  if (!context) return NULL;
  if (log_fd < 0) log_fd = open(getenv("PRELOAD_LOG"), O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
  if (log_fd < 0) abort();
  real_post = context->ops.post_send;
  real_poll = context->ops.poll_cq;
  context->ops.post_send = post;
  context->ops.poll_cq = poll;
  return context;
}
