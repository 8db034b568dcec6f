// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// What the reader's tests have in common.
#pragma once

#include <cstdlib>
#include <initializer_list>
#include <utility>

#include "catch.h"
#include "cuda_driver.h"
#include "gpu_interpose/sampler_options.h"

namespace rig {

// No round is lost, however loaded the machine.
inline sigma::gpu::SamplerOptions patient() {
  sigma::gpu::SamplerOptions options;
  options.copy_limit_ns = options.last_limit_ns = 100'000'000'000;
  return options;
}

struct Driver {
  CUcontext context;
  explicit Driver(std::initializer_list<std::pair<const char*, const char*>> options = {}) {
    for (const auto& [name, value] : options) setenv(name, value, 1);
    REQUIRE(cuInit(0) == CUDA_SUCCESS);
    REQUIRE(cuDevicePrimaryCtxRetain(&context, 0) == CUDA_SUCCESS);
    REQUIRE(cuCtxSetCurrent(context) == CUDA_SUCCESS);
  }
};

}  // namespace rig
