// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
#include "gpu_interpose/driver.h"

#include "gpu_interpose/cuda.h"
#include "gpu_interpose/hooks.h"

namespace sigma::gpu {

MemoryFacts ask_driver(uint64_t address) {
  MemoryFacts facts;
  const auto ask = reinterpret_cast<CUresult (*)(void*, CUpointer_attribute, CUdeviceptr)>(
      loaded_function(Library::cuda, "cuPointerGetAttribute"));
  if (!ask) return facts;
  unsigned type = 0;
  if (ask(&type, cuda::kPointerMemoryType, address) != cuda::kSuccess) return facts;
  facts.memory = type == cuda::kMemoryDevice ? SIGMA_GPU_MEMORY_DEVICE
                 : type == cuda::kMemoryHost ? SIGMA_GPU_MEMORY_REGISTERED
                                             : SIGMA_GPU_MEMORY_UNKNOWN;
  int ordinal = -1;
  if (ask(&ordinal, cuda::kPointerDeviceOrdinal, address) == cuda::kSuccess) facts.gpu = ordinal;
  CUdeviceptr begin = 0;
  if (ask(&begin, cuda::kPointerRangeStart, address) == cuda::kSuccess) facts.allocation = begin;
  return facts;
}

bool primary_is_active(int device) {
  const auto ask = reinterpret_cast<CUresult (*)(int, unsigned*, int*)>(
      loaded_function(Library::cuda, "cuDevicePrimaryCtxGetState"));
  unsigned flags = 0;
  int active = 0;
  return ask && ask(device, &flags, &active) == cuda::kSuccess && active;
}

}  // namespace sigma::gpu
