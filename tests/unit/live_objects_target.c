/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/*
 * A process with verbs objects in its heap, as libibverbs and a provider would leave them, that
 * says what it has. No RDMA is involved: the scan looks at memory only.
 *
 *   live_objects_target SCENARIO        (see main)
 *
 * prints one line per living object and function, then "ready", and ends when standard input does.
 */
#define _GNU_SOURCE
#include <infiniband/verbs.h>
#include <link.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define PROVIDER_FUNCTIONS(X)                                                                     \
  X(poll_cq)                                                                                      \
  X(req_notify_cq) X(post_srq_recv) X(post_send) X(post_recv) X(other) X(wr_start) X(wr_complete) \
      X(wr_abort) X(wr_rdma_write) X(wr_set_sge)
#define DECLARE(name) int provider_##name(void);
PROVIDER_FUNCTIONS(DECLARE)
#define POINTER(name) ((void*)(uintptr_t)provider_##name)

/* As libmlx5 has it: a small header in front of the verbs QP, and private state behind it. */
struct provider_qp {
  uint32_t kind, number;
  struct ibv_qp_ex qp;
  char private_state[320];
};

struct device {
  struct ibv_context* context;
  struct ibv_pd* pd;
  struct ibv_cq* cq[4];
  struct ibv_srq* srq;
  uint32_t next_handle, next_number;
};

/* Objects come from calloc, or from a pool that glibc knows nothing of (scenario "pool"). */
static char *pool, *pool_end;

static void* allocate(size_t size) {
  if (!pool) return calloc(1, size);
  char* object = pool;
  pool += (size + 15) & ~(size_t)15;
  if (pool > pool_end) abort();
  return object;
}

static void release(void* object) {
  if (!pool) free(object);
}

static struct ibv_device* new_device(const char* name, const char* node) {
  struct ibv_device* device = allocate(sizeof *device);
  snprintf(device->name, sizeof device->name, "%s", name);
  snprintf(device->dev_name, sizeof device->dev_name, "%s", node);
  snprintf(device->dev_path, sizeof device->dev_path, "/sys/class/infiniband_verbs/%s", node);
  return device;
}

static struct ibv_context* new_context(struct ibv_device* device, int cmd_fd) {
  struct verbs_context* verbs = allocate(sizeof *verbs);
  uintptr_t *word = (uintptr_t*)verbs, *end = (uintptr_t*)&verbs->sz;
  while (word < end) *word++ = (uintptr_t)POINTER(other);
  verbs->priv = allocate(64);
  verbs->_ABI_placeholder3 = 0;
  verbs->sz = sizeof *verbs;
  struct ibv_context* context = &verbs->context;
  context->device = device;
  for (void** op = (void**)&context->ops; op < (void**)(&context->ops + 1); ++op)
    *op = POINTER(other);
  *(void**)&context->ops.poll_cq = POINTER(poll_cq);
  *(void**)&context->ops.req_notify_cq = POINTER(req_notify_cq);
  *(void**)&context->ops.post_srq_recv = POINTER(post_srq_recv);
  *(void**)&context->ops.post_send = POINTER(post_send);
  *(void**)&context->ops.post_recv = POINTER(post_recv);
  context->cmd_fd = cmd_fd;
  context->async_fd = cmd_fd;
  context->abi_compat = (void*)UINTPTR_MAX;
  return context;
}

static void* new_object(struct ibv_context* context, size_t size) {
  void* object = allocate(size);
  *(struct ibv_context**)object = context;
  return object;
}

static struct device open_device(const char* name, const char* node) {
  struct device d = {.next_handle = 1, .next_number = 17};
  d.context = new_context(new_device(name, node), memfd_create("cmd", MFD_CLOEXEC));
  d.pd = new_object(d.context, sizeof *d.pd);
  d.pd->handle = d.next_handle++;
  struct ibv_comp_channel* channel = new_object(d.context, sizeof *channel);
  for (int i = 0; i < 4; ++i) {
    d.cq[i] = new_object(d.context, sizeof *d.cq[i] + 256);
    d.cq[i]->channel = i % 2 ? channel : NULL;
    d.cq[i]->handle = d.next_handle++;
    d.cq[i]->cqe = 256 << i;
  }
  d.srq = new_object(d.context, sizeof *d.srq + 64);
  d.srq->pd = d.pd;
  d.srq->handle = d.next_handle++;
  return d;
}

static struct provider_qp* new_qp(struct device* d, uint32_t number, uint32_t handle,
                                  int extended) {
  struct provider_qp* provider_qp = allocate(sizeof *provider_qp);
  struct ibv_qp* qp = &provider_qp->qp.qp_base;
  provider_qp->number = number;
  qp->pd = d->pd;
  qp->send_cq = d->cq[number % 4];
  qp->recv_cq = d->cq[(number + 1) % 4];
  qp->srq = number % 3 ? NULL : d->srq;
  qp->handle = handle;
  qp->qp_num = number;
  qp->state = IBV_QPS_RTS;
  qp->qp_type = number % 5 ? IBV_QPT_RC : IBV_QPT_UD;
  if (extended) {
    *(void**)&provider_qp->qp.wr_start = POINTER(wr_start);
    *(void**)&provider_qp->qp.wr_complete = POINTER(wr_complete);
    *(void**)&provider_qp->qp.wr_abort = POINTER(wr_abort);
    *(void**)&provider_qp->qp.wr_rdma_write = POINTER(wr_rdma_write);
    *(void**)&provider_qp->qp.wr_set_sge = POINTER(wr_set_sge);
  }
  qp->context = d->context; /* last, as in ibv_create_qp */
  return provider_qp;
}

/* As libibverbs' private struct verbs_mr: the type and the access flags follow. */
struct provider_mr {
  struct ibv_mr mr;
  uint32_t type, access;
  char private_state[16];
};

static struct ibv_mr* new_mr(struct device* d, void* addr, size_t length, uint32_t handle) {
  struct provider_mr* provider_mr = new_object(d->context, sizeof *provider_mr);
  provider_mr->access =
      IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_RELAXED_ORDERING;
  struct ibv_mr* mr = &provider_mr->mr;
  mr->pd = d->pd;
  mr->addr = addr;
  mr->length = length;
  mr->handle = handle;
  mr->lkey = handle << 8 | 0x5a;
  mr->rkey = handle << 8 | 0xa5;
  return mr;
}

static void print_device(const struct device* d) {
  printf("context %p %d %s\n", (void*)d->context, d->context->cmd_fd, d->context->device->name);
  for (int i = 0; i < 4; ++i)
    printf("cq %p %p %u %d\n", (void*)d->cq[i], (void*)d->context, d->cq[i]->handle, d->cq[i]->cqe);
  printf("srq %p %p %u\n", (void*)d->srq, (void*)d->context, d->srq->handle);
}

static void print_qp(const struct provider_qp* p, int extended) {
  const struct ibv_qp* qp = &p->qp.qp_base;
  printf("qp %p %p %p %p %p %u %u %d %d %d\n", (void*)qp, (void*)qp->context, (void*)qp->send_cq,
         (void*)qp->recv_cq, (void*)qp->srq, qp->qp_num, qp->handle, qp->qp_type, qp->state,
         extended);
}

static void print_mr(const struct ibv_mr* mr) {
  printf("mr %p %p %p %zu %u %u %u\n", (void*)mr, (void*)mr->context, mr->addr, mr->length,
         mr->handle, mr->lkey, mr->rkey);
}

/* The file offset of a function, by the program headers. */
struct lookup {
  uintptr_t address, offset;
};

static int find_segment(struct dl_phdr_info* info, size_t size, void* data) {
  struct lookup* lookup = data;
  (void)size;
  for (int i = 0; i < info->dlpi_phnum; ++i) {
    const ElfW(Phdr)* segment = &info->dlpi_phdr[i];
    uintptr_t start = info->dlpi_addr + segment->p_vaddr;
    if (segment->p_type == PT_LOAD && lookup->address >= start &&
        lookup->address < start + segment->p_memsz) {
      lookup->offset = lookup->address - start + segment->p_offset;
      return 1;
    }
  }
  return 0;
}

static void print_function(const char* name, void* address) {
  struct lookup lookup = {(uintptr_t)address, 0};
  if (dl_iterate_phdr(find_segment, &lookup))
    printf("function %s %zu\n", name, (size_t)lookup.offset);
}

enum { kQps = 200, kFreedQps = 64, kMrs = 500, kFreedMrs = 100 };
static struct provider_qp *qps[kQps], *freed_qps[kFreedQps];
static struct ibv_mr *mrs[kMrs], *freed_mrs[kFreedMrs];
static char region[kMrs][64];

/* How many of the released QPs still look alive, byte for byte: without them the test shows little.
 */
static int count_remnants(const struct device* d) {
  FILE* memory = fopen("/proc/self/mem", "rb");
  int remnants = 0;
  for (int i = 0; i < kFreedQps; ++i) {
    struct ibv_qp qp;
    fseek(memory, (long)(uintptr_t)&freed_qps[i]->qp, SEEK_SET);
    if (fread(&qp, sizeof qp, 1, memory) == 1 && qp.context == d->context && qp.pd == d->pd)
      ++remnants;
  }
  fclose(memory);
  return remnants;
}

static void build_objects(struct device* d) {
  for (int i = 0; i < kQps; ++i) qps[i] = new_qp(d, d->next_number++, d->next_handle++, i % 2);
  for (int i = 0; i < kMrs; ++i) mrs[i] = new_mr(d, region[i], sizeof region[i], d->next_handle++);
}

static void destroy_objects(struct device* d) {
  /* Handles are given again: the dead have the handles of some that live. */
  for (int i = 0; i < kFreedQps; ++i)
    freed_qps[i] = new_qp(d, d->next_number++, qps[i]->qp.qp_base.handle, i % 2);
  for (int i = 0; i < kFreedMrs; ++i) freed_mrs[i] = new_mr(d, region[i], 32, mrs[i]->handle);
  for (int i = 0; i < kFreedQps; ++i) release(freed_qps[i]);
  for (int i = 0; i < kFreedMrs; ++i) release(freed_mrs[i]);
}

static struct ibv_qp* new_decoy_qp(struct device* d) {
  static uint32_t number = 9000;
  ++number;
  return &new_qp(d, number, number, 0)->qp.qp_base;
}

/* Near misses: each is a living object but for one thing. */
static void build_decoys(struct device* d, struct device* other) {
  struct ibv_context* c;
  int fd = memfd_create("decoy", MFD_CLOEXEC);
  c = new_context(new_device("data_ops", "uverbs7"), fd);
  *(void**)&c->ops.post_send = region;
  c = new_context(new_device("closed", "uverbs7"), 1000);
  c = new_context(new_device("", "uverbs7"), fd);
  c = new_context(new_device("not_a_node", "sda1"), fd);
  c = new_context(new_device("bad_size", "uverbs7"), fd);
  ((size_t*)c)[-1] = 0x10000;
  c = new_context(new_device("no_abi_mark", "uverbs7"), fd);
  c->abi_compat = NULL;
  c = new_context(new_device("data_in_prefix", "uverbs7"), fd);
  ((uintptr_t*)c)[-5] = (uintptr_t)region;
  /* Given back: malloc's list overwrites the first words, the rest stays. */
  c = new_context(new_device("was_closed", "uverbs7"), fd);
  release((char*)c - offsetof(struct verbs_context, context));

  uint32_t n = 9500;
  new_decoy_qp(d)->pd = other->pd;
  new_decoy_qp(d)->send_cq = NULL;
  new_decoy_qp(d)->recv_cq = other->cq[0];
  new_decoy_qp(d)->srq = (struct ibv_srq*)region;
  new_decoy_qp(d)->qp_num = 1 << 24;
  new_decoy_qp(d)->qp_num = 0;
  new_decoy_qp(d)->qp_type = 7;
  new_decoy_qp(d)->state = 99;
  /* The application's copy of a QP, in a structure of its own. */
  char* copy = calloc(1, 1024);
  memcpy(copy + 256, &qps[3]->qp, sizeof qps[3]->qp);

  new_mr(d, region[0], 0, n++);
  new_mr(d, region[0], 64, n++)->pd = other->pd;
  struct ibv_mr* no_key = new_mr(d, region[0], 64, n++);
  no_key->lkey = no_key->rkey = 0;
  struct ibv_ah* ah = new_object(d->context, sizeof *ah + 64);
  ah->pd = d->pd;
  ah->handle = 77;
  memset(ah + 1, 0x5c, 64);
  struct ibv_mw* mw = new_object(d->context, sizeof *mw + 32);
  mw->pd = d->pd;
  mw->rkey = 0x1234;
  mw->handle = 78;
  mw->type = IBV_MW_TYPE_1;
  struct ibv_mr* bad_type = new_mr(d, region[0], 64, n++);
  ((struct provider_mr*)bad_type)->type = 9;
  struct ibv_mr* too_long = new_mr(d, region[0], (size_t)1 << 47, n++);
  too_long->handle = 79;
  /* Structures that applications keep. */
  void** app = calloc(1, 128);
  memcpy(app, (void*[]){d->context, d->pd, region[0], (void*)64, mrs[0], d->cq[0], d->cq[1]}, 56);
  app = calloc(1, 128);
  memcpy(app, (void*[]){d->context, d->pd, d->cq[0], d->cq[1], d->cq[2], d->cq[3], d->srq}, 56);
  memset(malloc(1 << 20), 0xff, 1 << 20);
}

/* An application allocates and frees, destroys and creates, as fast as it can. */
static atomic_int stop_churning;
enum { kChurning = 64 };
static struct provider_qp* churned_qp[kChurning];
static struct ibv_mr* churned_mr[kChurning];

static void* churn(void* argument) {
  struct device* d = argument;
  struct provider_qp** qp = churned_qp;
  struct ibv_mr** mr = churned_mr;
  void* other[kChurning] = {0};
  for (uint32_t round = 0; !atomic_load(&stop_churning); ++round) {
    uint32_t i = (round * 2654435761u) >> 26;
    if (qp[i]) free(qp[i]);
    free(other[i]);
    other[i] = malloc(1 + (round * 40503u) % 70000);
    qp[i] = new_qp(d, 0x100000 + round % 0x10000, 0x100000 + round, 0);
    free(mr[i]);
    mr[i] = new_mr(d, region[0], 64, 0x200000 + round % 0x10000);
  }
  return NULL;
}

static void print_truth(struct device* d, struct device* other) {
  print_device(d);
  print_device(other);
  for (int i = 0; i < kQps; ++i) print_qp(qps[i], i % 2);
  for (int i = 0; i < kMrs; ++i) print_mr(mrs[i]);
#define PRINT(name) print_function(#name, POINTER(name));
  PROVIDER_FUNCTIONS(PRINT)
}

int main(int argc, char** argv) {
  const char* scenario = argc > 1 ? argv[1] : "plain";
  if (!strcmp(scenario, "pool")) {
    size_t size = 8 << 20;
    pool = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    pool_end = pool + size;
  }
  if (!strcmp(scenario, "none")) {
    printf("ready\n");
    fflush(stdout);
    return getchar() == EOF ? 0 : 1;
  }
  struct device d = open_device("mlx5_0", "uverbs0"), other = open_device("mlx5_1", "uverbs1");
  /* A QP for each CQ and the SRQ of the second device: they are found through QPs. */
  struct provider_qp* others[12];
  for (int i = 0; i < 12; ++i) {
    others[i] = new_qp(&other, other.next_number, other.next_handle, 0);
    ++other.next_number;
    ++other.next_handle;
  }
  build_objects(&d);
  if (strcmp(scenario, "pool")) build_decoys(&d, &other);
  destroy_objects(&d);

  pthread_t thread;
  int churning = !strcmp(scenario, "churn");
  if (churning) pthread_create(&thread, NULL, churn, &d);
  if (!strcmp(scenario, "sparse")) {
    /* One page in 64 of 512 MiB is touched; a QP is among them. */
    size_t size = (size_t)512 << 20, page = 4096;
    char* sparse = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    madvise(sparse, size, MADV_NOHUGEPAGE);
    for (size_t at = 0; at < size; at += 64 * page) sparse[at] = 1;
    pool = sparse + size / 2, pool_end = pool + page;
    print_qp(new_qp(&d, 5000, 5000, 0), 0);
  }
  pid_t child = 0;
  int hold[2];
  if (!strcmp(scenario, "fork")) {
    if (pipe(hold)) return 1;
    child = fork();
    if (child == 0) {
      close(hold[1]);
      char byte;
      _exit(read(hold[0], &byte, 1) == 0 ? 0 : 1);
    }
    printf("child %d\n", child);
  }
  for (int i = 0; i < 12; ++i) print_qp(others[i], 0);
  print_truth(&d, &other);
  if (!pool) printf("remnants %d\n", count_remnants(&d));
  printf("ready\n");
  fflush(stdout);
  int byte = getchar();
  atomic_store(&stop_churning, 1);
  if (churning) {
    pthread_join(thread, NULL);
    for (int i = 0; i < kChurning; ++i) {
      if (!churned_qp[i]) continue;
      print_qp(churned_qp[i], 0);
      print_mr(churned_mr[i]);
    }
    printf("stopped\n");
    fflush(stdout);
  }
  while (byte != EOF) byte = getchar();
  if (child) {
    close(hold[1]);
    waitpid(child, NULL, 0);
  }
  return 0;
}
