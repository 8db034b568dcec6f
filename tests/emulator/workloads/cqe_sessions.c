// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// A completion queue with compressed CQEs, made by mlx5dv_create_cq and read by hand as users of
// such queues do (libmlx5's own poll functions know nothing of compression): every completion is
// restored from its session and compared with the request. Requests are writes, reads and
// fetch-and-adds of many sizes in lists, then sends to receives; the ring wraps many times.
//
//     cqe_sessions DEVICE ROUNDS [128]       the last: CQEs of 128 bytes
//     posted RDMA_WRITE 412 ... restored 1234 (completions that had no CQE of their own)
#include <infiniband/mlx5dv.h>

#include "verbs_common.h"

enum { kBatch = 48, kSlots = 64, kMaxBytes = 5000, kBuffer = 1 << 16 };
enum { kFormat = 0xc, kMinis = 8 };

struct queue {
  struct mlx5dv_cq dv;
  uint32_t position;  // consumed
  uint64_t restored;
};

struct completion {
  uint8_t opcode, wqe_opcode;
  uint16_t wqe_counter;
  uint32_t qpn, bytes;
};

struct mini {
  union {
    struct {
      uint16_t wqe_counter;
      uint8_t wqe_opcode, reserved;
    };
    uint32_t checksum;
  };
  uint32_t bytes;
};

static struct mlx5_cqe64* entry(const struct queue* queue, uint32_t position) {
  return (void*)((uint8_t*)queue->dv.buf +
                 (position & (queue->dv.cqe_cnt - 1)) * (size_t)queue->dv.cqe_size +
                 queue->dv.cqe_size - sizeof(struct mlx5_cqe64));
}

static int lap(const struct queue* queue, uint32_t position) {
  return (position & queue->dv.cqe_cnt) != 0;
}

static struct queue create_queue(struct node* node, uint32_t cqe_bytes) {
  struct ibv_cq_init_attr_ex init = {.cqe = kSlots - 1};
  struct mlx5dv_cq_init_attr options = {
      .comp_mask = MLX5DV_CQ_INIT_ATTR_MASK_COMPRESSED_CQE | MLX5DV_CQ_INIT_ATTR_MASK_CQE_SIZE,
      .cqe_comp_res_format = MLX5DV_CQE_RES_FORMAT_HASH,
      .cqe_size = (uint16_t)cqe_bytes};
  struct ibv_cq_ex* cq = mlx5dv_create_cq(node->context, &init, &options);
  require(cq != NULL, "cannot create a CQ with compression");
  ibv_destroy_cq(node->cq);
  node->cq = ibv_cq_ex_to_cq(cq);
  struct queue queue = {0};
  struct mlx5dv_obj object = {.cq = {node->cq, &queue.dv}};
  require(!mlx5dv_init_obj(&object, MLX5DV_OBJ_CQ), "no ring");
  require(queue.dv.cqe_cnt == kSlots && queue.dv.cqe_size == cqe_bytes,
          "another ring than asked for");
  return queue;
}

static struct completion whole(const struct mlx5_cqe64* cqe) {
  return (struct completion){.opcode = cqe->op_own >> 4,
                             .wqe_opcode = (uint8_t)(be32toh(cqe->sop_drop_qpn) >> 24),
                             .wqe_counter = be16toh(cqe->wqe_counter),
                             .qpn = be32toh(cqe->sop_drop_qpn) & 0xffffff,
                             .bytes = be32toh(cqe->byte_cnt)};
}

// Takes what the queue has: one completion, or all of a session. Returns how many.
static int take(struct queue* queue, struct completion* out, int room) {
  const uint32_t title_at = queue->position;
  struct mlx5_cqe64* title = entry(queue, title_at);
  const uint8_t own = __atomic_load_n(&title->op_own, __ATOMIC_ACQUIRE);
  if (own >> 4 == MLX5_CQE_INVALID || (own & 1) != lap(queue, title_at)) return 0;
  struct completion first = whole(title);
  require(first.opcode == MLX5_CQE_REQ || first.opcode == MLX5_CQE_RESP_SEND, "a CQE of opcode %d",
          first.opcode);
  int count = 1;
  if ((own & kFormat) != kFormat) {
    require(room >= 1, "more completions than requests");
    out[0] = first;
  } else {
    count = (int)first.bytes;
    require(count > 1 && count <= room, "a session of %d completions, %d are wanted", count, room);
    queue->restored += (uint64_t)count - 1;
    struct mini minis[kMinis];
    for (int i = 0; i < count; ++i) {
      if (i % kMinis == 0)
        memcpy(minis, entry(queue, title_at + (uint32_t)(i ? i : 1)), sizeof minis);
      out[i] = first;
      out[i].bytes = be32toh(minis[i % kMinis].bytes);
      out[i].wqe_counter = (uint16_t)(first.wqe_counter + i);
      if (first.opcode != MLX5_CQE_REQ) continue;
      out[i].wqe_counter = be16toh(minis[i % kMinis].wqe_counter);
      out[i].wqe_opcode = minis[i % kMinis].wqe_opcode;
    }
  }
  // The software restores the owner bits, and the consumer index tells the device.
  for (int i = 0; i < count; ++i)
    entry(queue, title_at + (uint32_t)i)->op_own =
        (uint8_t)(MLX5_CQE_INVALID << 4 | lap(queue, title_at + (uint32_t)i));
  queue->position += (uint32_t)count;
  __atomic_store_n(&queue->dv.dbrec[0], htobe32(queue->position & 0xffffff), __ATOMIC_RELEASE);
  return count;
}

static void take_all(struct queue* queue, struct completion* out, int count) {
  const time_t deadline = time(NULL) + 60;
  for (int got = 0; got < count;) {
    const int more = take(queue, out + got, count - got);
    got += more;
    if (more) continue;
    require(time(NULL) < deadline, "%d of %d completions within a minute", got, count);
    const struct timespec pause = {0, 20000};
    nanosleep(&pause, NULL);
  }
}

static struct node node, peer;
static uint8_t* memory;
static struct ibv_mr *mr, *peer_mr;
static uint64_t posted[256];

static uint32_t bytes_of(uint64_t round, int i) {
  return (uint32_t)((round * 131 + (uint64_t)i * 977) % kMaxBytes + 1);
}

// Writes, reads and atomics, all signaled: the CQEs tell what was posted, and where.
static void requests(struct ibv_qp* qp, struct queue* queue, uint64_t round) {
  static const struct {
    enum ibv_wr_opcode verb;
    uint8_t opcode;
  } kKinds[] = {{IBV_WR_RDMA_WRITE, MLX5_OPCODE_RDMA_WRITE},
                {IBV_WR_RDMA_READ, MLX5_OPCODE_RDMA_READ},
                {IBV_WR_ATOMIC_FETCH_AND_ADD, MLX5_OPCODE_ATOMIC_FA}};
  struct ibv_send_wr wrs[kBatch] = {0}, *bad;
  struct ibv_sge sges[kBatch];
  struct completion wanted[kBatch], got[kBatch];
  for (int i = 0; i < kBatch; ++i) {
    const int kind = (int)((round + (uint64_t)i / 5) % 3);
    const uint32_t bytes = kind == 2 ? 8 : bytes_of(round, i);
    sges[i] = (struct ibv_sge){(uintptr_t)memory, bytes, mr->lkey};
    wrs[i] = (struct ibv_send_wr){.next = i + 1 < kBatch ? &wrs[i + 1] : NULL,
                                  .sg_list = &sges[i],
                                  .num_sge = 1,
                                  .opcode = kKinds[kind].verb,
                                  .send_flags = IBV_SEND_SIGNALED};
    if (kind == 2) {
      wrs[i].wr.atomic.remote_addr = (uintptr_t)memory + kBuffer / 2;
      wrs[i].wr.atomic.rkey = peer_mr->rkey;
    } else {
      wrs[i].wr.rdma.remote_addr = (uintptr_t)memory + kBuffer / 2;
      wrs[i].wr.rdma.rkey = peer_mr->rkey;
    }
    wanted[i] =
        (struct completion){MLX5_CQE_REQ, kKinds[kind].opcode, (uint16_t)i, qp->qp_num, bytes};
    ++posted[wanted[i].wqe_opcode];
  }
  require(!ibv_post_send(qp, wrs, &bad), "cannot post");
  take_all(queue, got, kBatch);
  for (int i = 0; i < kBatch; ++i)
    require(got[i].opcode == wanted[i].opcode && got[i].wqe_opcode == wanted[i].wqe_opcode &&
                got[i].wqe_counter == wanted[i].wqe_counter && got[i].qpn == wanted[i].qpn &&
                got[i].bytes == wanted[i].bytes,
            "round %lu, completion %d: opcode %#x, index %u, %u bytes instead of %#x, %u, %u",
            (unsigned long)round, i, got[i].wqe_opcode, got[i].wqe_counter, got[i].bytes,
            wanted[i].wqe_opcode, wanted[i].wqe_counter, wanted[i].bytes);
}

// Sends from the peer, into receives whose completions are compressed.
static void receives(struct ibv_qp* from, struct ibv_qp* to, struct queue* queue, uint64_t round) {
  struct ibv_sge place = {(uintptr_t)memory, kMaxBytes, mr->lkey};
  struct ibv_recv_wr receive = {.sg_list = &place, .num_sge = 1}, *bad_receive;
  struct ibv_send_wr wrs[kBatch] = {0}, *bad;
  struct ibv_sge sges[kBatch];
  struct completion got[kBatch];
  struct ibv_wc wc[1];
  for (int i = 0; i < kBatch; ++i)
    require(!ibv_post_recv(to, &receive, &bad_receive), "cannot post a receive");
  for (int i = 0; i < kBatch; ++i) {
    sges[i] = (struct ibv_sge){(uintptr_t)memory + kBuffer / 2, bytes_of(round, i), peer_mr->lkey};
    wrs[i] = (struct ibv_send_wr){.next = i + 1 < kBatch ? &wrs[i + 1] : NULL,
                                  .sg_list = &sges[i],
                                  .num_sge = 1,
                                  .opcode = IBV_WR_SEND,
                                  .send_flags = i + 1 < kBatch ? 0 : IBV_SEND_SIGNALED};
  }
  posted[MLX5_OPCODE_SEND] += kBatch;
  require(!ibv_post_send(from, wrs, &bad), "cannot post sends");
  take_all(queue, got, kBatch);
  for (int i = 0; i < kBatch; ++i) {
    require(got[i].opcode == MLX5_CQE_RESP_SEND && got[i].wqe_counter == i &&
                got[i].qpn == to->qp_num && got[i].bytes == sges[i].length,
            "round %lu, receive %d: index %u, %u bytes instead of %d, %u", (unsigned long)round, i,
            got[i].wqe_counter, got[i].bytes, i, sges[i].length);
  }
  poll_exactly(peer.cq, 1, wc);
  require(wc->status == IBV_WC_SUCCESS, "a send: status %d", wc->status);
}

int main(int argc, char** argv) {
  require(argc >= 3, "usage: cqe_sessions DEVICE ROUNDS [128]");
  const long rounds = atol(argv[2]);
  node = open_node(argv[1], 16);
  peer = open_node(argv[1], kSlots);
  struct queue queue = create_queue(&node, argc > 3 ? (uint32_t)atoi(argv[3]) : 64);
  memory = calloc(1, kBuffer);
  mr = reg(&node, memory, kBuffer);
  peer_mr = reg(&peer, memory, kBuffer);
  for (long i = 0; i < rounds; ++i) {
    // libmlx5 frees the places in a send queue when it polls: here it never does.
    struct ibv_qp* own = create_rc(&node, NULL, kBatch, 1, 0);
    struct ibv_qp* other = create_rc(&peer, NULL, kBatch, 1, 0);
    connect_pair(own, &node, other, &peer, kPatient);
    requests(own, &queue, (uint64_t)i);
    receives(other, own, &queue, (uint64_t)i);
    ibv_destroy_qp(own);
    ibv_destroy_qp(other);
  }
  printf(
      "posted RDMA_WRITE %lu\nposted RDMA_READ %lu\nposted ATOMIC_FA %lu\nposted SEND "
      "%lu\nrestored %lu\n",
      (unsigned long)posted[MLX5_OPCODE_RDMA_WRITE], (unsigned long)posted[MLX5_OPCODE_RDMA_READ],
      (unsigned long)posted[MLX5_OPCODE_ATOMIC_FA], (unsigned long)posted[MLX5_OPCODE_SEND],
      (unsigned long)queue.restored);
  ibv_dereg_mr(mr);
  ibv_dereg_mr(peer_mr);
  close_node(&node);
  close_node(&peer);
  printf("ok\n");
  return 0;
}
