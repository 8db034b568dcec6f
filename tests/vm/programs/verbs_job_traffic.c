// verbs_job's work requests and completions.
#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "verbs_job.h"

enum { MAX_LIST = 64, SEND_WINDOW = 256, MAX_ENTRIES = 8, WRONG_KEY = 0x5a5a5a };

bool arrives_at_receive(enum ibv_wr_opcode opcode) {
  return opcode == IBV_WR_SEND || opcode == IBV_WR_SEND_WITH_IMM ||
         opcode == IBV_WR_RDMA_WRITE_WITH_IMM;
}

static bool is_atomic(enum ibv_wr_opcode opcode) {
  return opcode == IBV_WR_ATOMIC_FETCH_AND_ADD || opcode == IBV_WR_ATOMIC_CMP_AND_SWP;
}

void post_receives(struct job* job, struct link* link, int count) {
  struct ibv_sge sge = {(uintptr_t)job->buffer, (uint32_t)job->options.bytes, job->mr->lkey};
  for (int i = 0; i < count; ++i) {
    struct ibv_recv_wr wr = {.wr_id = (uint64_t)(1000000 + link->receives++), .sg_list = &sge, .num_sge = 1};
    struct ibv_recv_wr* bad;
    const int failed = job->srq ? ibv_post_srq_recv(job->srq, &wr, &bad)
                                : ibv_post_recv(link->qp, &wr, &bad);
    if (failed) die("ibv_post_recv");
  }
}

// The bytes of one work request spread over its scatter/gather entries.
static void fill_entries(const struct job* job, struct ibv_sge* sge) {
  const struct options* o = &job->options;
  const uint32_t part = (uint32_t)(o->bytes / o->entries);
  for (int i = 0; i < o->entries; ++i)
    sge[i] = (struct ibv_sge){(uintptr_t)job->buffer + part * (uint32_t)i,
                              i + 1 < o->entries ? part : (uint32_t)o->bytes - part * (uint32_t)i,
                              job->mr->lkey};
}

static bool is_signaled(const struct options* o, int index) {
  return (index + 1) % o->signal_every == 0 && index < o->count - o->unsignaled_tail;
}

static uint32_t key_of(const struct job* job, const struct link* link, int index) {
  return index == job->options.bad_rkey_at ? WRONG_KEY : link->theirs.rkey;
}

static unsigned flags_of(const struct job* job, int index) {
  const struct options* o = &job->options;
  return (is_signaled(o, index) || job->first_error ? IBV_SEND_SIGNALED : 0) |
         (o->use_inline ? IBV_SEND_INLINE : 0);
}

static int post_old(struct job* job, struct link* link, int count) {
  const struct options* o = &job->options;
  struct ibv_sge sge[MAX_ENTRIES];
  struct ibv_send_wr wr[MAX_LIST] = {0}, *bad;
  fill_entries(job, sge);
  for (int i = 0; i < count; ++i) {
    const int index = link->posted + i;
    wr[i].wr_id = (uint64_t)index;
    wr[i].next = i + 1 < count ? &wr[i + 1] : NULL;
    wr[i].sg_list = sge;
    wr[i].num_sge = o->entries;
    wr[i].opcode = o->opcode;
    wr[i].send_flags = flags_of(job, index);
    wr[i].imm_data = htonl((uint32_t)index);
    if (is_atomic(o->opcode)) {
      wr[i].wr.atomic.remote_addr = link->theirs.addr;
      wr[i].wr.atomic.compare_add = 1;
      wr[i].wr.atomic.swap = 2;
      wr[i].wr.atomic.rkey = key_of(job, link, index);
    } else {
      wr[i].wr.rdma.remote_addr = link->theirs.addr;
      wr[i].wr.rdma.rkey = key_of(job, link, index);
    }
  }
  return ibv_post_send(link->qp, wr, &bad);
}

static void build(struct job* job, struct link* link, int index) {
  struct ibv_qp_ex* ex = link->ex;
  const uint32_t key = key_of(job, link, index), imm = htonl((uint32_t)index);
  const uint64_t addr = link->theirs.addr;
  ex->wr_id = (uint64_t)index;
  ex->wr_flags = flags_of(job, index);
  switch (job->options.opcode) {
    case IBV_WR_SEND: ibv_wr_send(ex); break;
    case IBV_WR_SEND_WITH_IMM: ibv_wr_send_imm(ex, imm); break;
    case IBV_WR_RDMA_WRITE: ibv_wr_rdma_write(ex, key, addr); break;
    case IBV_WR_RDMA_WRITE_WITH_IMM: ibv_wr_rdma_write_imm(ex, key, addr, imm); break;
    case IBV_WR_RDMA_READ: ibv_wr_rdma_read(ex, key, addr); break;
    case IBV_WR_ATOMIC_FETCH_AND_ADD: ibv_wr_atomic_fetch_add(ex, key, addr, 1); break;
    case IBV_WR_ATOMIC_CMP_AND_SWP: ibv_wr_atomic_cmp_swp(ex, key, addr, 1, 2); break;
    default: abort();
  }
}

static int post_new(struct job* job, struct link* link, int count) {
  const struct options* o = &job->options;
  struct ibv_sge sge[MAX_ENTRIES];
  fill_entries(job, sge);
  if (o->abort_batch && link->posted == 0) {
    ibv_wr_start(link->ex);
    build(job, link, 0);
    ibv_wr_set_sge(link->ex, job->mr->lkey, (uintptr_t)job->buffer, (uint32_t)o->bytes);
    ibv_wr_abort(link->ex);
  }
  ibv_wr_start(link->ex);
  for (int i = 0; i < count; ++i) {
    build(job, link, link->posted + i);
    if (o->use_inline)
      ibv_wr_set_inline_data(link->ex, job->buffer, (size_t)o->bytes);
    else if (o->entries == 1)
      ibv_wr_set_sge(link->ex, sge[0].lkey, sge[0].addr, sge[0].length);
    else
      ibv_wr_set_sge_list(link->ex, (size_t)o->entries, sge);
  }
  return ibv_wr_complete(link->ex);
}

// Posts one list once the send queue has room for it, so that no post is refused.
void post_sends(struct job* job, struct link* link, int count) {
  const struct options* o = &job->options;
  while (link->posted + count - link->completed > SEND_WINDOW && !job->first_error) poll_sends(job);
  const int failed = o->new_api ? post_new(job, link, count) : post_old(job, link, count);
  if (failed) {
    fprintf(stderr, "verbs_job: post: %s\n", strerror(failed));
    exit(1);
  }
  link->posted += count;
}

static void complete(struct job* job, const struct ibv_wc* wc) {
  for (int i = 0; i < job->options.queue_pairs; ++i)
    if (job->links[i].qp->qp_num == wc->qp_num) job->links[i].completed = (int)wc->wr_id + 1;
}

// One more entry than the QP was made for: the provider has to refuse it.
void post_refused(struct job* job, struct link* link) {
  struct ibv_sge sge[64];
  for (int i = 0; i < 64; ++i) sge[i] = (struct ibv_sge){(uintptr_t)job->buffer, 1, job->mr->lkey};
  struct ibv_send_wr wr = {.wr_id = 999, .sg_list = sge, .num_sge = 64, .opcode = IBV_WR_RDMA_WRITE,
                           .send_flags = IBV_SEND_SIGNALED}, *bad;
  wr.wr.rdma.remote_addr = link->theirs.addr;
  wr.wr.rdma.rkey = link->theirs.rkey;
  printf("refused %s\n", ibv_post_send(link->qp, &wr, &bad) ? "yes" : "no");
}

void poll_sends(struct job* job) {
  struct ibv_wc wc[32];
  const int count = ibv_poll_cq(job->send_cq, 32, wc);
  if (count < 0) die("ibv_poll_cq");
  for (int i = 0; i < count; ++i) {
    complete(job, &wc[i]);
    if (wc[i].status == IBV_WC_SUCCESS)
      ++job->succeeded;
    else if (wc[i].status == IBV_WC_WR_FLUSH_ERR)
      ++job->flushed;
    else if (!job->first_error)
      job->first_error = (int)wc[i].status;
  }
}

void poll_receives(struct job* job) {
  struct ibv_wc wc[32];
  const int count = ibv_poll_cq(job->recv_cq, 32, wc);
  if (count < 0) die("ibv_poll_cq");
  for (int i = 0; i < count; ++i) {
    if (wc[i].status != IBV_WC_SUCCESS) {
      fprintf(stderr, "verbs_job: receive: %s\n", ibv_wc_status_str(wc[i].status));
      exit(3);
    }
    ++job->arrived;
  }
}
