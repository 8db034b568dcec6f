// oracle: a preloaded library that counts what a program posts and what it is told has
// completed, by sitting between the program and its provider. The table of expected counts
// is checked against it, so the table does not rest on the tracer that it tests.
//
// At exit it writes $VM_ORACLE_DIR/PID: lines "post QUEUE OPCODE COUNT SIGNALED" and
// "done QUEUE SUCCESS|ERROR COUNT". Only what the provider accepted is counted.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <infiniband/verbs.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { OPCODES = 16, STAGED = 1024, QPS = 256 };
static const char* const kOpcodeNames[OPCODES] = {
    [IBV_WR_RDMA_WRITE] = "rdma_write",
    [IBV_WR_RDMA_WRITE_WITH_IMM] = "rdma_write_with_imm",
    [IBV_WR_SEND] = "send",
    [IBV_WR_SEND_WITH_IMM] = "send_with_imm",
    [IBV_WR_RDMA_READ] = "rdma_read",
    [IBV_WR_ATOMIC_CMP_AND_SWP] = "atomic_cmp_and_swp",
    [IBV_WR_ATOMIC_FETCH_AND_ADD] = "atomic_fetch_and_add",
    [IBV_WR_LOCAL_INV] = "local_inv",
    [IBV_WR_BIND_MW] = "bind_mw",
    [IBV_WR_SEND_WITH_INV] = "send_with_inv",
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static unsigned long sent[OPCODES], signaled[OPCODES], received, received_imm;
static unsigned long done[2][2];  // [receive][error]
static struct ibv_context_ops real;  // every context of one program has the same provider here
static struct ibv_qp* (*real_create_qp_ex)(struct ibv_context*, struct ibv_qp_init_attr_ex*);

// --- struct-based posts and polls ---

static int on_post_send(struct ibv_qp* qp, struct ibv_send_wr* wr, struct ibv_send_wr** bad) {
  const int result = real.post_send(qp, wr, bad);
  pthread_mutex_lock(&lock);
  for (; wr && !(result && wr == *bad); wr = wr->next) {
    ++sent[wr->opcode % OPCODES];
    if (wr->send_flags & IBV_SEND_SIGNALED) ++signaled[wr->opcode % OPCODES];
  }
  pthread_mutex_unlock(&lock);
  return result;
}

static void count_receives(const struct ibv_recv_wr* wr, const struct ibv_recv_wr* bad) {
  pthread_mutex_lock(&lock);
  for (; wr && wr != bad; wr = wr->next) ++received;
  pthread_mutex_unlock(&lock);
}

static int on_post_recv(struct ibv_qp* qp, struct ibv_recv_wr* wr, struct ibv_recv_wr** bad) {
  const int result = real.post_recv(qp, wr, bad);
  count_receives(wr, result ? *bad : NULL);
  return result;
}

static int on_post_srq_recv(struct ibv_srq* srq, struct ibv_recv_wr* wr, struct ibv_recv_wr** bad) {
  const int result = real.post_srq_recv(srq, wr, bad);
  count_receives(wr, result ? *bad : NULL);
  return result;
}

static int on_poll_cq(struct ibv_cq* cq, int entries, struct ibv_wc* wc) {
  const int count = real.poll_cq(cq, entries, wc);
  pthread_mutex_lock(&lock);
  for (int i = 0; i < count; ++i) {
    // on an error only the status is valid; these are all counted as the send queue's
    const int error = wc[i].status != IBV_WC_SUCCESS;
    const int receive = !error && (wc[i].opcode & IBV_WC_RECV);
    ++done[receive][error];
    if (receive && wc[i].opcode == IBV_WC_RECV_RDMA_WITH_IMM) ++received_imm;
  }
  pthread_mutex_unlock(&lock);
  return count;
}

// --- the builders of ibv_wr_*: a batch counts when it is completed without an error ---

struct staged {
  struct ibv_qp_ex real;  // the provider's functions
  struct ibv_qp_ex* qp;
  int count;
  struct { int opcode; unsigned flags; } entries[STAGED];
};
static struct staged* staged[QPS];
static int staged_count;

static struct staged* find(struct ibv_qp_ex* qp) {
  for (int i = staged_count - 1; i >= 0; --i)
    if (staged[i]->qp == qp) return staged[i];
  abort();
}

static struct staged* stage(struct ibv_qp_ex* qp, int opcode) {
  struct staged* s = find(qp);
  if (s->count < STAGED) {
    s->entries[s->count].opcode = opcode;
    s->entries[s->count++].flags = qp->wr_flags;
  }
  return s;
}

static void on_start(struct ibv_qp_ex* qp) {
  find(qp)->count = 0;
  find(qp)->real.wr_start(qp);
}
static int on_complete(struct ibv_qp_ex* qp) {
  struct staged* s = find(qp);
  const int result = s->real.wr_complete(qp);
  pthread_mutex_lock(&lock);
  for (int i = 0; !result && i < s->count; ++i) {
    ++sent[s->entries[i].opcode];
    if (s->entries[i].flags & IBV_SEND_SIGNALED) ++signaled[s->entries[i].opcode];
  }
  pthread_mutex_unlock(&lock);
  return result;
}
static void on_send(struct ibv_qp_ex* qp) { stage(qp, IBV_WR_SEND)->real.wr_send(qp); }
static void on_send_imm(struct ibv_qp_ex* qp, __be32 imm) {
  stage(qp, IBV_WR_SEND_WITH_IMM)->real.wr_send_imm(qp, imm);
}
static void on_send_inv(struct ibv_qp_ex* qp, uint32_t rkey) {
  stage(qp, IBV_WR_SEND_WITH_INV)->real.wr_send_inv(qp, rkey);
}
static void on_write(struct ibv_qp_ex* qp, uint32_t rkey, uint64_t addr) {
  stage(qp, IBV_WR_RDMA_WRITE)->real.wr_rdma_write(qp, rkey, addr);
}
static void on_write_imm(struct ibv_qp_ex* qp, uint32_t rkey, uint64_t addr, __be32 imm) {
  stage(qp, IBV_WR_RDMA_WRITE_WITH_IMM)->real.wr_rdma_write_imm(qp, rkey, addr, imm);
}
static void on_read(struct ibv_qp_ex* qp, uint32_t rkey, uint64_t addr) {
  stage(qp, IBV_WR_RDMA_READ)->real.wr_rdma_read(qp, rkey, addr);
}
static void on_add(struct ibv_qp_ex* qp, uint32_t rkey, uint64_t addr, uint64_t add) {
  stage(qp, IBV_WR_ATOMIC_FETCH_AND_ADD)->real.wr_atomic_fetch_add(qp, rkey, addr, add);
}
static void on_swap(struct ibv_qp_ex* qp, uint32_t rkey, uint64_t addr, uint64_t compare,
                    uint64_t swap) {
  stage(qp, IBV_WR_ATOMIC_CMP_AND_SWP)->real.wr_atomic_cmp_swp(qp, rkey, addr, compare, swap);
}

static struct ibv_qp* on_create_qp_ex(struct ibv_context* context,
                                      struct ibv_qp_init_attr_ex* attr) {
  struct ibv_qp* qp = real_create_qp_ex(context, attr);
  if (!qp || !(attr->comp_mask & IBV_QP_INIT_ATTR_SEND_OPS_FLAGS) || staged_count == QPS) return qp;
  struct ibv_qp_ex* ex = ibv_qp_to_qp_ex(qp);
  struct staged* s = calloc(1, sizeof *s);
  s->real = *ex;
  s->qp = ex;
  staged[staged_count++] = s;
  ex->wr_start = on_start;
  ex->wr_complete = on_complete;
  if (ex->wr_send) ex->wr_send = on_send;
  if (ex->wr_send_imm) ex->wr_send_imm = on_send_imm;
  if (ex->wr_send_inv) ex->wr_send_inv = on_send_inv;
  if (ex->wr_rdma_write) ex->wr_rdma_write = on_write;
  if (ex->wr_rdma_write_imm) ex->wr_rdma_write_imm = on_write_imm;
  if (ex->wr_rdma_read) ex->wr_rdma_read = on_read;
  if (ex->wr_atomic_fetch_add) ex->wr_atomic_fetch_add = on_add;
  if (ex->wr_atomic_cmp_swp) ex->wr_atomic_cmp_swp = on_swap;
  return qp;
}

// --- getting in, and reporting ---

struct ibv_context* ibv_open_device(struct ibv_device* device) {
  // not RTLD_NEXT: a program that dlopens its verbs plug-in (UCX) has libibverbs in no global scope
  void* verbs_library = dlopen("libibverbs.so.1", RTLD_LAZY | RTLD_NOLOAD);
  __extension__ struct ibv_context* (*open_device)(struct ibv_device*) =
      (struct ibv_context * (*)(struct ibv_device*))
          dlvsym(verbs_library, "ibv_open_device", "IBVERBS_1.1");
  struct ibv_context* context = open_device(device);
  if (!context) return NULL;
  real = context->ops;
  context->ops.post_send = on_post_send;
  context->ops.post_recv = on_post_recv;
  context->ops.post_srq_recv = on_post_srq_recv;
  context->ops.poll_cq = on_poll_cq;
  struct verbs_context* verbs = verbs_get_ctx_op(context, create_qp_ex);
  if (verbs) {
    real_create_qp_ex = verbs->create_qp_ex;
    verbs->create_qp_ex = on_create_qp_ex;
  }
  return context;
}

__attribute__((destructor)) static void report(void) {
  const char* dir = getenv("VM_ORACLE_DIR");
  if (!dir || !real.post_send) return;
  char path[4096];
  snprintf(path, sizeof path, "%s/%d", dir, getpid());
  FILE* file = fopen(path, "w");
  if (!file) return;
  for (int i = 0; i < OPCODES; ++i)
    if (sent[i]) fprintf(file, "post send %s %lu %lu\n", kOpcodeNames[i], sent[i], signaled[i]);
  if (received > received_imm) fprintf(file, "post recv recv %lu 0\n", received - received_imm);
  if (received_imm) fprintf(file, "post recv recv_rdma_with_imm %lu 0\n", received_imm);
  fprintf(file, "done send success %lu\ndone recv success %lu\ndone any error %lu\n", done[0][0],
          done[1][0], done[0][1]);
  fclose(file);
}
