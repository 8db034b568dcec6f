// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// A program that writes the WQEs of its queue pairs itself: ibv_qp for the connection, mlx5dv_init_obj
// for the ring, its doorbell record and its register. Nothing of libibverbs posts. Writes of one to three
// blocks (a data segment, two of them, inline data), reads and atomics; every fourth asks for a
// completion, which ibv_poll_cq takes.
//
//     mlx5dv_post DEVICE OPERATIONS SEED
#include <infiniband/mlx5dv.h>

#include "verbs_common.h"

enum { kDepth = 64, kSignalEvery = 4, kInline = 100, kBuffer = 4096 };

static struct mlx5dv_qp ring;
static struct ibv_qp* qp;
static uint32_t posted;  // blocks
static uint8_t memory[2 * kBuffer] __attribute__((aligned(4096)));
static struct ibv_mr* mr;

static uint8_t* block(uint32_t index) {
  return (uint8_t*)ring.sq.buf + (index % ring.sq.wqe_cnt) * ring.sq.stride;
}

// Of `units` of 16 bytes; control and remote address are filled in.
static void put(const uint8_t* wqe, unsigned units) {
  const uint32_t blocks = (units + 3) / 4;
  for (uint32_t i = 0; i < blocks; ++i) memcpy(block(posted + i), wqe + i * 64, 64);
  posted += blocks;
  __atomic_store_n((uint32_t*)ring.dbrec + MLX5_SND_DBR, htobe32(posted & 0xffff), __ATOMIC_RELEASE);
  uint64_t head;
  memcpy(&head, wqe, sizeof head);
  __atomic_store_n((uint64_t*)ring.bf.reg, head, __ATOMIC_RELEASE);
}

static void post(unsigned kind, int signaled) {
  static const uint8_t kOpcodes[] = {MLX5_OPCODE_RDMA_WRITE, MLX5_OPCODE_RDMA_WRITE, MLX5_OPCODE_RDMA_WRITE,
                                     MLX5_OPCODE_RDMA_READ, MLX5_OPCODE_ATOMIC_FA};
  const uint64_t local = (uintptr_t)memory, remote = local + kBuffer;
  uint8_t wqe[192] = {0};
  struct mlx5_wqe_raddr_seg address = {.raddr = htobe64(remote), .rkey = htobe32(mr->rkey)};
  memcpy(wqe + 16, &address, sizeof address);
  unsigned units = 2;
  if (kind == 2) {
    const uint32_t head = htobe32(0x80000000u | kInline);
    memcpy(wqe + 32, &head, 4);
    memset(wqe + 36, 0x5a, kInline);
    units += (4 + kInline + 15) / 16;
  } else {
    if (kind == 4) {
      const uint64_t add = htobe64(1);
      memcpy(wqe + 32, &add, 8);
      ++units;
    }
    for (unsigned i = 0; i <= (kind == 1); ++i, ++units)
      mlx5dv_set_data_seg((void*)(wqe + units * 16), kind == 4 ? 8 : 64 + i, mr->lkey, local + i * 128);
  }
  mlx5dv_set_ctrl_seg((void*)wqe, (uint16_t)posted, kOpcodes[kind], 0, qp->qp_num,
                      signaled ? MLX5_WQE_CTRL_CQ_UPDATE : 0, (uint8_t)units, 0, 0);
  put(wqe, units);
}

int main(int argc, char** argv) {
  require(argc == 4, "usage: mlx5dv_post DEVICE OPERATIONS SEED");
  struct node node = open_node(argv[1], kDepth);
  qp = create_rc(&node, NULL, kDepth, 2, kInline);
  struct ibv_qp* peer = create_rc(&node, NULL, kDepth, 2, kInline);
  connect_pair(qp, &node, peer, &node, kPatient);
  struct mlx5dv_obj object = {.qp = {qp, &ring}};
  require(!mlx5dv_init_obj(&object, MLX5DV_OBJ_QP), "no ring of the queue pair");
  mr = reg(&node, memory, sizeof memory);
  srand((unsigned)atoi(argv[3]));
  const long operations = atol(argv[2]) / kSignalEvery * kSignalEvery;
  for (long i = 0; i < operations; ++i) {
    const int signaled = i % kSignalEvery == kSignalEvery - 1;
    post((unsigned)rand() % 5, signaled);
    if (!signaled) continue;
    // libmlx5 looks the completed request up in its own books, in which it stands as number 0.
    struct ibv_wc wc;
    poll_exactly(node.cq, 1, &wc);
    require(wc.status == IBV_WC_SUCCESS, "operation %ld: status %d", i, wc.status);
  }
  require(!ibv_destroy_qp(qp) && !ibv_destroy_qp(peer) && !ibv_dereg_mr(mr), "cannot end");
  close_node(&node);
  printf("posted %ld\nok\n", operations);
  return 0;
}
