// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// The process's DevX queues, as its set-up commands tell them: registered memory, doorbell pages,
// completion queues, queue pairs. Writes the registry that the tracer reads from outside.
//
// Called by the hooks, in the job's threads, after the real call has succeeded (begin_end_of:
// before it). Fixed tables, one lock, nothing that waits. A device is named by the descriptor of
// its context
// (`fd`), which both kinds of hooks know.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include <span>

#include "gpu_interpose/published_index.h"
#include "gpu_interpose/registry.h"

struct ibv_context;

extern "C" __attribute__((visibility("default"))) sigma_gpu_registry sigmatrace_gpu_registry;

namespace sigma::gpu {

// Counts in the registry. Any thread, also before constructors have run.
void count(sigma_gpu_counter counter, uint64_t n = 1);
void count_wrapped();

// How a call reached us.
struct Caller {
  int fd = -1;
  ibv_context* context = nullptr;  // null: by ioctl, past the hooks
  const void* object = nullptr;    // libmlx5's; null by ioctl
  uint32_t handle = 0;             // the kernel's
  const void* from = nullptr;      // return address, to name the stack
};

void on_dmabuf(int fd, uint64_t address, uint64_t bytes);

// `dmabuf`: its descriptor, and `address` is an offset in it; -1: `address` is one of memory.
void on_umem(const Caller& caller, uint32_t umem_id, uint64_t address, uint64_t bytes, int dmabuf);
void on_uar(const Caller& caller, uint32_t page, void* reg_addr, void* base_addr);
void on_uar_freed(const void* object);
void on_object(const Caller& caller, std::span<const std::byte> command,
               std::span<const std::byte> answer);
void on_modified(const Caller& caller, std::span<const std::byte> command,
                 std::span<const std::byte> answer);

// Before a transition is asked for: the last look at a queue that it resets.
void before_modify(const Caller& caller, std::span<const std::byte> command);

// An object, or registered memory, ends with the call that follows. The last look at the queues
// that it concerns is taken here. Returns when they ended; where the call then fails, they are
// there again, as new lives. 0: there was nothing that lived, as where a job ends it twice.
uint64_t before_object_end(const Caller& caller);
uint64_t before_umem_end(const Caller& caller);
uint64_t before_memory_end(uint64_t begin, uint64_t bytes);
void on_object_kept(const Caller& caller, uint64_t since_ns);
void on_umem_kept(const Caller& caller, uint64_t since_ns);
void on_memory_kept(uint64_t begin, uint64_t bytes, uint64_t since_ns);
// The driver gave out memory that had not been freed by the hooks.
void on_memory_reused(uint64_t begin, uint64_t bytes);
// A context of the driver's has ended, and memory with it: queues there have.
void on_context_ended();
// The reader's choice for the queue of this entry and time of creation.
void tell_tier(uint32_t index, uint64_t created_ns, uint8_t tier, sigma_gpu_reason reason);
// A structure of the job's names the index of a queue.
void on_index(const PublishedIndex& found);
// Indices that stand there are read no more when this returns; it does not `wait` long for that.
void drop_indices(uint64_t begin, uint64_t bytes, bool wait);
// The reader's judgement of the index of the queue of this entry and time of creation.
void tell_index(uint32_t index, uint64_t created_ns, sigma_gpu_index_state state);
// The driver has registered host memory: what it covers a GPU can reach from now on.
void on_host_registered(uint64_t begin, uint64_t bytes, bool io_memory);

// In a forked child: it has copies of what its parent made, and none of it is its own.
void forget_queues();

}  // namespace sigma::gpu
