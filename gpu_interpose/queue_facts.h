// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// What set-up commands say of a queue, put into its entry of the registry. Values in, values out.
#pragma once

#include "decode/prm.h"
#include "gpu_interpose/registry.h"

namespace sigma::gpu {

// Read by a look of its own, without the driver.
inline bool on_host(uint8_t memory) {
  return memory == SIGMA_GPU_MEMORY_HOST || memory == SIGMA_GPU_MEMORY_REGISTERED;
}
// Whether a GPU posts to it, and how it could be read. A GPU needs to reach the ring, and either
// the doorbell or a CPU thread that rings for it: a ring that it reaches is enough.
void classify(sigma_gpu_queue& queue);
// Of a create command or a transition.
void apply_attributes(sigma_gpu_queue& queue, const PrmFacts& facts);

bool overlaps(uint64_t address, uint64_t bytes, uint64_t begin, uint64_t length);
// Its ring, its doorbell record or its completions do.
bool stands_in(const sigma_gpu_queue& queue, uint64_t begin, uint64_t bytes);

}  // namespace sigma::gpu
