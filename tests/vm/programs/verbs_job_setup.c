// verbs_job's options, its TCP exchange, and the life of its verbs objects.
#include <arpa/inet.h>
#include <errno.h>
#include <getopt.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "verbs_job.h"

static const struct {
  const char* name;
  enum ibv_wr_opcode opcode;
} kOpcodes[] = {
    {"send", IBV_WR_SEND},
    {"send_with_imm", IBV_WR_SEND_WITH_IMM},
    {"rdma_write", IBV_WR_RDMA_WRITE},
    {"rdma_write_with_imm", IBV_WR_RDMA_WRITE_WITH_IMM},
    {"rdma_read", IBV_WR_RDMA_READ},
    {"atomic_fetch_and_add", IBV_WR_ATOMIC_FETCH_AND_ADD},
    {"atomic_cmp_and_swp", IBV_WR_ATOMIC_CMP_AND_SWP},
};

// Every numeric option, once: name and where its value goes.
#define NUMBER_OPTIONS(ROW)                                                                  \
  ROW(port) ROW(gid_index) ROW(count) ROW(bytes) ROW(entries) ROW(list) ROW(signal_every)    \
  ROW(unsignaled_tail) ROW(resets) ROW(bad_rkey_at) ROW(after_error) ROW(queue_pairs)        \
  ROW(timeout) ROW(retries) ROW(receives) ROW(pause_us)
#define FLAG_OPTIONS(ROW) ROW(new_api) ROW(use_inline) ROW(use_srq) ROW(refuse) ROW(abort_batch)

static enum ibv_wr_opcode parse_opcode(const char* name) {
  for (size_t i = 0; i < sizeof kOpcodes / sizeof kOpcodes[0]; ++i)
    if (strcmp(kOpcodes[i].name, name) == 0) return kOpcodes[i].opcode;
  fprintf(stderr, "verbs_job: no such opcode: %s\n", name);
  exit(2);
}

static bool set_option(struct options* o, const char* name, const char* value) {
#define NUMBER_ROW(field) \
  if (strcmp(name, #field) == 0) return o->field = atoi(value), true;
#define FLAG_ROW(field) \
  if (strcmp(name, #field) == 0) return o->field = atoi(value) != 0, true;
  NUMBER_OPTIONS(NUMBER_ROW)
  FLAG_OPTIONS(FLAG_ROW)
  if (strcmp(name, "device") == 0) return o->device = value, true;
  if (strcmp(name, "stages") == 0) return o->stages = value, true;
  if (strcmp(name, "op") == 0) return o->opcode = parse_opcode(value), true;
  return false;
}

// Options are NAME=VALUE; a word without `=` is the server's address.
struct options parse_options(int argc, char** argv) {
  struct options o = {.device = "rxe0", .port = 18600, .gid_index = 1, .opcode = IBV_WR_RDMA_WRITE,
                      .count = 100, .bytes = 64, .entries = 1, .list = 1, .signal_every = 1,
                      .bad_rkey_at = -1, .queue_pairs = 1, .timeout = 14, .retries = 7,
                      .receives = -1};
  for (int i = 1; i < argc; ++i) {
    char* value = strchr(argv[i], '=');
    if (!value) {
      o.host = argv[i];
      continue;
    }
    *value++ = '\0';
    if (!set_option(&o, argv[i], value)) {
      fprintf(stderr, "verbs_job: no such option: %s\n", argv[i]);
      exit(2);
    }
  }
  return o;
}

void connect_tcp(struct job* job) {
  const struct options* o = &job->options;
  struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)o->port),
                                .sin_addr.s_addr = o->host ? inet_addr(o->host) : INADDR_ANY};
  const int on = 1;
  if (!o->host) {
    const int listener = socket(AF_INET, SOCK_STREAM, 0);
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (bind(listener, (struct sockaddr*)&address, sizeof address) || listen(listener, 1)) die("listen");
    puts("listening");
    job->tcp = accept(listener, NULL, NULL);
    if (job->tcp < 0) die("accept");
    close(listener);
    return;
  }
  for (int i = 0; i < 6000; ++i) {  // the server may be on its way: a minute, then it is an error
    job->tcp = socket(AF_INET, SOCK_STREAM, 0);
    if (connect(job->tcp, (struct sockaddr*)&address, sizeof address) == 0) return;
    close(job->tcp);
    usleep(10000);
  }
  die("connect");
}

void exchange(struct job* job, const void* mine, void* theirs, size_t bytes) {
  if (write(job->tcp, mine, bytes) != (ssize_t)bytes) die("write");
  for (size_t got = 0; got < bytes;) {
    const ssize_t n = read(job->tcp, (char*)theirs + got, bytes - got);
    if (n <= 0) die("read");
    got += (size_t)n;
  }
}

void barrier(struct job* job) {
  char mine = 'b', theirs;
  exchange(job, &mine, &theirs, 1);
}

// The end, for a peer that may have been killed: it is waited for, and nothing is asked of it.
void farewell(struct job* job) {
  char byte = 'e';
  if (write(job->tcp, &byte, 1) == 1 && read(job->tcp, &byte, 1) == 1) close(job->tcp);
}

static struct ibv_context* open_device(const char* name) {
  struct ibv_device** list = ibv_get_device_list(NULL);
  for (int i = 0; list && list[i]; ++i)
    if (strcmp(ibv_get_device_name(list[i]), name) == 0) return ibv_open_device(list[i]);
  errno = ENODEV;
  return NULL;
}

static struct ibv_qp* create_qp(struct job* job) {
  const struct options* o = &job->options;
  struct ibv_qp_init_attr_ex attr = {
      .send_cq = job->send_cq, .recv_cq = job->recv_cq, .srq = job->srq, .qp_type = IBV_QPT_RC,
      .cap = {.max_send_wr = 512, .max_recv_wr = job->srq ? 0 : 2048, .max_send_sge = 8,
              .max_recv_sge = job->srq ? 0 : 1, .max_inline_data = 256},
      .pd = job->pd, .comp_mask = IBV_QP_INIT_ATTR_PD};
  if (o->new_api) {
    attr.comp_mask |= IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
    attr.send_ops_flags = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM |
                          IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM |
                          IBV_QP_EX_WITH_RDMA_READ | IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP |
                          IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD;
  }
  return ibv_create_qp_ex(job->context, &attr);
}

void open_objects(struct job* job) {
  const struct options* o = &job->options;
  const int access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
                     IBV_ACCESS_REMOTE_ATOMIC;
  if (!(job->context = open_device(o->device))) die(o->device);
  if (!(job->pd = ibv_alloc_pd(job->context))) die("ibv_alloc_pd");
  job->buffer_bytes = (size_t)o->bytes < 4096 ? 4096 : (size_t)o->bytes;
  job->buffer = aligned_alloc(4096, (job->buffer_bytes + 4095) / 4096 * 4096);
  for (size_t i = 0; i < job->buffer_bytes; ++i) job->buffer[i] = (unsigned char)(o->host ? i : 0);
  if (!(job->mr = ibv_reg_mr(job->pd, job->buffer, job->buffer_bytes, access))) die("ibv_reg_mr");
  if (!(job->send_cq = ibv_create_cq(job->context, 4096, NULL, NULL, 0))) die("ibv_create_cq");
  if (!(job->recv_cq = ibv_create_cq(job->context, 4096, NULL, NULL, 0))) die("ibv_create_cq");
  if (o->use_srq) {
    struct ibv_srq_init_attr attr = {.attr = {.max_wr = 2048, .max_sge = 1}};
    if (!(job->srq = ibv_create_srq(job->pd, &attr))) die("ibv_create_srq");
  }
  job->links = calloc((size_t)o->queue_pairs, sizeof *job->links);
  for (int i = 0; i < o->queue_pairs; ++i) {
    struct link* link = &job->links[i];
    if (!(link->qp = create_qp(job))) die("ibv_create_qp_ex");
    link->ex = o->new_api ? ibv_qp_to_qp_ex(link->qp) : NULL;
  }
}

static void modify(struct ibv_qp* qp, struct ibv_qp_attr attr, int mask) {
  if (ibv_modify_qp(qp, &attr, mask | IBV_QP_STATE)) die("ibv_modify_qp");
}

static void to_ready(const struct job* job, struct link* link) {
  const struct options* o = &job->options;
  modify(link->qp,
         (struct ibv_qp_attr){.qp_state = IBV_QPS_INIT, .port_num = 1,
                              .qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
                                                 IBV_ACCESS_REMOTE_ATOMIC},
         IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
  modify(link->qp,
         (struct ibv_qp_attr){
             .qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .dest_qp_num = link->theirs.qp_num,
             .rq_psn = link->theirs.psn, .max_dest_rd_atomic = 4, .min_rnr_timer = 12,
             .ah_attr = {.is_global = 1, .port_num = 1,
                         .grh = {.dgid = link->theirs.gid, .hop_limit = 64,
                                 .sgid_index = (uint8_t)o->gid_index}}},
         IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
             IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
  modify(link->qp,
         (struct ibv_qp_attr){.qp_state = IBV_QPS_RTS, .timeout = (uint8_t)o->timeout,
                              .retry_cnt = (uint8_t)o->retries, .rnr_retry = 7,
                              .sq_psn = link->mine.psn, .max_rd_atomic = 4},
         IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
             IBV_QP_MAX_QP_RD_ATOMIC);
}

void connect_links(struct job* job) {
  for (int i = 0; i < job->options.queue_pairs; ++i) {
    struct link* link = &job->links[i];
    link->mine = (struct peer){.qp_num = link->qp->qp_num, .psn = 100, .rkey = job->mr->rkey,
                               .addr = (uintptr_t)job->buffer};
    if (ibv_query_gid(job->context, 1, job->options.gid_index, &link->mine.gid)) die("ibv_query_gid");
    exchange(job, &link->mine, &link->theirs, sizeof link->mine);
    to_ready(job, link);
  }
  barrier(job);
}

void reset_links(struct job* job) {
  barrier(job);  // both sides are through with the last life
  for (int i = 0; i < job->options.queue_pairs; ++i)
    modify(job->links[i].qp, (struct ibv_qp_attr){.qp_state = IBV_QPS_RESET}, 0);
  barrier(job);
  for (int i = 0; i < job->options.queue_pairs; ++i) to_ready(job, &job->links[i]);
  barrier(job);
}

void close_objects(struct job* job) {
  for (int i = 0; i < job->options.queue_pairs; ++i) ibv_destroy_qp(job->links[i].qp);
  if (job->srq) ibv_destroy_srq(job->srq);
  ibv_destroy_cq(job->send_cq);
  ibv_destroy_cq(job->recv_cq);
  ibv_dereg_mr(job->mr);
  ibv_dealloc_pd(job->pd);
  ibv_close_device(job->context);
}
