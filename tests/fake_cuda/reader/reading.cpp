// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
#include "reader/reading.h"

#include <dlfcn.h>
#include <sys/mman.h>

#include <optional>
#include <thread>

#include "gpu_interpose/sampler.h"

namespace rig {

using sigma::gpu::Sampler;

struct Reading::Parts {
  void* memory = mmap(nullptr, Sampler::memory_bytes(), PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  sigma::gpu::CudaCalls calls{};
  sigma::gpu::RecordBatch batch{[](const void*, uint32_t) {}};
  sigma_gpu_queue entry{};
  sigma_gpu_registry registry{};
  std::optional<Sampler> sampler;
  std::atomic<bool> stopping{false};
  std::thread thread;
};

Reading::Reading(const DeviceQueue& queue, const std::string& how) {
  if (how != "tier3" && how != "tier5") return;
  parts_ = std::make_unique<Parts>();
  Parts& parts = *parts_;
  sigma::gpu::find_calls(parts.calls, [](const char* symbol) { return dlsym(RTLD_DEFAULT, symbol); });
  parts.entry = queue.entry();
  parts.registry.queues = &parts.entry;
  parts.registry.used = 1;
  sigma::gpu::SamplerOptions options;
  options.snapshots_only = how == "tier5";
  parts.sampler.emplace(parts.registry, &parts.calls, parts.batch, parts.memory, options);
  parts.sampler->refresh(0);
  parts.thread = std::thread([&parts] {
    while (!parts.stopping) sigma::gpu::pause_ns(parts.sampler->look());
  });
}

Reading::~Reading() {
  if (!parts_) return;
  parts_->stopping = true;
  parts_->thread.join();
  parts_->sampler->leave_device(-1);
  munmap(parts_->memory, Sampler::memory_bytes());
}

}  // namespace rig
