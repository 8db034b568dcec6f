// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Failures on request, each as the standard has it: first cause, flushes, states, recovery.
//
//     verbs_errors DEVICE CASE        prints "expect SYNDROME COUNT" lines: the CQEs the device
//     must have written
#include <sys/stat.h>
#include <unistd.h>

#include "verbs_common.h"

enum { kBuffer = 65536, kDepth = 32 };
// MLX5_CQE_SYNDROME_*
enum {
  kLength = 0x01,
  kProtection = 0x04,
  kFlush = 0x05,
  kInvalid = 0x12,
  kAccess = 0x13,
  kRetry = 0x15,
  kRnr = 0x16
};

static struct node node;
static struct ibv_qp *a, *b;
static uint8_t* memory;
static struct ibv_mr* mr;

static void expect(int syndrome, int count) {
  printf("expect 0x%x %d\n", syndrome, count);
}

static struct ibv_send_wr write_wr(uint64_t id, struct ibv_sge* sge, uint32_t rkey, uint64_t to) {
  struct ibv_send_wr wr = {.wr_id = id,
                           .sg_list = sge,
                           .num_sge = 1,
                           .opcode = IBV_WR_RDMA_WRITE,
                           .send_flags = IBV_SEND_SIGNALED};
  wr.wr.rdma.remote_addr = to;
  wr.wr.rdma.rkey = rkey;
  return wr;
}

static void post(struct ibv_qp* qp, struct ibv_send_wr wr) {
  struct ibv_send_wr* bad;
  require(!ibv_post_send(qp, &wr, &bad), "cannot post");
}

static void post_receives(struct ibv_qp* qp, int count, uint32_t length) {
  struct ibv_sge sge = {(uintptr_t)memory, length, mr->lkey};
  struct ibv_recv_wr wr = {.wr_id = 7000, .sg_list = &sge, .num_sge = 1}, *bad;
  for (int i = 0; i < count; ++i) require(!ibv_post_recv(qp, &wr, &bad), "cannot post a receive");
}

static void expect_status(struct ibv_wc* wc, int count, uint64_t id, enum ibv_wc_status status) {
  for (int i = 0; i < count; ++i) {
    if (wc[i].wr_id != id) continue;
    require(wc[i].status == status, "request %lu: status %s instead of %s", (unsigned long)id,
            ibv_wc_status_str(wc[i].status), ibv_wc_status_str(status));
    return;
  }
  require(0, "no completion of request %lu", (unsigned long)id);
}

static void expect_state(struct ibv_qp* qp, enum ibv_qp_state state) {
  struct ibv_qp_attr attr = {0};
  struct ibv_qp_init_attr init;
  require(!ibv_query_qp(qp, &attr, IBV_QP_STATE, &init), "cannot query a QP");
  require(attr.qp_state == state, "state %d instead of %d", attr.qp_state, state);
}

// A good request, a bad one, two behind it that are flushed; the responder's receives are flushed
// too.
static void fail_in_the_middle(struct ibv_send_wr bad, enum ibv_wc_status status, int receives,
                               int responder_fails) {
  struct ibv_sge sge = {(uintptr_t)memory, 64, mr->lkey};
  struct ibv_wc wc[kDepth];
  post(a, write_wr(1, &sge, mr->rkey, (uintptr_t)memory + 4096));
  bad.wr_id = 2;
  post(a, bad);
  post(a, write_wr(3, &sge, mr->rkey, (uintptr_t)memory + 4096));
  post(a, write_wr(4, &sge, mr->rkey, (uintptr_t)memory + 4096));
  poll_exactly(node.cq, 4 + receives, wc);
  expect_status(wc, 4 + receives, 1, IBV_WC_SUCCESS);
  expect_status(wc, 4 + receives, 2, status);
  expect_status(wc, 4 + receives, 3, IBV_WC_WR_FLUSH_ERR);
  expect_status(wc, 4 + receives, 4, IBV_WC_WR_FLUSH_ERR);
  expect_state(a, IBV_QPS_ERR);
  if (responder_fails) expect_state(b, IBV_QPS_ERR);
}

static void case_access(void) {
  struct ibv_sge sge = {(uintptr_t)memory, 64, mr->lkey};
  post_receives(b, 3, 64);
  fail_in_the_middle(write_wr(0, &sge, mr->rkey ^ 0x100, (uintptr_t)memory), IBV_WC_REM_ACCESS_ERR,
                     3, 1);
  expect(kAccess, 1);
  expect(kFlush, 5);
}

static void case_bounds(void) {
  struct ibv_sge sge = {(uintptr_t)memory, 64, mr->lkey};
  fail_in_the_middle(write_wr(0, &sge, mr->rkey, (uintptr_t)memory + kBuffer - 63),
                     IBV_WC_REM_ACCESS_ERR, 0, 1);
  expect(kAccess, 1);
  expect(kFlush, 2);
}

static void case_protection(void) {
  struct ibv_sge sge = {(uintptr_t)memory + kBuffer - 10, 64, mr->lkey};
  fail_in_the_middle(write_wr(0, &sge, mr->rkey, (uintptr_t)memory), IBV_WC_LOC_PROT_ERR, 0, 0);
  expect(kProtection, 1);
  expect(kFlush, 2);
}

static void case_length(void) {
  struct ibv_sge sge = {(uintptr_t)memory, 64, mr->lkey};
  struct ibv_send_wr wr = {
      .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED};
  post_receives(b, 1, 63);
  fail_in_the_middle(wr, IBV_WC_REM_INV_REQ_ERR, 1, 1);
  expect(kInvalid, 1);
  expect(kLength, 1);
  expect(kFlush, 2);
}

static void case_rnr(void) {
  struct ibv_sge sge = {(uintptr_t)memory, 64, mr->lkey};
  struct ibv_send_wr wr = {
      .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED};
  fail_in_the_middle(wr, IBV_WC_RNR_RETRY_EXC_ERR, 0, 0);
  expect(kRnr, 1);
  expect(kFlush, 2);
}

// The peer forgets the connection.
static void case_retry(void) {
  struct ibv_sge sge = {(uintptr_t)memory, 64, mr->lkey};
  struct ibv_wc wc[kDepth];
  modify_state(b, IBV_QPS_RESET);
  for (int i = 1; i <= 3; ++i) post(a, write_wr(i, &sge, mr->rkey, (uintptr_t)memory + 4096));
  poll_exactly(node.cq, 3, wc);
  expect_status(wc, 3, 1, IBV_WC_RETRY_EXC_ERR);
  expect_status(wc, 3, 2, IBV_WC_WR_FLUSH_ERR);
  expect_status(wc, 3, 3, IBV_WC_WR_FLUSH_ERR);
  expect(kRetry, 1);
  expect(kFlush, 2);
}

// A receive that comes late: the requester tries again until it is there.
static void case_rnr_recovers(void) {
  struct ibv_sge sge = {(uintptr_t)memory, 64, mr->lkey};
  struct ibv_send_wr wr = {.wr_id = 1,
                           .sg_list = &sge,
                           .num_sge = 1,
                           .opcode = IBV_WR_SEND,
                           .send_flags = IBV_SEND_SIGNALED};
  struct ibv_wc wc[kDepth];
  for (int i = 0; i < 3; ++i) post(a, wr);
  const struct timespec pause = {0, 50000000};
  nanosleep(&pause, NULL);
  require(poll_some(node.cq, 1, wc) == 0, "a send completed without a receive");
  post_receives(b, 3, 64);
  poll_exactly(node.cq, 6, wc);
  for (int i = 0; i < 6; ++i) require(wc[i].status == IBV_WC_SUCCESS, "status %d", wc[i].status);
}

// ERR by the application, then RESET and a new life of the same queue pairs, three times over.
static void case_reset(void) {
  struct ibv_sge sge = {(uintptr_t)memory, 64, mr->lkey};
  struct ibv_wc wc[kDepth];
  for (int life = 0; life < 3; ++life) {
    if (life) connect_pair(a, &node, b, &node, kPatient);
    for (int i = 0; i < 10; ++i) post(a, write_wr(i, &sge, mr->rkey, (uintptr_t)memory + 4096));
    poll_exactly(node.cq, 10, wc);
    modify_state(a, IBV_QPS_ERR);
    post(a, write_wr(100, &sge, mr->rkey, (uintptr_t)memory + 4096));
    poll_exactly(node.cq, 1, wc);
    expect_status(wc, 1, 100, IBV_WC_WR_FLUSH_ERR);
    modify_state(a, IBV_QPS_RESET);
    modify_state(b, IBV_QPS_RESET);
  }
  expect(kFlush, 3);
}

// What is posted while the send queue is drained waits for RTS.
static void case_sqd(void) {
  struct ibv_sge sge = {(uintptr_t)memory, 64, mr->lkey};
  struct ibv_wc wc[kDepth];
  post(a, write_wr(1, &sge, mr->rkey, (uintptr_t)memory + 4096));
  poll_exactly(node.cq, 1, wc);
  modify_state(a, IBV_QPS_SQD);
  post(a, write_wr(2, &sge, mr->rkey, (uintptr_t)memory + 4096));
  const struct timespec pause = {0, 50000000};
  nanosleep(&pause, NULL);
  require(poll_some(node.cq, 1, wc) == 0, "a drained queue went on");
  modify_state(a, IBV_QPS_RTS);
  poll_exactly(node.cq, 1, wc);
  expect_status(wc, 1, 2, IBV_WC_SUCCESS);
}

// Completions that wait in the old ring are found in the new one, before those that follow.
static void case_resize(void) {
  struct ibv_sge sge = {(uintptr_t)memory, 64, mr->lkey};
  struct ibv_wc wc[kDepth];
  for (uint64_t round = 0; round < 3; ++round) {
    for (uint64_t i = 0; i < 5; ++i)
      post(a, write_wr(10 * round + i, &sge, mr->rkey, (uintptr_t)memory + 4096));
    require(!ibv_resize_cq(node.cq, round % 2 ? 600 : 1500), "cannot resize the CQ");
    for (uint64_t i = 5; i < 10; ++i)
      post(a, write_wr(10 * round + i, &sge, mr->rkey, (uintptr_t)memory + 4096));
    poll_exactly(node.cq, 10, wc);
    for (uint64_t i = 0; i < 10; ++i)
      require(wc[i].wr_id == 10 * round + i && wc[i].status == IBV_WC_SUCCESS,
              "completion %lu is of request %lu, status %d", (unsigned long)i,
              (unsigned long)wc[i].wr_id, wc[i].status);
  }
}

static void wait_for_port(enum ibv_port_state state) {
  const time_t deadline = time(NULL) + 60;
  struct ibv_port_attr port;
  do {
    require(!ibv_query_port(node.context, 1, &port), "cannot query the port");
    require(time(NULL) < deadline, "the port did not go to state %d", state);
    const struct timespec pause = {0, 5000000};
    nanosleep(&pause, NULL);
  } while (port.state != state);
}

// The link goes down under a connected queue pair, and comes back for its next life.
static void case_link_down(void) {
  char path[512];
  snprintf(path, sizeof path, "%s/link_down", getenv("SIGMA_CONNECTX_DIR"));
  require(!mkdir(path, 0700), "cannot make %s", path);
  strcat(path, "/");
  strcat(path, ibv_get_device_name(node.context->device));
  FILE* file = fopen(path, "w");
  require(file && !fclose(file), "cannot make %s", path);
  wait_for_port(IBV_PORT_DOWN);
  struct ibv_sge sge = {(uintptr_t)memory, 64, mr->lkey};
  struct ibv_wc wc[kDepth];
  for (int i = 1; i <= 2; ++i) post(a, write_wr(i, &sge, mr->rkey, (uintptr_t)memory + 4096));
  poll_exactly(node.cq, 2, wc);
  expect_status(wc, 2, 1, IBV_WC_RETRY_EXC_ERR);
  expect_status(wc, 2, 2, IBV_WC_WR_FLUSH_ERR);
  struct ibv_async_event event;
  require(!ibv_get_async_event(node.context, &event) && event.event_type == IBV_EVENT_PORT_ERR,
          "no event");
  ibv_ack_async_event(&event);
  require(!unlink(path), "cannot remove %s", path);
  wait_for_port(IBV_PORT_ACTIVE);
  modify_state(a, IBV_QPS_RESET);
  modify_state(b, IBV_QPS_RESET);
  connect_pair(a, &node, b, &node, kPatient);
  post(a, write_wr(3, &sge, mr->rkey, (uintptr_t)memory + 4096));
  poll_exactly(node.cq, 1, wc);
  expect_status(wc, 1, 3, IBV_WC_SUCCESS);
  expect(kRetry, 1);
  expect(kFlush, 1);
}

static const struct {
  const char* name;
  void (*run)(void);
  struct path_options options;
} kCases[] = {
    {"access", case_access, {14, 7, 7, 1}},
    {"bounds", case_bounds, {14, 7, 7, 1}},
    {"protection", case_protection, {14, 7, 7, 1}},
    {"length", case_length, {14, 7, 7, 1}},
    {"rnr", case_rnr, {14, 7, 2, 1}},
    {"retry", case_retry, {10, 2, 7, 1}},
    {"rnr_recovers", case_rnr_recovers, {14, 7, 7, 1}},
    {"reset", case_reset, {14, 7, 7, 1}},
    {"sqd", case_sqd, {14, 7, 7, 1}},
    {"resize", case_resize, {14, 7, 7, 1}},
    {"link_down", case_link_down, {10, 2, 7, 1}},
};

int main(int argc, char** argv) {
  require(argc == 3, "usage: verbs_errors DEVICE CASE");
  node = open_node(argv[1], 256);
  memory = calloc(1, kBuffer);
  mr = reg(&node, memory, kBuffer);
  a = create_rc(&node, NULL, kDepth, 1, 0);
  b = create_rc(&node, NULL, kDepth, 1, 0);
  int found = 0;
  for (unsigned i = 0; i < sizeof kCases / sizeof *kCases; ++i) {
    if (strcmp(kCases[i].name, argv[2])) continue;
    found = 1;
    connect_pair(a, &node, b, &node, kCases[i].options);
    kCases[i].run();
  }
  require(found, "no case %s", argv[2]);
  ibv_destroy_qp(a);
  ibv_destroy_qp(b);
  ibv_dereg_mr(mr);
  close_node(&node);
  printf("ok\n");
  return 0;
}
