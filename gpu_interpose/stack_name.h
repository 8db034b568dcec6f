// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Which communication library makes a queue: by the path of the object that called.
#pragma once

#include "gpu_interpose/registry.h"

namespace sigma::gpu {

sigma_gpu_stack stack_of(const void* caller);

}  // namespace sigma::gpu
