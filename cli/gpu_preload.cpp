// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// The switches are the stacks' own (facts: sources of NVSHMEM 3.5 ibgda, NCCL 2.30 GIN). Those that
// put queues into host memory are only safe for kernels that order their stores for the system; it
// is not ours to say of NVSHMEM's users, so these are left alone: DeepEP V1 links NVSHMEM and orders
// for the GPU alone. A CPU thread that rings the doorbells, which NCCL has, changes no ordering.
#include "cli/gpu_preload.h"

#include <fmt/format.h>

#include <filesystem>

namespace sigma {
namespace {

struct Switch {
  const char* name;
  const char* value;
  const char* meaning;
};

constexpr Switch kLossless[] = {
    {"NCCL_GIN_GDAKI_NIC_HANDLER", "1",
     "NCCL GIN: a CPU thread rings the doorbells, at 1-2 us more for each and a core"},
    {"NCCL_GIN_GDAKI_QP_DEPTH", "4096", "NCCL GIN: queues of 4,096 requests instead of 128"},
    {"NVSHMEM_IBGDA_QP_DEPTH", "8192", "NVSHMEM: queues of 8,192 requests instead of 1,024"},
};

}  // namespace

Result<std::string> gpu_library_path() {
  namespace fs = std::filesystem;
  std::error_code error;
  const fs::path self = fs::read_symlink("/proc/self/exe", error);
  const fs::path library = self.parent_path().parent_path() / "lib" / "libsigmatrace_gpu.so";
  if (fs::exists(library, error)) return library.string();
  return Error{"the library for GPU-initiated queues is not here: no " + library.string(),
               "`scripts/build` builds it, and build/bin/sigmatrace finds it"};
}

Result<GpuPreload> gpu_preload(GpuMode mode, ValueOf value_of) {
  GpuPreload preload;
  if (mode == GpuMode::none) return preload;
  SIGMA_ASSIGN(const std::string library, gpu_library_path());
  // First: what it interposes must be found before others' copies. The list is parted by blanks.
  if (library.find_first_of(" :") != std::string::npos)
    return Error{"LD_PRELOAD cannot name " + library, "install sigmatrace where no path has a blank"};
  const char* others = value_of("LD_PRELOAD");
  const bool any = others != nullptr && *others != '\0';
  preload.environment.emplace_back("LD_PRELOAD", any ? library + " " + others : library);
  if (mode != GpuMode::lossless) return preload;
  for (const Switch& each : kLossless) {
    if (const char* own = value_of(each.name)) {
      preload.notes.push_back(fmt::format("{}={} is yours, and stays", each.name, own));
      continue;
    }
    preload.environment.emplace_back(each.name, each.value);
    preload.notes.push_back(fmt::format("{}={}: {}", each.name, each.value, each.meaning));
  }
  preload.notes.push_back(
      "NVSHMEM's queues stay in GPU memory: in host memory they are not safe for kernels of others "
      "that use them (DeepEP V1). What is overwritten unseen is counted, as ever");
  return preload;
}

}  // namespace sigma
