// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Writing an entry of the registry, with the registry's lock held.
#pragma once

#include <stdint.h>

#include <atomic>

#include "gpu_interpose/registry.h"

namespace sigma::gpu {

// What a reader from outside sees is either before or after `change`.
inline void write_entry(sigma_gpu_queue& queue, auto&& change) {
  std::atomic_ref<uint32_t> sequence(queue.sequence);
  const uint32_t before = sequence.load(std::memory_order_relaxed);
  sequence.store(before + 1, std::memory_order_relaxed);
  std::atomic_thread_fence(std::memory_order_release);
  change();
  sequence.store(before + 2, std::memory_order_release);
}

}  // namespace sigma::gpu
