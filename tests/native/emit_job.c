// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// A process that emits records as the preloaded GPU library does, by the library's own function:
//
//   tracers          how many probes the kernel says that the function has
//   begin LIFE       a send ring's life begins
//   posts FIRST N    N posts from index FIRST on, in batches; then the completion of the last
//   forged           batches that are wrong, each in another way
//   flood N          N posts as fast as it goes
//
// Each is answered by "ok", or "tracers N".
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gpu_interpose/emit.h"

enum { kQp = 77, kBatch = 16 };
static const uint64_t kContext = 0x5150;

static __typeof__(&sigmatrace_gpu_emit) emit;

// What the header says of time, CPU and process is for the probe to overwrite.
static struct sigma_header header(uint16_t type, uint16_t size) {
  return (struct sigma_header){.time_ns = 1, .type = type, .size = size, .cpu = 9999, .pid = 1, .tid = 1};
}

static void begin(uint32_t life) {
  struct sigma_ring ring = {.h = header(SIGMA_RING, sizeof ring),
                            .context = kContext,
                            .number = kQp,
                            .life = life,
                            .entries = 128,
                            .kind = SIGMA_RING_SEND,
                            .event = SIGMA_RING_BEGIN,
                            .origin = SIGMA_RING_BY_LIBRARY,
                            .mode = SIGMA_RING_READ,
                            .initiator = SIGMA_INITIATOR_GPU,
                            .tier = 3};
  emit(&ring, sizeof ring);
}

static struct sigma_ring_post post_at(uint64_t index) {
  return (struct sigma_ring_post){.h = header(SIGMA_RING_POST, sizeof(struct sigma_ring_post)),
                                  .context = kContext,
                                  .index = index,
                                  .bytes = (uint32_t)(index % 1000 + 1),
                                  .number = kQp,
                                  .blocks = 1,
                                  .flags = SIGMA_RING_MARGIN,
                                  .opcode = 0,  // IBV_WR_RDMA_WRITE
                                  .qp_type = 2,
                                  .initiator = SIGMA_INITIATOR_GPU,
                                  .tier = 3};
}

static void posts(uint64_t first, uint64_t count) {
  struct sigma_ring_post batch[kBatch];
  for (uint64_t at = 0; at < count;) {
    uint32_t n = 0;
    for (; n < kBatch && at < count; ++n, ++at) batch[n] = post_at(first + at);
    emit(batch, n * (uint32_t)sizeof *batch);
  }
}

static void complete(uint64_t index) {
  struct sigma_ring_completion completion = {
      .h = header(SIGMA_RING_COMPLETION, sizeof completion),
      .context = kContext,
      .number = kQp,
      .wqe_counter = (uint16_t)index,
      .queue = SIGMA_QUEUE_SEND,
      .initiator = SIGMA_INITIATOR_GPU,
      .tier = 3};
  emit(&completion, sizeof completion);
}

static void forged(void) {
  struct sigma_ring_post post = post_at(500);
  post.h.size = 64;  // not its size
  emit(&post, sizeof post);
  post = post_at(501);
  post.h.type = SIGMA_POST;  // no record of a ring
  emit(&post, sizeof post);
  post = post_at(502);
  emit(&post, sizeof post - 1);  // cut
  emit((void*)8, sizeof post);   // nowhere
  static struct sigma_ring_post many[SIGMA_GPU_BATCH_RECORDS + 1];
  for (int i = 0; i <= SIGMA_GPU_BATCH_RECORDS; ++i) many[i] = post_at(600 + (unsigned)i);
  emit(many, sizeof many);  // one too many: the rest stands
}

int main(void) {
  void* found = dlsym(RTLD_DEFAULT, "sigmatrace_gpu_emit");
  memcpy(&emit, &found, sizeof emit);  // ISO C converts no object pointer to a function
  volatile uint16_t* tracers = (volatile uint16_t*)dlsym(RTLD_DEFAULT, "sigmatrace_gpu_tracers");
  if (!emit || !tracers) return 3;
  char line[128];
  setvbuf(stdout, NULL, _IOLBF, 0);
  printf("ok\n");
  while (fgets(line, sizeof line, stdin)) {
    unsigned long long a = 0, b = 0;
    if (strncmp(line, "tracers", 7) == 0)
      printf("tracers %u\n", *tracers);
    else if (sscanf(line, "begin %llu", &a) == 1)
      begin((uint32_t)a);
    else if (sscanf(line, "posts %llu %llu", &a, &b) == 2)
      posts(a, b), complete(a + b - 1);
    else if (strncmp(line, "forged", 6) == 0)
      forged();
    else if (sscanf(line, "flood %llu", &a) == 1)
      posts(0, a);
    else
      return 2;
    printf("ok\n");
  }
  return 0;
}
