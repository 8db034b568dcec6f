// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// The job that `sigmatrace demo` traces: RANKS processes that each write to every other one, round
// by round, with a notification after each block. Rank 0 sends rank 1 four times as many blocks (a
// skewed pair); the device of the last rank is slow (SIGMA_CONNECTX_DELAY_US). Each rank has a
// device of its own where there are enough, as in a cluster. The ranks meet through files in DIR
// and check every block that arrives.
//
//     alltoall DIR RANKS ROUNDS [BYTES [--gate FILE]]
//
// Prints the ranks' process ids at once. With --gate, queue pairs are connected only when FILE
// exists: so that a tracer can be attached before.
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "verbs_common.h"

enum { kMaxRanks = 16, kSkew = 4, kDepth = 64, kSlowUs = 2000, kPatience_s = 120 };

struct peer {
  uint32_t qpn, rkey;
  uint64_t block;  // where the sender puts its blocks, by sender and slot
  uint16_t lid;    // of the device
  union ibv_gid gid;
};

static const char* directory;
static int rank, ranks, rounds;
static size_t bytes;
static struct node node;
static uint8_t *out, *in;
static struct ibv_mr *out_mr, *in_mr;
static struct ibv_qp* qps[kMaxRanks];

static int blocks(int from, int to) {
  return from == 0 && to == 1 ? kSkew : 1;
}

static uint8_t pattern(int from, int to, int round, int block, size_t at) {
  return (uint8_t)(from * 31 + to * 7 + round * 3 + block * 101 + at * 13 + (at >> 8));
}

static uint8_t* in_block(int from, int block) {
  return in + ((size_t)from * kSkew + block) * bytes;
}

static void wait_for(const char* path) {
  const time_t deadline = time(NULL) + kPatience_s;
  struct stat status;
  while (stat(path, &status)) {
    require(time(NULL) < deadline, "%s did not appear", path);
    const struct timespec pause = {0, 2000000};
    nanosleep(&pause, NULL);
  }
}

static void publish(const char* what, const void* data, size_t size) {
  char path[512], temporary[520];
  snprintf(path, sizeof path, "%s/%s.%d", directory, what, rank);
  snprintf(temporary, sizeof temporary, "%s.new", path);
  FILE* file = fopen(temporary, "w");
  require(file && fwrite(data, size, 1, file) == 1 && !fclose(file) && !rename(temporary, path),
          "cannot write %s", path);
}

static void collect(const char* what, int from, void* data, size_t size) {
  char path[512];
  snprintf(path, sizeof path, "%s/%s.%d", directory, what, from);
  wait_for(path);
  FILE* file = fopen(path, "r");
  require(file && fread(data, size, 1, file) == 1, "cannot read %s", path);
  fclose(file);
}

static void connect_all(struct peer peers[kMaxRanks]) {
  struct peer own[kMaxRanks] = {0};
  for (int to = 0; to < ranks; ++to) {
    if (to == rank) continue;
    qps[to] = create_rc(&node, NULL, kDepth, 1, 0);
    to_init(qps[to]);
    own[to] = (struct peer){qps[to]->qp_num, in_mr->rkey, (uintptr_t)in_block(to, 0), node.port.lid,
                            node.gid};
    for (int i = 0; i < blocks(to, rank); ++i) {
      struct ibv_recv_wr wr = {.wr_id = (uint64_t)to}, *bad;
      require(!ibv_post_recv(qps[to], &wr, &bad), "cannot post a receive");
    }
  }
  publish("queues", own, sizeof own);
  for (int to = 0; to < ranks; ++to) {
    if (to == rank) continue;
    struct peer theirs[kMaxRanks];
    collect("queues", to, theirs, sizeof theirs);
    peers[to] = theirs[rank];
    const struct node there = {.port = {.lid = peers[to].lid}, .gid = peers[to].gid};
    to_rts(qps[to], &node, &there, peers[to].qpn, 100 + (uint32_t)rank, 100 + (uint32_t)to,
           kPatient);
  }
  publish("connected", "1", 1);
  char ready;
  for (int from = 0; from < ranks; ++from) collect("connected", from, &ready, 1);
}

// Each block: a write, then an empty send that tells of it.
static void post_block(int to, const struct peer* peer, int round, int block) {
  uint8_t* data = out + ((size_t)to * kSkew + block) * bytes;
  for (size_t i = 0; i < bytes; ++i) data[i] = pattern(rank, to, round, block, i);
  struct ibv_sge sge = {(uintptr_t)data, (uint32_t)bytes, out_mr->lkey};
  struct ibv_send_wr notify = {.wr_id = (uint64_t)round << 16 | (uint64_t)to << 8 | 1,
                               .opcode = IBV_WR_SEND_WITH_IMM,
                               .send_flags = IBV_SEND_SIGNALED,
                               .imm_data = htobe32((uint32_t)(round << 8 | block))};
  struct ibv_send_wr write = {.wr_id = (uint64_t)round << 16 | (uint64_t)to << 8,
                              .sg_list = &sge,
                              .num_sge = 1,
                              .opcode = IBV_WR_RDMA_WRITE,
                              .send_flags = IBV_SEND_SIGNALED,
                              .next = &notify},
                     *bad;
  write.wr.rdma.remote_addr = peer->block + (uint64_t)block * bytes;
  write.wr.rdma.rkey = peer->rkey;
  require(!ibv_post_send(qps[to], &write, &bad), "cannot post");
}

static void check_block(int from, uint32_t imm) {
  const int round = (int)(imm >> 8), block = (int)(imm & 0xff);
  const uint8_t* data = in_block(from, block);
  for (size_t i = 0; i < bytes; ++i)
    require(data[i] == pattern(from, rank, round, block, i),
            "rank %d: a wrong byte from rank %d in round %d", rank, from, round);
}

static int rank_of(uint32_t qpn) {
  for (int i = 0; i < ranks; ++i)
    if (i != rank && qps[i]->qp_num == qpn) return i;
  require(0, "a completion of an unknown QP");
  return -1;
}

static void run_round(const struct peer peers[kMaxRanks], int round) {
  int missing = 0;
  for (int step = 1; step < ranks; ++step) {
    const int to = (rank + step) % ranks;
    for (int block = 0; block < blocks(rank, to); ++block) post_block(to, &peers[to], round, block);
    missing += 2 * blocks(rank, to) + blocks(to, rank);
  }
  for (; missing > 0; --missing) {
    struct ibv_wc wc;
    poll_exactly(node.cq, 1, &wc);
    require(wc.status == IBV_WC_SUCCESS, "rank %d: %s", rank, ibv_wc_status_str(wc.status));
    if (!(wc.opcode & IBV_WC_RECV)) continue;
    const int from = rank_of(wc.qp_num);
    check_block(from, be32toh(wc.imm_data));
    if (round + 1 == rounds) continue;  // none is left over at the end
    struct ibv_recv_wr wr = {.wr_id = (uint64_t)from}, *bad;
    require(!ibv_post_recv(qps[from], &wr, &bad), "cannot post a receive");
  }
  // The next round overwrites the blocks: all must have checked theirs.
  char what[32], done;
  snprintf(what, sizeof what, "round%d", round);
  publish(what, "1", 1);
  for (int from = 0; from < ranks; ++from) collect(what, from, &done, 1);
}

static struct node open_own_node(void) {
  int count;
  struct ibv_device** list = ibv_get_device_list(&count);
  require(list && count > 0, "no device");
  ibv_free_device_list(list);
  char name[32];
  snprintf(name, sizeof name, "mlx5_%d", rank % count);
  return open_node(name, 4096);
}

static int run_rank(const char* gate) {
  if (rank == ranks - 1) {
    char slow[16];
    snprintf(slow, sizeof slow, "%d", kSlowUs);
    setenv("SIGMA_CONNECTX_DELAY_US", slow, 0);
  }
  if (gate) wait_for(gate);
  node = open_own_node();
  out = calloc((size_t)ranks * kSkew, bytes);
  in = calloc((size_t)ranks * kSkew, bytes);
  out_mr = reg(&node, out, (size_t)ranks * kSkew * bytes);
  in_mr = reg(&node, in, (size_t)ranks * kSkew * bytes);
  struct peer peers[kMaxRanks] = {0};
  connect_all(peers);
  for (int round = 0; round < rounds; ++round) run_round(peers, round);
  for (int to = 0; to < ranks; ++to)
    if (to != rank) ibv_destroy_qp(qps[to]);
  ibv_dereg_mr(out_mr);
  ibv_dereg_mr(in_mr);
  close_node(&node);
  return 0;
}

int main(int argc, char** argv) {
  require(argc >= 4, "usage: alltoall DIR RANKS ROUNDS [BYTES [--gate FILE]]");
  directory = argv[1];
  ranks = atoi(argv[2]);
  rounds = atoi(argv[3]);
  bytes = argc > 4 ? strtoul(argv[4], NULL, 10) : 4096;
  const char* gate = argc > 6 && !strcmp(argv[5], "--gate") ? argv[6] : NULL;
  require(ranks > 1 && ranks <= kMaxRanks && rounds < 1 << 20, "2 to %d ranks", kMaxRanks);
  for (rank = 0; rank < ranks; ++rank) {
    const pid_t child = fork();
    require(child >= 0, "cannot fork");
    if (child == 0) return run_rank(gate);
    printf("rank %d pid %d\n", rank, child);
    fflush(stdout);  // before the next fork: children must not print it again
  }
  int failed = 0, status;
  while (wait(&status) > 0) failed |= status;
  require(!failed, "a rank failed");
  printf("ok\n");
  return 0;
}
