// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// A program that is linked with the real, static CUDA runtime, under the preloaded library: does the
// runtime get the driver's functions through our cuGetProcAddress, and ours among them?
//
// With a real driver it goes on to allocate memory; with the tests' own the runtime stops at its
// handshake, after it has asked for all functions.
#include <cuda_runtime_api.h>
#include <dlfcn.h>

#include <cstdio>
#include <cstring>
#include <set>
#include <string>

#include "gpu_interpose/registry.h"

namespace {

// Names that a runtime of this version may ask for and that have a wrapper: one for each name.
unsigned hooked_names() {
  std::set<std::string> names;
#define SIGMA_CUDA(symbol, base, since, until, stream) names.insert(base);
#include "gpu_interpose/hooks.def"
  return static_cast<unsigned>(names.size());
}

}  // namespace

int main() {
  const auto* registry =
      static_cast<const sigma_gpu_registry*>(dlsym(RTLD_DEFAULT, SIGMA_GPU_REGISTRY_NAME));
  if (!registry) {
    std::fprintf(stderr, "the library is not preloaded\n");
    return 1;
  }
  void* memory = nullptr;
  const cudaError_t result = cudaMalloc(&memory, 4096);
  std::printf("cudaMalloc: %s; %llu functions handed out as ours, of %u names that have a wrapper\n",
              cudaGetErrorString(result), static_cast<unsigned long long>(registry->wrapped),
              hooked_names());
  if (result == cudaSuccess) cudaFree(memory);
  for (unsigned i = 0; i < SIGMA_GPU_COUNTER_COUNT; ++i) {
    if (i == SIGMA_GPU_UNKNOWN_MEMORY || registry->counters[i] == 0) continue;
    std::fprintf(stderr, "counter %u of the registry is %llu\n", i,
                 static_cast<unsigned long long>(registry->counters[i]));
    return 1;
  }
  return registry->wrapped >= hooked_names() ? 0 : 1;
}
