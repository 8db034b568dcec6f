// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Apart from the tests, for the library's declarations of CUDA and the driver's are two.
#include "reader/observed.h"

#include <dlfcn.h>
#include <sys/mman.h>

#include <optional>
#include <thread>

#include "gpu_interpose/sampler.h"

namespace rig {

using sigma::gpu::Sampler;

struct Observed::Parts {
  void* memory = mmap(nullptr, Sampler::memory_bytes(), PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  sigma::gpu::CudaCalls calls{};
  sigma::gpu::RecordBatch batch{Records::emit};
  sigma_gpu_queue entries[64] = {};
  sigma_gpu_registry registry{};
  std::optional<Sampler> sampler;
  std::thread thread;
  std::atomic<bool> stopping{false};
};

namespace {

// Of one sampler at a time, by entry.
sigma_gpu_index_state indices[64];

void note_index(uint32_t index, uint64_t, sigma_gpu_index_state state) {
  indices[index] = state;
}

bool find_gdrcopy(sigma::gpu::GdrCalls& calls) {
  return sigma::gpu::find_gdr_calls(
      calls, [](void* library, const char* symbol) { return dlsym(library, symbol); },
      RTLD_DEFAULT);
}

}  // namespace

Observed::Observed(const sigma::gpu::SamplerOptions& options, bool mapped) : parts_(new Parts) {
  REQUIRE(parts_->memory != MAP_FAILED);
  REQUIRE(sigma::gpu::find_calls(parts_->calls,
                                 [](const char* symbol) { return dlsym(RTLD_DEFAULT, symbol); }));
  parts_->registry.queues = parts_->entries;
  parts_->sampler.emplace(parts_->registry, &parts_->calls, parts_->batch, parts_->memory, options,
                          nullptr, mapped ? find_gdrcopy : nullptr);
  std::fill(std::begin(indices), std::end(indices), SIGMA_GPU_INDEX_NONE);
  parts_->sampler->tell_indices_to(note_index);
}

Observed::~Observed() {
  stop();
  parts_->sampler->forget();
  parts_->sampler->leave_device(-1);
  munmap(parts_->memory, Sampler::memory_bytes());
}

void Observed::add(const DeviceQueue& queue) {
  parts_->entries[parts_->registry.used++] = queue.entry();
}

void Observed::look() {
  parts_->sampler->look();
  parts_->batch.flush();
}

void Observed::refresh(uint64_t attached_ns) {
  parts_->sampler->refresh(attached_ns);
}

void Observed::end_all() {
  parts_->sampler->end_queues([](uint32_t) { return true; });
  parts_->batch.flush();
}

void Observed::reset(uint32_t i, const DeviceQueue& queue) {
  parts_->entries[i] = queue.entry();
  parts_->sampler->reset_queues([&](uint32_t each) { return each == i; });
  parts_->batch.flush();
}

void Observed::destroyed(uint32_t i) {
  parts_->entries[i].state = SIGMA_GPU_QUEUE_ENDED;
}

void Observed::leave_device(int device) {
  parts_->sampler->leave_device(device);
}

uint64_t Observed::told_of(uint32_t i) const {
  return parts_->sampler->told_of(i);
}

sigma_gpu_index_state Observed::index_of(uint32_t i) const {
  return indices[i];
}

void Observed::start() {
  parts_->thread = std::thread([this] {
    while (!parts_->stopping) {
      const uint64_t wait = parts_->sampler->look();
      sigma::gpu::pause_ns(wait);
    }
    parts_->batch.flush();
  });
}

void Observed::stop() {
  parts_->stopping = true;
  if (parts_->thread.joinable()) parts_->thread.join();
  parts_->stopping = false;
}

}  // namespace rig
