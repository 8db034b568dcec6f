// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
#include <infiniband/verbs.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "gpu_check.h"
#include "gpu_interpose/sampler.h"

namespace check {
namespace {

Figures figures;
char why[24];

void take(const void* batch, uint32_t bytes) {
  const auto* at = static_cast<const uint8_t*>(batch);
  for (const uint8_t* end = at + bytes; at < end;) {
    sigma_header header;
    memcpy(&header, at, sizeof header);
    if (header.type == SIGMA_RING_POST) {
      sigma_ring_post post;
      memcpy(&post, at, sizeof post);
      figures.seen += post.blocks;
      figures.wrong += post.remote_addr != remote_of(post.index) || post.bytes != bytes_of(post.index);
    } else if (header.type == SIGMA_RING_GAP) {
      sigma_ring_gap gap;
      memcpy(&gap, at, sizeof gap);
      if (gap.kind == SIGMA_RING_SEND) figures.missed += gap.count;
    } else if (header.type == SIGMA_RING) {
      sigma_ring ring;
      memcpy(&ring, at, sizeof ring);
      if (ring.kind == SIGMA_RING_SEND) {
        figures.posted = ring.posted;
        if (ring.mode == SIGMA_RING_SETUP) memcpy(why, ring.reason, sizeof why);
      }
    }
    at += header.size;
  }
}

}  // namespace

Figures read_queue(const Queue& queue, double seconds, void* (*look_for)(const char*)) {
  using sigma::gpu::now_ns;
  figures = {};
  memset(why, 0, sizeof why);
  sigma::gpu::CudaCalls calls{};
  if (!sigma::gpu::find_calls(calls, look_for)) {
    figures.reason = "the driver lacks a function";
    return figures;
  }
  sigma_gpu_queue entry{};
  entry.state = SIGMA_GPU_QUEUE_LIVE;
  entry.flags = SIGMA_GPU_INITIATED | SIGMA_GPU_COLLAPSED | SIGMA_GPU_OVERRUN;
  entry.created_ns = 1;
  entry.qp_num = queue.qp_num;
  entry.cqn = 1;
  entry.ring_addr = queue.ring;
  entry.doorbell_addr = queue.doorbell;
  entry.cq_addr = queue.cq;
  entry.ring_entries = queue.blocks;
  entry.cq_entries = 1;
  entry.cqe_bytes = 64;
  entry.ring_memory = entry.doorbell_memory = entry.cq_memory = SIGMA_GPU_MEMORY_DEVICE;
  entry.qp_type = IBV_QPT_RC;
  sigma_gpu_registry registry{};
  registry.queues = &entry;
  registry.used = 1;
  const size_t bytes = sigma::gpu::Sampler::memory_bytes();
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) return figures;
  sigma::gpu::RecordBatch batch(take);
  sigma::gpu::Sampler sampler(registry, &calls, batch, memory, {});
  sampler.refresh(2);  // in use before we came
  std::vector<double> looks;
  const uint64_t begin = now_ns();
  while (static_cast<double>(now_ns() - begin) < seconds * 1e9) {
    const uint64_t before = now_ns();
    const uint64_t pause = sampler.look();
    looks.push_back(static_cast<double>(now_ns() - before) / 1e3);
    batch.flush();
    sigma::gpu::pause_ns(pause);
  }
  sampler.end_queues([](uint32_t) { return true; });
  sampler.leave_device(-1);
  batch.flush();
  munmap(memory, bytes);
  figures.looks = looks.size();
  if (!looks.empty()) {
    figures.open_us = looks.front();
    looks.erase(looks.begin());
    std::sort(looks.begin(), looks.end());
  }
  if (!looks.empty()) {
    figures.p50_us = looks[looks.size() / 2];
    figures.p99_us = looks[looks.size() * 99 / 100];
    figures.most_us = looks.back();
  }
  figures.reason = why;
  return figures;
}

}  // namespace check
