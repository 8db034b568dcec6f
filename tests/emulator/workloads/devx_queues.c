// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Queues as GPU-initiated stacks make them: umems, CREATE_CQ and CREATE_QP by DevX, WQEs and
// doorbell records written by hand, CQEs read by hand. No ibv_qp exists. Posts writes, reads, plain
// and masked atomics of 4 and 8 bytes and NOPs, and checks memory after each. LIVES: so many queue pairs,
// one after the other, each of which posts all that. With READY and GO: in the middle of each it says so
// in the one FIFO, and waits for a line in the other.
//
//     devx_queues DEVICE OPERATIONS [plain|collapsed [LIVES [READY GO]]]
//
// Command offsets: see ../device/prm.h, which this file deliberately does not share.
#include <infiniband/mlx5dv.h>

#include "verbs_common.h"

enum {
  kLogSq = 6,
  kLogCq = 6,
  kCqAt = 0,
  kSqAt = 8192,
  kQpDoorbellAt = 16384,
  kCqDoorbellAt = 16448,
  kArena = 20480
};
enum {
  kCreateCq = 0x400,
  kCreateQp = 0x500,
  kRst2Init = 0x502,
  kInit2Rtr = 0x503,
  kRtr2Rts = 0x504
};

struct queue_pair {
  uint8_t* arena;
  struct mlx5dv_devx_umem* umem;
  struct mlx5dv_devx_obj *cq, *qp;
  uint32_t cqn, qpn, posted, polled;
};

static struct node node;
static struct mlx5dv_devx_uar* uar;
static uint32_t pdn, collapsed;
static uint64_t posted[256];

static void put32(void* command, size_t at, uint32_t value) {
  value = htobe32(value);
  memcpy((uint8_t*)command + at, &value, 4);
}

static uint32_t get32(const void* answer, size_t at) {
  uint32_t value;
  memcpy(&value, (const uint8_t*)answer + at, 4);
  return be32toh(value);
}

static uint32_t create(struct mlx5dv_devx_obj** object, const void* in, size_t size,
                       const char* what) {
  uint8_t answer[16] = {0};
  *object = mlx5dv_devx_obj_create(node.context, in, size, answer, sizeof answer);
  require(*object != NULL, "cannot create a %s: syndrome %#x", what, get32(answer, 4));
  return get32(answer, 8) & 0xffffff;
}

static void create_queues(struct queue_pair* pair) {
  pair->arena = aligned_alloc(4096, kArena);
  memset(pair->arena, 0, kArena);
  memset(pair->arena + kCqAt, 0xff, sizeof(struct mlx5_cqe64) << kLogCq);
  pair->umem = mlx5dv_devx_umem_reg(node.context, pair->arena, kArena, IBV_ACCESS_LOCAL_WRITE);
  require(pair->umem != NULL, "cannot register a umem");
  uint32_t eqn;
  require(!mlx5dv_devx_query_eqn(node.context, 0, &eqn), "no EQ");

  uint8_t cq[0x118] = {0};
  put32(cq, 0, kCreateCq << 16);
  put32(cq, 0x10, 1u << 25 | collapsed << 20 | 1u << 17);  // doorbell umem valid, cc, oi
  put32(cq, 0x1c, kLogCq << 24 | uar->page_id);
  put32(cq, 0x24, eqn);
  put32(cq, 0x14, pair->umem->umem_id);  // doorbell record: umem and offset
  put32(cq, 0x4c, kCqDoorbellAt);
  put32(cq, 0x54, kCqAt);
  put32(cq, 0x58, pair->umem->umem_id);
  put32(cq, 0x5c, 1u << 31);
  pair->cqn = create(&pair->cq, cq, sizeof cq, "CQ");

  uint8_t qp[0x118] = {0};
  put32(qp, 0, kCreateQp << 16);
  uint8_t* qpc = qp + 0x18;
  put32(qpc, 0x00, 3u << 11);  // RC, migrated
  put32(qpc, 0x04, pdn);
  put32(qpc, 0x08, kLogSq << 11);
  put32(qpc, 0x0c, uar->page_id);
  put32(qpc, 0x10, 0xabc);  // user index
  put32(qpc, 0x7c, pair->cqn);
  put32(qpc, 0x9c, pair->cqn);
  put32(qpc, 0xa4, kQpDoorbellAt);
  put32(qpc, 0xac, 3u << 24);  // no receive queue
  put32(qpc, 0xd0, 1u << 28);  // doorbell umem valid
  put32(qpc, 0xe4, pair->umem->umem_id);
  put32(qp, 0x104, kSqAt);
  put32(qp, 0x108, pair->umem->umem_id);
  put32(qp, 0x10c, 1u << 31);
  pair->qpn = create(&pair->qp, qp, sizeof qp, "QP");
}

static void transition(struct queue_pair* pair, uint32_t opcode, uint32_t peer_qpn) {
  uint8_t in[0x110] = {0}, answer[16] = {0};
  put32(in, 0, opcode << 16);
  put32(in, 8, pair->qpn);
  uint8_t* qpc = in + 0x18;
  put32(qpc, 0x08, 3u << 29);  // MTU 1024
  put32(qpc, 0x14, peer_qpn);
  put32(qpc, 0x18 + 0x04, node.port.lid);
  put32(qpc, 0x18 + 0x08, 14u << 27);     // ACK time-out
  put32(qpc, 0x70, 7u << 16 | 7u << 13);  // retries, RNR retries
  put32(qpc, 0x90, 7u << 13);             // remote read, write, atomic
  require(!mlx5dv_devx_obj_modify(pair->qp, in, sizeof in, answer, sizeof answer) && !answer[0],
          "transition %#x: status %#x", opcode, answer[0]);
}

static void* block(struct queue_pair* pair, uint32_t index) {
  return pair->arena + kSqAt + (index & ((1u << kLogSq) - 1)) * 64;
}

// Doorbell record, then doorbell: the emulator looks only at the first, the hardware at both.
static void ring(struct queue_pair* pair, uint32_t blocks, const void* control) {
  uint64_t head;
  memcpy(&head, control, sizeof head);
  pair->posted += blocks;
  __atomic_store_n((uint32_t*)(void*)(pair->arena + kQpDoorbellAt) + 1,
                   htobe32(pair->posted & 0xffff), __ATOMIC_RELEASE);
  __atomic_store_n((uint64_t*)uar->reg_addr, head, __ATOMIC_RELEASE);
}

static void await(struct queue_pair* pair, uint16_t index, uint8_t opcode) {
  struct mlx5_cqe64* cqe =
      (void*)(pair->arena + kCqAt +
              (collapsed ? 0 : (pair->polled & ((1u << kLogCq) - 1)) * sizeof *cqe));
  const time_t deadline = time(NULL) + 60;
  for (;;) {
    const uint8_t own = __atomic_load_n(&cqe->op_own, __ATOMIC_ACQUIRE);
    const int mine = collapsed ? own >> 4 != 15 && be16toh(cqe->wqe_counter) == index
                               : own >> 4 != 15 && (own & 1) == (pair->polled >> kLogCq & 1);
    if (mine) break;
    require(time(NULL) < deadline, "WQE %u did not complete", index);
  }
  require(cqe->op_own >> 4 == MLX5_CQE_REQ && be16toh(cqe->wqe_counter) == index &&
              be32toh(cqe->sop_drop_qpn) == ((uint32_t)opcode << 24 | pair->qpn) &&
              (be32toh(cqe->srqn_uidx) & 0xffffff) == 0xabc,
          "WQE %u: a wrong CQE", index);
  ++pair->polled;
}

// One WQE: control, remote address, up to two atomic segments, one data segment.
static void execute(struct queue_pair* pair, uint8_t opcode, uint8_t opmod, const void* segments,
                    int segment_count, const struct ibv_sge* local, uint64_t remote,
                    uint32_t rkey) {
  const int ds = opcode == MLX5_OPCODE_NOP ? 1 : 3 + segment_count;
  const uint16_t index = (uint16_t)pair->posted;
  uint8_t wqe[128] = {0};
  mlx5dv_set_ctrl_seg((void*)wqe, index, opcode, opmod, pair->qpn, MLX5_WQE_CTRL_CQ_UPDATE,
                      (uint8_t)ds, 0, 0);
  if (ds > 1) {
    struct mlx5_wqe_raddr_seg address = {.raddr = htobe64(remote), .rkey = htobe32(rkey)};
    memcpy(wqe + 16, &address, 16);
    memcpy(wqe + 32, segments ? segments : wqe, (size_t)segment_count * 16);
    mlx5dv_set_data_seg((void*)(wqe + 32 + segment_count * 16), local->length, local->lkey,
                        local->addr);
  }
  memcpy(block(pair, pair->posted), wqe, 64);
  if (ds > 4) memcpy(block(pair, pair->posted + 1), wqe + 64, 64);
  ring(pair, (uint32_t)(ds + 3) / 4, wqe);
  await(pair, index, opcode);
  ++posted[opcode];
}

static uint64_t here, there;
static struct ibv_mr *here_mr, *there_mr;

static void run_atomic(struct queue_pair* pair, uint8_t opcode, uint8_t opmod, const void* segments,
                       int count, uint32_t size, uint64_t before, uint64_t after,
                       const char* what) {
  const struct ibv_sge sge = {(uintptr_t)&here, size, here_mr->lkey};
  there = before;
  here = 0;
  execute(pair, opcode, opmod, segments, count, &sge, (uintptr_t)&there, there_mr->rkey);
  // Results of 4 bytes are big-endian.
  require(here == (size == 4 ? htobe32((uint32_t)before) : before) && there == after,
          "%s: read %#lx, left %#lx", what, (unsigned long)here, (unsigned long)there);
}

static void run_all(struct queue_pair* pair, uint64_t value) {
  const struct ibv_sge sge = {(uintptr_t)&here, 8, here_mr->lkey};
  here = value;
  execute(pair, MLX5_OPCODE_RDMA_WRITE, 0, NULL, 0, &sge, (uintptr_t)&there, there_mr->rkey);
  require(there == value, "a write: %#lx arrived", (unsigned long)there);
  there = ~value;
  execute(pair, MLX5_OPCODE_RDMA_READ, 0, NULL, 0, &sge, (uintptr_t)&there, there_mr->rkey);
  require(here == ~value, "a read: %#lx arrived", (unsigned long)here);
  execute(pair, MLX5_OPCODE_NOP, 0, NULL, 0, &sge, 0, 0);

  const uint64_t add[2] = {htobe64(5), 0}, swap[2] = {htobe64(77), htobe64(value)};
  run_atomic(pair, MLX5_OPCODE_ATOMIC_FA, 0, add, 1, 8, value, value + 5, "fetch-and-add");
  run_atomic(pair, MLX5_OPCODE_ATOMIC_CS, 0, swap, 1, 8, value, 77, "compare-and-swap");
  // Field boundaries after bits 7 and 15: the low bytes add without a carry between them.
  const uint64_t fields[2] = {htobe64(0x0101), htobe64(0x8080)};
  run_atomic(pair, MLX5_OPCODE_ATOMIC_MASKED_FA, 8 | 1, fields, 1, 8, 0x1ffff, 0x10000,
             "masked fetch-and-add");
  const uint64_t masked[4] = {htobe64(0xab00), htobe64(0x34), htobe64(0xff00), htobe64(0xff)};
  run_atomic(pair, MLX5_OPCODE_ATOMIC_MASKED_CS, 8 | 1, masked, 2, 8, 0x991234, 0x99ab34,
             "masked compare-and-swap");
  run_atomic(pair, MLX5_OPCODE_ATOMIC_MASKED_CS, 8 | 1, masked, 2, 8, 0x991235, 0x991235,
             "refused masked compare-and-swap");
  const uint32_t add32[4] = {htobe32(3), 0, 0, 0},
                 swap32[4] = {htobe32(9), htobe32(0), htobe32(~0u), htobe32(0)};
  run_atomic(pair, MLX5_OPCODE_ATOMIC_MASKED_FA, 8, add32, 1, 4, 0x5fffffffeul, 0x500000001ul,
             "4-byte fetch-and-add");
  run_atomic(pair, MLX5_OPCODE_ATOMIC_MASKED_CS, 8, swap32, 1, 4, 0x700000008ul, 0x700000009ul,
             "4-byte swap");
}

static void live(long rounds, const char* ready, const char* go) {
  struct queue_pair a = {0}, b = {0};
  create_queues(&a);
  create_queues(&b);
  for (int i = 0; i < 2; ++i) {
    struct queue_pair *own = i ? &b : &a, *peer = i ? &a : &b;
    transition(own, kRst2Init, 0);
    transition(own, kInit2Rtr, peer->qpn);
    transition(own, kRtr2Rts, 0);
  }
  for (long i = 0; i < rounds; ++i) {
    if (ready && i == rounds / 2) say_and_wait(ready, go);
    run_all(&a, (uint64_t)i * 0x123456789 + 1);
  }
  for (int i = 0; i < 2; ++i) {
    struct queue_pair* own = i ? &b : &a;
    mlx5dv_devx_obj_destroy(own->qp);
    mlx5dv_devx_obj_destroy(own->cq);
    mlx5dv_devx_umem_dereg(own->umem);
    free(own->arena);
  }
}

int main(int argc, char** argv) {
  require(argc >= 3, "usage: devx_queues DEVICE OPERATIONS [plain|collapsed [LIVES [READY GO]]]");
  collapsed = argc > 3 && !strcmp(argv[3], "collapsed");
  node = open_node(argv[1], 16);
  struct mlx5dv_pd pd;
  struct mlx5dv_obj object = {.pd = {node.pd, &pd}};
  require(!mlx5dv_init_obj(&object, MLX5DV_OBJ_PD), "no PD number");
  pdn = pd.pdn;
  uar = mlx5dv_devx_alloc_uar(node.context, MLX5DV_UAR_ALLOC_TYPE_BF);
  require(uar != NULL, "no UAR");
  here_mr = reg(&node, &here, sizeof here);
  there_mr = reg(&node, &there, sizeof there);
  const long lives = argc > 4 ? atol(argv[4]) : 1;
  for (long i = 0; i < lives; ++i) live(atol(argv[2]), argc > 6 ? argv[5] : NULL, argc > 6 ? argv[6] : NULL);
  static const struct {
    uint8_t opcode;
    const char* name;
  } kNames[] = {{MLX5_OPCODE_RDMA_WRITE, "RDMA_WRITE"},
                {MLX5_OPCODE_RDMA_READ, "RDMA_READ"},
                {MLX5_OPCODE_NOP, "NOP"},
                {MLX5_OPCODE_ATOMIC_FA, "ATOMIC_FA"},
                {MLX5_OPCODE_ATOMIC_CS, "ATOMIC_CS"},
                {MLX5_OPCODE_ATOMIC_MASKED_FA, "ATOMIC_MASKED_FA"},
                {MLX5_OPCODE_ATOMIC_MASKED_CS, "ATOMIC_MASKED_CS"}};
  for (unsigned i = 0; i < sizeof kNames / sizeof *kNames; ++i)
    printf("posted %s %lu\n", kNames[i].name, (unsigned long)posted[kNames[i].opcode]);
  mlx5dv_devx_free_uar(uar);
  ibv_dereg_mr(here_mr);
  ibv_dereg_mr(there_mr);
  close_node(&node);
  printf("ok\n");
  return 0;
}
