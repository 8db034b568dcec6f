// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// What the library itself asks of the CUDA driver, past all hooks.
#pragma once

#include "gpu_interpose/memory.h"

namespace sigma::gpu {

// What the driver knows of an address: memory unknown when it does not know it, or is not loaded.
MemoryFacts ask_driver(uint64_t address);
// The device's primary context is there. False where that cannot be told.
bool primary_is_active(int device);

}  // namespace sigma::gpu
