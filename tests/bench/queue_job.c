// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// The job that bench ring and bench bandwidth trace: RDMA writes over many queue pairs, which
// measures itself. One thread posts lists and polls; run it under connectx-run.
//
//     queue_job DEVICE QPS BLOCKS BYTES
//
// BLOCKS: WQEBBs of each send ring, a power of two (a write takes one). It prints "pid N", waits for
// a line before it opens the device, makes its queues, prints "ready BLOCKS", and then obeys:
//
//     run SECONDS RATE BATCH SIGNAL WORK
//         RATE operations/s in lists of BATCH; 0: as fast as it goes. Every SIGNAL-th write of a
//         queue pair asks for a completion. Between two posts it computes for WORK ns per write.
//         Answers "OPERATIONS SECONDS CPU_SECONDS P50 P99 MEAN SAMPLES": completed in so many
//         seconds, CPU of this thread; of one ibv_post_send in kTimedOneIn the ns at the median, at
//         the 99th percentile, on average, and how many were timed. All is complete then.
//
// Ends with its standard input.
#include <dlfcn.h>
#include <infiniband/mlx5dv.h>
#include <sched.h>
#include <unistd.h>
#include <x86intrin.h>

#include "../emulator/workloads/verbs_common.h"

enum { kMaxQps = 64, kMaxBatch = 64, kTimedOneIn = 4, kMaxSamples = 1 << 20 };

struct queue {
  struct ibv_qp* qp;
  uint64_t posted, done;
};

static struct node node;
static struct queue queues[kMaxQps];
static int queue_count;
static uint32_t limit;  // writes in flight on one queue pair
static struct ibv_mr* memory;
static uint32_t bytes;
static uint32_t* samples;  // TSC ticks of one post

static uint64_t now_ns(clockid_t clock) {
  struct timespec now;
  clock_gettime(clock, &now);
  return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

// What a job does between two posts, in arithmetic alone: no memory, no calls.
static void compute(uint64_t turns) {
  for (uint64_t i = 0; i < turns; ++i) __asm__ volatile("" : "+r"(i));
}

// The best of some: whatever else runs on the machine only slows it.
static double turns_per_ns(void) {
  enum { kTurns = 1000000 };
  double best = 0;
  for (int i = 0; i < 20; ++i) {
    const uint64_t start = now_ns(CLOCK_THREAD_CPUTIME_ID);
    compute(kTurns);
    const double turns = kTurns / (double)(now_ns(CLOCK_THREAD_CPUTIME_ID) - start);
    if (turns > best) best = turns;
  }
  return best;
}

static double ticks_per_ns(void) {
  const uint64_t start_ns = now_ns(CLOCK_MONOTONIC), start = __rdtsc();
  while (now_ns(CLOCK_MONOTONIC) - start_ns < 20000000) {
  }
  const uint64_t ticks = __rdtsc() - start;
  return (double)ticks / (double)(now_ns(CLOCK_MONOTONIC) - start_ns);
}

// Not linked with libmlx5: libibverbs is to load it after the tracer has come.
static uint32_t ring_blocks(struct ibv_qp* qp) {
  void* library = dlopen("libmlx5.so.1", RTLD_NOW | RTLD_NOLOAD);
  require(library != NULL, "the device is not driven by libmlx5");
  int (*init_obj)(struct mlx5dv_obj*, uint64_t) = dlsym(library, "mlx5dv_init_obj");
  struct mlx5dv_qp view = {0};
  struct mlx5dv_obj object = {.qp = {.in = qp, .out = &view}};
  require(init_obj && !init_obj(&object, MLX5DV_OBJ_QP), "no view of the queue pair");
  return view.sq.wqe_cnt;
}

static void set_up(const char* device, uint32_t blocks) {
  // libmlx5 44 makes room for four blocks a request of an RC queue pair.
  limit = blocks / 4;
  node = open_node(device, (int)(limit * (uint32_t)queue_count));
  void* buffer = NULL;
  require(!posix_memalign(&buffer, 4096, 2 * (size_t)bytes), "no memory");
  memset(buffer, 1, 2 * (size_t)bytes);
  memory = reg(&node, buffer, 2 * (size_t)bytes);
  for (int i = 0; i < queue_count; ++i) {
    // Both ends alike, as jobs make them: the smallest ring says how often all are looked at.
    struct ibv_qp* peer = create_rc(&node, NULL, (int)limit, 1, 0);
    queues[i].qp = create_rc(&node, NULL, (int)limit, 1, 0);
    connect_pair(queues[i].qp, &node, peer, &node, kPatient);
    require(ring_blocks(queues[i].qp) == blocks, "the ring has %u blocks, not %u",
            ring_blocks(queues[i].qp), blocks);
  }
}

static uint64_t poll_all(void) {
  struct ibv_wc wc[32];
  const int got = ibv_poll_cq(node.cq, 32, wc);
  require(got >= 0, "cannot poll");
  uint64_t done = 0;
  for (int i = 0; i < got; ++i) {
    require(wc[i].status == IBV_WC_SUCCESS, "status %d", wc[i].status);
    struct queue* queue = &queues[wc[i].wr_id >> 48];
    const uint64_t until = wc[i].wr_id & 0xffffffffffff;
    done += until - queue->done;
    queue->done = until;
  }
  return done;
}

static int compare(const void* a, const void* b) {
  const uint32_t x = *(const uint32_t*)a, y = *(const uint32_t*)b;
  return (x > y) - (x < y);
}

struct request {
  double seconds, rate;
  uint32_t batch, signal;
  double work_ns;
};

static int in_group(const struct queue* queue, uint32_t signal) {
  return queue->posted % signal != 0;
}

// One list on one queue pair. `ticks`: where the time that the post took goes, or NULL.
static void post(struct queue* queue, struct ibv_send_wr* list, const struct request* request,
                 uint32_t* ticks) {
  for (uint32_t i = 0; i < request->batch; ++i) {
    const uint64_t number = queue->posted + i + 1;
    list[i].wr_id = (uint64_t)(queue - queues) << 48 | number;
    list[i].send_flags = number % request->signal ? 0 : IBV_SEND_SIGNALED;
  }
  struct ibv_send_wr* bad;
  unsigned core;
  const uint64_t before = ticks ? __rdtscp(&core) : 0;
  require(!ibv_post_send(queue->qp, list, &bad), "cannot post");
  if (ticks) *ticks = (uint32_t)(__rdtscp(&core) - before);
  queue->posted += request->batch;
}

static struct ibv_send_wr* make_list(uint32_t batch) {
  static struct ibv_send_wr list[kMaxBatch];
  static struct ibv_sge sge;
  sge = (struct ibv_sge){(uintptr_t)memory->addr, bytes, memory->lkey};
  for (uint32_t i = 0; i < batch; ++i) {
    list[i] = (struct ibv_send_wr){.sg_list = &sge,
                                   .num_sge = 1,
                                   .opcode = IBV_WR_RDMA_WRITE,
                                   .next = i + 1 < batch ? &list[i + 1] : NULL};
    list[i].wr.rdma.remote_addr = (uintptr_t)memory->addr + bytes;
    list[i].wr.rdma.rkey = memory->rkey;
  }
  return list;
}

static void run(const struct request* request, double turns_each_ns, double ticks_each_ns) {
  struct ibv_send_wr* list = make_list(request->batch);
  const uint64_t turns = (uint64_t)(request->work_ns * turns_each_ns * request->batch);
  const uint64_t start = now_ns(CLOCK_MONOTONIC), start_cpu = now_ns(CLOCK_THREAD_CPUTIME_ID);
  const uint64_t end = start + (uint64_t)(request->seconds * 1e9);
  uint64_t posted = 0, done = 0, calls = 0, now = start;
  uint32_t sampled = 0;
  int next = 0, open = 1;
  for (; now < end || open || done < posted; now = now_ns(CLOCK_MONOTONIC)) {
    const double due = (double)(now - start) * 1e-9 * request->rate;
    int idle = 1;
    open = 0;
    // A few lists between two looks at the clock and the completions.
    for (int turn = 0; turn < queue_count; ++turn) {
      struct queue* queue = &queues[next];
      // The end comes to each queue pair when its group is whole, so that all completes.
      if (now >= end ? !in_group(queue, request->signal)
                     : request->rate > 0 && (double)posted >= due) {
        if (now < end) break;
        next = (next + 1) % queue_count;
        continue;
      }
      next = (next + 1) % queue_count;
      open |= now >= end;
      if (queue->posted - queue->done + request->batch > limit) continue;
      idle = 0;
      const int timed = calls++ % kTimedOneIn == 0 && sampled < kMaxSamples;
      post(queue, list, request, timed ? &samples[sampled++] : NULL);
      posted += request->batch;
      compute(turns);
    }
    const uint64_t completed = poll_all();
    done += completed;
    // The emulated device may need this very core.
    if (idle && completed == 0) sched_yield();
  }
  const double seconds = (double)(now - start) * 1e-9;
  const double cpu = (double)(now_ns(CLOCK_THREAD_CPUTIME_ID) - start_cpu) * 1e-9;
  require(sampled > 0, "nothing was posted");
  double sum = 0;
  for (uint32_t i = 0; i < sampled; ++i) sum += samples[i];
  qsort(samples, sampled, sizeof *samples, compare);
  printf("%llu %.9f %.9f %.1f %.1f %.1f %u\n", (unsigned long long)posted, seconds, cpu,
         samples[sampled / 2] / ticks_each_ns, samples[sampled - 1 - sampled / 100] / ticks_each_ns,
         sum / sampled / ticks_each_ns, sampled);
  fflush(stdout);
}

static int next_line(char* line, int size) {
  return fgets(line, size, stdin) != NULL;
}

int main(int argc, char** argv) {
  require(argc == 5, "usage: queue_job DEVICE QPS BLOCKS BYTES");
  queue_count = atoi(argv[2]);
  bytes = (uint32_t)atol(argv[4]);
  require(queue_count > 0 && queue_count <= kMaxQps && bytes > 0, "bad arguments");
  samples = malloc(kMaxSamples * sizeof *samples);
  require(samples != NULL, "no memory");
  memset(samples, 0, kMaxSamples * sizeof *samples);
  printf("pid %d\n", getpid());
  fflush(stdout);
  char line[256];
  if (!next_line(line, sizeof line)) return 0;
  set_up(argv[1], (uint32_t)atol(argv[3]));
  const double turns = turns_per_ns(), ticks = ticks_per_ns();
  printf("ready\n");
  fflush(stdout);
  while (next_line(line, sizeof line)) {
    struct request request;
    require(sscanf(line, "run %lf %lf %u %u %lf", &request.seconds, &request.rate, &request.batch,
                   &request.signal, &request.work_ns) == 5 &&
                request.batch > 0 && request.batch <= kMaxBatch && request.signal > 0 &&
                (request.batch % request.signal == 0 || request.signal % request.batch == 0) &&
                request.batch <= limit && request.signal <= limit,
            "bad request: %s", line);
    // A run begins where the last one ended: between two groups of any size.
    for (int i = 0; i < queue_count; ++i) queues[i].posted = queues[i].done = 0;
    run(&request, turns, ticks);
  }
  for (int i = 0; i < queue_count; ++i) ibv_destroy_qp(queues[i].qp);
  return 0;
}
