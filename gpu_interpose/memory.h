// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// What kind of memory an address is: a table of the ranges that the CUDA driver gave, registered or
// mapped, kept by the hooks, so that at a queue's set-up nothing has to be asked of the driver
// while a kernel may hold its locks. Fixed size; what does not fit is counted, and asked of the
// driver then. Any thread.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "gpu_interpose/registry.h"

namespace sigma::gpu {

struct Range {
  uint64_t begin = 0;
  uint64_t bytes = 0;
  sigma_gpu_memory memory = SIGMA_GPU_MEMORY_UNKNOWN;
};

// Ranges of the table that it overlaps are forgotten: they have been freed past the hooks. True if
// there were any.
bool add_range(const Range& range);
// The range that begins at `begin`, and what it was.
bool remove_range(uint64_t begin, Range& removed);
bool find_range(uint64_t address, Range& found);

// From the table, else from the driver, else plain host memory.
struct MemoryFacts {
  sigma_gpu_memory memory = SIGMA_GPU_MEMORY_UNKNOWN;
  int gpu = -1;             // device ordinal; -1: not known yet
  uint64_t allocation = 0;  // where the allocation that holds it begins
};
MemoryFacts memory_of(uint64_t address);

// In a forked child, where the table is nobody's.
void forget_ranges();

}  // namespace sigma::gpu
