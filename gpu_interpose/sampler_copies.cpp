// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// What a look reads: memory of the GPU by copies or windows, of the host at once.
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include "gpu_interpose/queue_facts.h"
#include "gpu_interpose/sampler.h"

namespace sigma::gpu {
namespace {

// Memory of this process that the job may unmap at any time: a fault must be an error.
bool read_host(uint64_t address, void* to, size_t bytes) {
  iovec here{to, bytes}, there{reinterpret_cast<void*>(address), bytes};
  return syscall(SYS_process_vm_readv, getpid(), &here, 1ul, &there, 1ul, 0ul) ==
         static_cast<long>(bytes);
}

}  // namespace

// False: this round is over. A late copy is waited for by the next.
bool Sampler::finish(Gpu& gpu, int device) {
  switch (gpu.copier.finish(limit_ns_)) {
    case Copier::Finish::done:
      return true;
    case Copier::Finish::late:
      gpu.waiting = true;
      gpu.waiting_since_ns = now_ns();
      return false;
    case Copier::Finish::failed:
      break;
  }
  if (gpu.copier.last_error() == cuda::kInvalidValue && drop_gone(device)) {
    gpu.copier.forget_error();
    gpu.waiting = true;  // for what was asked for before
    gpu.waiting_since_ns = now_ns();
  } else {
    give_up(device, "a copy failed");
  }
  return false;
}

// Of records in host memory the value is there at once; of others, when the copy is done.
bool Sampler::read_doorbell(Gpu& gpu, const Watched& watched, const std::byte*& at,
                            uint16_t& value) {
  const sigma_gpu_queue& queue = watched.send.queue();
  at = nullptr;
  if (queue.doorbell_addr == 0) return true;
  if (on_host(queue.doorbell_memory)) {
    std::byte record[kDoorbellBytes];
    if (!read_host(queue.doorbell_addr, record, sizeof record)) return false;
    value = send_doorbell(record);
    return true;
  }
  at = copy(gpu, watched.doorbell_window, queue.doorbell_addr, kDoorbellBytes);
  return at != nullptr;
}

const std::byte* Sampler::copy(Gpu& gpu, const Window* window, uint64_t from, size_t bytes) {
  if (!window) return gpu.copier.copy(from, bytes);
  if (bytes > gpu.copier.room()) return nullptr;
  const std::byte* found =
      gpu.copier.take([&](std::byte* to) { return read_window(*window, from, to, bytes); }, bytes);
  gpu.faulted |= !found;
  return found;
}

bool Sampler::copy_ring(Gpu& gpu, const Window* window, uint64_t base, uint32_t entries,
                        uint32_t entry_bytes, uint64_t first, uint32_t count,
                        const std::byte* (&pieces)[2]) {
  const uint32_t slot = static_cast<uint32_t>(first % entries);
  const uint32_t head = count < entries - slot ? count : entries - slot;
  pieces[0] = copy(gpu, window, base + uint64_t{slot} * entry_bytes, size_t{head} * entry_bytes);
  pieces[1] = nullptr;
  if (pieces[0] && head < count)
    pieces[1] = copy(gpu, window, base, size_t{count - head} * entry_bytes);
  return pieces[0] && (head == count || pieces[1]);
}

RingBytes Sampler::bytes_of(const std::byte* const (&pieces)[2], uint32_t entries,
                            uint32_t entry_bytes, uint64_t first, uint32_t count) {
  if (!pieces[0]) return RingBytes{};
  const uint32_t slot = static_cast<uint32_t>(first % entries);
  const uint32_t head = count < entries - slot ? count : entries - slot;
  const std::span<const std::byte> one(pieces[0], size_t{head} * entry_bytes);
  if (head == count) return RingBytes(one);
  return RingBytes(one, {pieces[1], size_t{count - head} * entry_bytes});
}

}  // namespace sigma::gpu
