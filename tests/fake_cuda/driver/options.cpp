// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
#include <cstdlib>
#include <cstring>

#include "state.h"

namespace fake_cuda {
namespace {

double number(const char* name, double otherwise) {
  const char* text = getenv(name);
  return text && *text ? strtod(text, nullptr) : otherwise;
}

Options load() {
  Options result;
  result.devices = static_cast<int>(number("SIGMA_CUDA_DEVICES", 2));
  result.copy_us = static_cast<uint32_t>(number("SIGMA_CUDA_COPY_US", 0));
  result.jitter_us = static_cast<uint32_t>(number("SIGMA_CUDA_JITTER_US", 0));
  result.lock_ms = static_cast<uint32_t>(number("SIGMA_CUDA_LOCK_MS", 0));
  result.seed = static_cast<uint64_t>(number("SIGMA_CUDA_SEED", 1));
  result.dma_buf = number("SIGMA_CUDA_DMABUF", 1) != 0;
  result.peer_memory = number("SIGMA_CUDA_PEERMEM", 1) != 0;
  result.coherent = number("SIGMA_CUDA_COHERENT", 0) != 0;
  if (const char* text = getenv("SIGMA_CUDA_HANG_AFTER"); text && *text)
    result.hang_after = strtoull(text, nullptr, 10);
  if (const char* text = getenv("SIGMA_CUDA_STALL"); text && *text) {
    char* rest;
    result.stall_probability = strtod(text, &rest);
    result.stall_ms = *rest == ':' ? static_cast<uint32_t>(strtoul(rest + 1, nullptr, 10)) : 10;
  }
  return result;
}

}  // namespace

const Options& options() {
  static const Options* const loaded = new Options(load());
  return *loaded;
}

}  // namespace fake_cuda
