// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// What the verbs workloads share: a device, a completion queue, connected pairs, and checks that
// end the program. One process owns both ends of each pair.
#pragma once

#include <errno.h>
#include <infiniband/verbs.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static inline void __attribute__((format(printf, 2, 3)))
require(int good, const char* format, ...) {
  if (good) return;
  va_list arguments;
  va_start(arguments, format);
  fputs("FAILED: ", stderr);
  vfprintf(stderr, format, arguments);
  fputc('\n', stderr);
  va_end(arguments);
  exit(1);
}

struct node {
  struct ibv_context* context;
  struct ibv_pd* pd;
  struct ibv_cq* cq;
  struct ibv_port_attr port;
  int is_global;
  union ibv_gid gid;
  int gid_index;
  int signal_all;  // of the queue pairs made from now on
};

// VERBS_POLL chooses what the programs poll with: ibv_poll_cq, or the extended CQ's start_poll and
// next_poll, of which libmlx5 has one variant for each combination of these and other properties.
enum { kExtended = 1, kStamps = 2, kSingleThreaded = 4, kWallClock = 8 };
static inline unsigned poll_mode(void) {
  static const struct {
    const char* name;
    unsigned mode;
  } kModes[] = {{"extended", kExtended},
                {"stamps", kExtended | kStamps},
                {"stamps_single", kExtended | kStamps | kSingleThreaded},
                {"wall_clock", kExtended | kWallClock}};
  const char* name = getenv("VERBS_POLL");
  if (!name) return 0;
  for (size_t i = 0; i < sizeof kModes / sizeof *kModes; ++i)
    if (!strcmp(kModes[i].name, name)) return kModes[i].mode;
  require(0, "VERBS_POLL=%s", name);
  return 0;
}

static inline struct ibv_cq* make_cq(struct ibv_context* context, int entries) {
  const unsigned mode = poll_mode();
  if (!(mode & kExtended)) return ibv_create_cq(context, entries, NULL, NULL, 0);
  struct ibv_cq_init_attr_ex init = {
      .cqe = (uint32_t)entries,
      .wc_flags = IBV_WC_EX_WITH_BYTE_LEN | IBV_WC_EX_WITH_IMM | IBV_WC_EX_WITH_QP_NUM |
                  IBV_WC_EX_WITH_SRC_QP |
                  (mode & kStamps ? IBV_WC_EX_WITH_COMPLETION_TIMESTAMP : 0) |
                  (mode & kWallClock ? IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK : 0),
      .comp_mask = IBV_CQ_INIT_ATTR_MASK_FLAGS,
      .flags = mode & kSingleThreaded ? IBV_CREATE_CQ_ATTR_SINGLE_THREADED : 0};
  struct ibv_cq_ex* cq = ibv_create_cq_ex(context, &init);
  return cq ? ibv_cq_ex_to_cq(cq) : NULL;
}

// As ibv_poll_cq.
static inline int poll_some(struct ibv_cq* plain, int count, struct ibv_wc* completions) {
  if (!(poll_mode() & kExtended)) return ibv_poll_cq(plain, count, completions);
  struct ibv_cq_ex* cq = (struct ibv_cq_ex*)plain;
  struct ibv_poll_cq_attr attributes = {0};
  int got = 0, result = ibv_start_poll(cq, &attributes);
  if (result == ENOENT) return 0;
  require(!result, "start_poll: %d", result);
  for (; !result; result = got < count ? ibv_next_poll(cq) : ENOENT) {
    struct ibv_wc* wc = &completions[got++];
    *wc = (struct ibv_wc){.wr_id = cq->wr_id, .status = cq->status, .qp_num = ibv_wc_read_qp_num(cq)};
    if (wc->status != IBV_WC_SUCCESS) {
      wc->vendor_err = ibv_wc_read_vendor_err(cq);
      continue;
    }
    wc->opcode = ibv_wc_read_opcode(cq);
    wc->byte_len = ibv_wc_read_byte_len(cq);
    wc->wc_flags = ibv_wc_read_wc_flags(cq);
    wc->imm_data = ibv_wc_read_imm_data(cq);
  }
  require(result == ENOENT, "next_poll: %d", result);
  ibv_end_poll(cq);
  return got;
}

static inline struct node open_node(const char* device_name, int cq_entries) {
  struct node node = {0};
  int count;
  struct ibv_device** list = ibv_get_device_list(&count);
  require(list != NULL, "no device list");
  for (int i = 0; i < count; ++i) {
    if (!strcmp(ibv_get_device_name(list[i]), device_name)) node.context = ibv_open_device(list[i]);
  }
  ibv_free_device_list(list);
  require(node.context != NULL, "cannot open %s", device_name);
  node.pd = ibv_alloc_pd(node.context);
  node.cq = make_cq(node.context, cq_entries);
  require(node.pd && node.cq, "cannot make a PD and a CQ");
  require(!ibv_query_port(node.context, 1, &node.port), "cannot query the port");
  node.is_global = node.port.link_layer == IBV_LINK_LAYER_ETHERNET;
  node.gid_index = node.is_global ? 3 : 0;
  require(!ibv_query_gid(node.context, 1, node.gid_index, &node.gid), "cannot query the GID");
  return node;
}

static inline void close_node(struct node* node) {
  require(!ibv_destroy_cq(node->cq), "cannot destroy the CQ");
  require(!ibv_dealloc_pd(node->pd), "cannot free the PD");
  require(!ibv_close_device(node->context), "cannot close the device");
}

static inline struct ibv_qp* create_rc(struct node* node, struct ibv_srq* srq, int max_wr,
                                       int max_sge, int max_inline) {
  struct ibv_qp_init_attr init = {.send_cq = node->cq,
                                  .recv_cq = node->cq,
                                  .srq = srq,
                                  .qp_type = IBV_QPT_RC,
                                  .sq_sig_all = node->signal_all,
                                  .cap = {.max_send_wr = max_wr,
                                          .max_recv_wr = srq ? 0 : max_wr,
                                          .max_send_sge = max_sge,
                                          .max_recv_sge = srq ? 0 : max_sge,
                                          .max_inline_data = max_inline}};
  struct ibv_qp* qp = ibv_create_qp(node->pd, &init);
  require(qp != NULL, "cannot create a QP");
  return qp;
}

struct path_options {
  uint8_t timeout, retry_cnt, rnr_retry, min_rnr_timer;
};
static const struct path_options kPatient = {14, 7, 7, 1};

static inline void to_init(struct ibv_qp* qp) {
  struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT,
                             .port_num = 1,
                             .qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
                                                IBV_ACCESS_REMOTE_ATOMIC};
  require(!ibv_modify_qp(qp, &attr,
                         IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS),
          "to INIT");
}

static inline void to_rts(struct ibv_qp* qp, const struct node* own, const struct node* peer,
                          uint32_t peer_qpn, uint32_t psn, uint32_t peer_psn,
                          struct path_options options) {
  struct ibv_qp_attr attr = {
      .qp_state = IBV_QPS_RTR,
      .path_mtu = IBV_MTU_1024,
      .dest_qp_num = peer_qpn,
      .rq_psn = peer_psn,
      .max_dest_rd_atomic = 16,
      .min_rnr_timer = options.min_rnr_timer,
      .ah_attr = {.dlid = peer->port.lid, .port_num = 1, .is_global = own->is_global}};
  attr.ah_attr.grh.dgid = peer->gid;
  attr.ah_attr.grh.sgid_index = own->gid_index;
  attr.ah_attr.grh.hop_limit = 64;
  require(!ibv_modify_qp(qp, &attr,
                         IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
                             IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER),
          "to RTR");
  attr.qp_state = IBV_QPS_RTS;
  attr.timeout = options.timeout;
  attr.retry_cnt = options.retry_cnt;
  attr.rnr_retry = options.rnr_retry;
  attr.sq_psn = psn;
  attr.max_rd_atomic = 16;
  require(!ibv_modify_qp(qp, &attr,
                         IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                             IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC),
          "to RTS");
}

static inline void connect_pair(struct ibv_qp* a, const struct node* a_node, struct ibv_qp* b,
                                const struct node* b_node, struct path_options options) {
  to_init(a);
  to_init(b);
  to_rts(a, a_node, b_node, b->qp_num, 0xfffff0, 0x123456, options);  // one PSN wraps soon
  to_rts(b, b_node, a_node, a->qp_num, 0x123456, 0xfffff0, options);
}

static inline void modify_state(struct ibv_qp* qp, enum ibv_qp_state state) {
  struct ibv_qp_attr attr = {.qp_state = state};
  require(!ibv_modify_qp(qp, &attr, IBV_QP_STATE), "to state %d", state);
}

// Polls until `count` completions came; gives up after a minute.
static inline void poll_exactly(struct ibv_cq* cq, int count, struct ibv_wc* completions) {
  const time_t deadline = time(NULL) + 60;
  for (int got = 0; got < count;) {
    const int more = poll_some(cq, count - got, completions + got);
    require(more >= 0, "polling failed");
    got += more;
    if (more == 0) {
      require(time(NULL) < deadline, "%d of %d completions within a minute", got, count);
      const struct timespec pause = {0, 20000};
      nanosleep(&pause, NULL);
    }
  }
}

static inline struct ibv_mr* reg(struct node* node, void* memory, size_t bytes) {
  struct ibv_mr* mr = ibv_reg_mr(node->pd, memory, bytes,
                                 IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |
                                     IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC);
  require(mr != NULL, "cannot register memory");
  return mr;
}

// Opens the FIFO `ready`, says so, and waits for a line in the FIFO `go`.
static inline void say_and_wait(const char* ready, const char* go) {
  FILE* file = fopen(ready, "w");
  require(file != NULL, "cannot open %s", ready);
  fprintf(file, "ready\n");
  fclose(file);
  file = fopen(go, "r");
  require(file != NULL, "cannot open %s", go);
  char line[16];
  require(fgets(line, sizeof line, file) != NULL, "nobody said go");
  fclose(file);
}
