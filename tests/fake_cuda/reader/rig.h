// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// What the reader's tests have in common.
#pragma once

#include <cstdlib>
#include <initializer_list>
#include <random>
#include <thread>
#include <utility>

#include "catch.h"
#include "cuda_driver.h"
#include "gpu_interpose/sampler_options.h"
#include "reader/device_queue.h"

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

// Beside the driver's options a test draws its own numbers: always the same, and printed.
inline std::mt19937 random_numbers(unsigned seed) {
  if (const char* text = getenv("SIGMA_TEST_SEED")) seed = static_cast<unsigned>(atoi(text));
  WARN("seed " << seed << " (SIGMA_TEST_SEED changes it)");
  return std::mt19937(seed);
}

// GPU threads and NIC in one: posts until so many blocks, completing what it must.
inline void post_freely(DeviceQueue& queue, uint64_t blocks, std::mt19937& random, unsigned batch) {
  const uint64_t end = queue.posted + blocks;
  while (queue.posted < end) {
    for (unsigned i = 1 + random() % batch; i > 0; --i) {
      if (!queue.has_room()) break;
      queue.post(random() % 4 == 0);
    }
    queue.ring_doorbell();
    if (!queue.has_room() || random() % 3 == 0)
      for (unsigned i = random() % 32; i > 0; --i) queue.complete_next();
    if (random() % 64 == 0) std::this_thread::yield();
  }
  queue.complete_all();
}

inline uint64_t posted_of(const DeviceQueue& queue) {
  return queue.posted - queue.shape().first_index;
}

}  // namespace rig
