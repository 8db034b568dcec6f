// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// What the process has given to its NICs beside queue pairs: registered memory, doorbell pages,
// completion queues, dma-buf handles. Fixed tables under the one lock of the queues' registry; the
// functions that hooks call (queues.h) take it, the others are called with it.
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>

#include "decode/prm.h"
#include "gpu_interpose/lock.h"
#include "gpu_interpose/memory.h"
#include "gpu_interpose/queues.h"

namespace sigma::gpu {

struct Object {
  bool live;
  int fd;
  uint32_t handle;
  const void* object;

  bool was(const Caller& caller) const {
    return caller.object ? object == caller.object : fd == caller.fd && handle == caller.handle;
  }
  bool is(const Caller& caller) const { return live && was(caller); }
};

struct Umem : Object {
  uint32_t id;
  uint64_t address, bytes, allocation;
  sigma_gpu_memory memory;
  int gpu;
};
struct DoorbellPage : Object {
  uint32_t page;
  uint64_t reg_addr, base_addr;
  bool mapped;  // registered with the driver
};
struct CompletionQueue : Object {
  uint32_t cqn, entries, cqe_bytes;
  uint64_t address, doorbell;
  sigma_gpu_memory memory;
  uint16_t flags;
};
struct DmaBuf {
  dev_t device;
  ino_t inode;
  uint64_t address;
};

template <typename T, size_t N>
struct Table {
  T rows[N];
  size_t used;

  T* add() {
    for (size_t i = 0; i < used; ++i)
      if (!rows[i].live) return &(rows[i] = T{});
    return used < N ? &(rows[used++] = T{}) : nullptr;
  }
  // The newest first: descriptors and numbers are used again.
  T* find(auto&& fits) {
    for (size_t i = used; i-- > 0;)
      if (rows[i].live && fits(rows[i])) return &rows[i];
    return nullptr;
  }
  // What ended has not, if nobody has taken its row; null: somebody has.
  T* revive(const Caller& caller) {
    for (size_t i = used; i-- > 0;)
      if (rows[i].was(caller)) return rows[i].live = true, &rows[i];
    return nullptr;
  }
};

struct Registered {
  // Each queue pair has up to four pieces of memory and a completion queue.
  Table<Umem, 4 * SIGMA_GPU_MAX_QUEUES> umems;
  Table<DoorbellPage, SIGMA_GPU_MAX_QUEUES> pages;
  Table<CompletionQueue, SIGMA_GPU_MAX_QUEUES> completion_queues;
  DmaBuf dmabufs[1024];  // the newest
  size_t dmabufs_seen;
};
extern Registered registered;
extern SpinLock registry_lock;

// The queues': beside the registry's entries.
extern Object queue_objects[SIGMA_GPU_MAX_QUEUES];

struct Place {
  uint64_t address = 0;
  sigma_gpu_memory memory = SIGMA_GPU_MEMORY_UNKNOWN;
  int gpu = -1;
};

// Before the first entry.
void watch_forks();
Place place_of(int fd, const std::optional<UmemPlace>& in);

void add_completion_queue(const Caller& caller, const PrmFacts& facts);
void describe_completions(sigma_gpu_queue& queue, int fd);

uint32_t next_life();
void end_queue(uint32_t index);

}  // namespace sigma::gpu
