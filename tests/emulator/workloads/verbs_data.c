// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Every RC operation with pseudo-random sizes, scatter lists and inline data, each checked byte by
// byte against a model. The send queue wraps many times, so that WQEs of several blocks and inline
// data straddle its end. Prints what it posted:
//
//     verbs_data DEVICE_A DEVICE_B OPERATIONS [SEED [signal_all]]
//     posted RDMA_WRITE 412 / posted_bytes RDMA_WRITE 1838211 / ...
#include "verbs_common.h"

enum { kBuffer = 1 << 20, kMaxMessage = 20000, kMaxSge = 6, kInline = 200, kKinds = 8 };

enum kind { kWrite, kWriteImm, kSend, kSendImm, kRead, kCas, kFadd, kInlineWrite };
static const char* const kNames[kKinds] = {"RDMA_WRITE", "RDMA_WRITE_IMM", "SEND",
                                           "SEND_IMM",   "RDMA_READ",      "ATOMIC_CS",
                                           "ATOMIC_FA",  "RDMA_WRITE"};
static const enum ibv_wr_opcode kOpcodes[kKinds] = {
    IBV_WR_RDMA_WRITE,           IBV_WR_RDMA_WRITE_WITH_IMM, IBV_WR_SEND,
    IBV_WR_SEND_WITH_IMM,        IBV_WR_RDMA_READ,           IBV_WR_ATOMIC_CMP_AND_SWP,
    IBV_WR_ATOMIC_FETCH_AND_ADD, IBV_WR_RDMA_WRITE};

static uint64_t random_state;
static uint32_t next_random(uint32_t below) {
  random_state = random_state * 6364136223846793005u + 1442695040888963407u;
  return (uint32_t)(random_state >> 33) % below;
}

static uint8_t *local, *remote, *model;  // model: what `remote` must hold
static struct ibv_mr *local_mr, *remote_mr;
static uint64_t posted[kKinds], posted_bytes[kKinds];

struct operation {
  enum kind kind;
  uint32_t length, remote_offset, imm, sges;
  struct ibv_sge sge[kMaxSge];
  uint64_t operand, compare, before;
};

static struct operation choose(void) {
  struct operation op = {.kind = next_random(kKinds), .imm = next_random(1u << 30)};
  const int atomic = op.kind == kCas || op.kind == kFadd;
  op.length = atomic ? 8 : next_random(4) ? 1 + next_random(300) : 1 + next_random(kMaxMessage);
  if (op.kind == kInlineWrite) op.length = 1 + next_random(kInline);
  op.remote_offset = next_random(kBuffer - kMaxMessage) & (atomic ? ~7u : ~0u);
  op.sges = atomic || op.length < kMaxSge ? 1 : 1 + next_random(kMaxSge);
  // Disjoint pieces of the local buffer, with gaps between them.
  uint32_t at = next_random(kBuffer / 2) & ~7u, left = op.length;
  for (uint32_t i = 0; i < op.sges; ++i) {
    const uint32_t piece = i + 1 == op.sges ? left : left / (op.sges - i);
    op.sge[i] = (struct ibv_sge){(uintptr_t)local + at, piece, local_mr->lkey};
    at += piece + next_random(64);
    left -= piece;
  }
  return op;
}

static void fill_local(const struct operation* op) {
  for (uint32_t i = 0; i < op->sges; ++i)
    for (uint32_t k = 0; k < op->sge[i].length; ++k)
      ((uint8_t*)(uintptr_t)op->sge[i].addr)[k] = (uint8_t)next_random(256);
}

static void gather(const struct operation* op, uint8_t* out) {
  for (uint32_t i = 0; i < op->sges; ++i) {
    memcpy(out, (void*)(uintptr_t)op->sge[i].addr, op->sge[i].length);
    out += op->sge[i].length;
  }
}

static int consumes_receive(enum kind kind) {
  return kind == kWriteImm || kind == kSend || kind == kSendImm;
}

static void run_one(struct ibv_qp* a, struct ibv_qp* b, struct ibv_cq* a_cq, struct ibv_cq* b_cq,
                    uint64_t id) {
  struct operation op = choose();
  uint8_t* const target = remote + op.remote_offset;
  uint8_t* const expected = model + op.remote_offset;
  fill_local(&op);
  if (consumes_receive(op.kind)) {
    struct ibv_sge place = {(uintptr_t)target, op.length, remote_mr->lkey};
    struct ibv_recv_wr receive = {.wr_id = ~id, .sg_list = &place, .num_sge = 1}, *bad;
    require(!ibv_post_recv(b, &receive, &bad), "cannot post a receive");
  }
  struct ibv_send_wr wr = {
      .wr_id = id,
      .sg_list = op.sge,
      .num_sge = (int)op.sges,
      .opcode = kOpcodes[op.kind],
      .send_flags = IBV_SEND_SIGNALED | (op.kind == kInlineWrite ? IBV_SEND_INLINE : 0),
      .imm_data = htobe32(op.imm)};
  if (op.kind == kCas || op.kind == kFadd) {
    memcpy(&op.before, expected, 8);
    op.operand = ((uint64_t)next_random(1u << 31) << 32) | next_random(1u << 31);
    op.compare = next_random(2) ? op.before : ~op.before;
    wr.wr.atomic.remote_addr = (uintptr_t)target;
    wr.wr.atomic.rkey = remote_mr->rkey;
    wr.wr.atomic.compare_add = op.kind == kFadd ? op.operand : op.compare;
    wr.wr.atomic.swap = op.operand;
  } else {
    wr.wr.rdma.remote_addr = (uintptr_t)target;
    wr.wr.rdma.rkey = remote_mr->rkey;
  }
  struct ibv_send_wr* bad;
  require(!ibv_post_send(a, &wr, &bad), "cannot post %s", kNames[op.kind]);
  ++posted[op.kind];
  posted_bytes[op.kind] += op.length;

  struct ibv_wc wc;
  poll_exactly(a_cq, 1, &wc);
  require(wc.status == IBV_WC_SUCCESS && wc.wr_id == id, "%s: status %d, id %lu", kNames[op.kind],
          wc.status, (unsigned long)wc.wr_id);
  if (consumes_receive(op.kind)) {
    poll_exactly(b_cq, 1, &wc);
    require(wc.status == IBV_WC_SUCCESS && wc.wr_id == ~id, "a receive: status %d", wc.status);
    require(wc.byte_len == op.length, "a receive: %u bytes instead of %u", wc.byte_len, op.length);
    require(op.kind == kSend ? !(wc.wc_flags & IBV_WC_WITH_IMM)
                             : ((wc.wc_flags & IBV_WC_WITH_IMM) && be32toh(wc.imm_data) == op.imm),
            "a receive: wrong immediate data");
  }
  uint8_t bytes[kMaxMessage];
  gather(&op, bytes);
  if (op.kind == kRead) {
    require(!memcmp(bytes, expected, op.length), "operation %lu: %u bytes were read wrongly",
            (unsigned long)id, op.length);
    return;
  }
  if (op.kind == kCas || op.kind == kFadd) {
    require(!memcmp(bytes, &op.before, 8), "operation %lu: an atomic returned the wrong value",
            (unsigned long)id);
    const uint64_t after = op.kind == kFadd          ? op.before + op.operand
                           : op.compare == op.before ? op.operand
                                                     : op.before;
    memcpy(expected, &after, 8);
  } else {
    memcpy(expected, bytes, op.length);
  }
  require(!memcmp(target, expected, op.length), "operation %lu (%s): wrong bytes arrived",
          (unsigned long)id, kNames[op.kind]);
}

int main(int argc, char** argv) {
  require(argc >= 4, "usage: verbs_data DEVICE_A DEVICE_B OPERATIONS [SEED [signal_all]]");
  const long operations = atol(argv[3]);
  random_state = argc > 4 ? strtoull(argv[4], NULL, 10) : 1;
  struct node a_node = open_node(argv[1], 64), b_node = open_node(argv[2], 64);
  a_node.signal_all = argc > 5;
  local = calloc(1, kBuffer);
  remote = calloc(1, kBuffer);
  model = calloc(1, kBuffer);
  local_mr = reg(&a_node, local, kBuffer);
  remote_mr = reg(&b_node, remote, kBuffer);
  struct ibv_qp* a = create_rc(&a_node, NULL, 8, kMaxSge, kInline);
  struct ibv_qp* b = create_rc(&b_node, NULL, 8, kMaxSge, kInline);
  connect_pair(a, &a_node, b, &b_node, kPatient);
  for (long i = 0; i < operations; ++i) run_one(a, b, a_node.cq, b_node.cq, (uint64_t)i + 1000);
  require(!memcmp(remote, model, kBuffer), "bytes outside the messages changed");

  posted[kWrite] += posted[kInlineWrite];
  posted_bytes[kWrite] += posted_bytes[kInlineWrite];
  for (int kind = 0; kind < kInlineWrite; ++kind)
    printf("posted %s %lu\nposted_bytes %s %lu\n", kNames[kind], (unsigned long)posted[kind],
           kNames[kind], (unsigned long)posted_bytes[kind]);
  ibv_destroy_qp(a);
  ibv_destroy_qp(b);
  ibv_dereg_mr(local_mr);
  ibv_dereg_mr(remote_mr);
  close_node(&a_node);
  close_node(&b_node);
  printf("ok\n");
  return 0;
}
