// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
#include "gpu_interpose/stack_name.h"

#include "gpu_interpose/hooks.h"
#include "gpu_interpose/text.h"

namespace sigma::gpu {
namespace {

// The more particular first: DeepEP and Mooncake may link what others are made of.
constexpr struct {
  const char* part;  // of the file's name
  sigma_gpu_stack stack;
} kStacks[] = {
    {"nvshmem", SIGMA_GPU_STACK_NVSHMEM},   {"deep_ep", SIGMA_GPU_STACK_DEEPEP},
    {"deepep", SIGMA_GPU_STACK_DEEPEP},     {"mooncake", SIGMA_GPU_STACK_MOONCAKE},
    {"rocshmem", SIGMA_GPU_STACK_ROCSHMEM}, {"mori", SIGMA_GPU_STACK_MORI},
    {"libuct", SIGMA_GPU_STACK_UCX},        {"ucx", SIGMA_GPU_STACK_UCX},
    {"nccl", SIGMA_GPU_STACK_DOCA},         {"doca", SIGMA_GPU_STACK_DOCA},
};

const char* name_of(const char* path) {
  const char* name = path;
  for (; *path; ++path)
    if (*path == '/') name = path + 1;
  return name;
}

}  // namespace

sigma_gpu_stack stack_of(const void* caller) {
  const char* path = caller ? object_of(caller) : nullptr;
  if (!path) return SIGMA_GPU_STACK_UNKNOWN;
  for (const auto& [part, stack] : kStacks)
    if (contains_text(name_of(path), part)) return stack;
  return SIGMA_GPU_STACK_UNKNOWN;
}

}  // namespace sigma::gpu
