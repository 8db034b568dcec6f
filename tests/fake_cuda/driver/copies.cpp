// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Copies: asynchronous ones are work on a stream, synchronous ones on the default stream, waited
// for. A copy is no snapshot: it moves cache line after cache line while others write.
#include <algorithm>
#include <cstring>
#include <ctime>

#include "state.h"

namespace fake_cuda {
namespace {

constexpr size_t kLine = 64;

struct Delay {
  uint64_t ns = 0;
  bool forever = false;
};

uint64_t random_bits() {
  uint64_t& x = state().random;
  x ^= x << 13;
  x ^= x >> 7;
  x ^= x << 17;
  return x;
}

// The lock is held.
Delay delay_of(bool from_device, bool default_stream) {
  Delay delay;
  delay.ns = uint64_t{options().copy_us} * 1000;
  if (options().jitter_us > 0) delay.ns += random_bits() % (uint64_t{options().jitter_us} * 1000);
  if (options().stall_probability > 0 &&
      static_cast<double>(random_bits() >> 11) * 0x1p-53 < options().stall_probability)
    delay.ns += uint64_t{options().stall_ms} * 1'000'000;
  if (from_device && !default_stream)
    delay.forever = state().device_copies++ >= options().hang_after;
  return delay;
}

void pass_time(const Stream& stream, Delay delay) {
  if (delay.ns > 0) {
    const timespec pause{static_cast<time_t>(delay.ns / 1'000'000'000),
                         static_cast<long>(delay.ns % 1'000'000'000)};
    nanosleep(&pause, nullptr);
  }
  if (!delay.forever) return;
  std::unique_lock<std::mutex> hold(state().lock);
  state().changed.wait(hold, [&] { return !stream.alive; });
}

void move(uint8_t* to, const uint8_t* from, size_t bytes) {
  while (bytes > 0) {
    const size_t piece = std::min(bytes, kLine - reinterpret_cast<uintptr_t>(from) % kLine);
    memcpy(to, from, piece);
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
    to += piece, from += piece, bytes -= piece;
  }
}

enum class Side { host, device, either };

// Addresses are resolved when the copy is asked for: a free before it has run is the caller's
// fault.
CUresult place(uint64_t address, size_t bytes, Side side, uint8_t*& out, bool& on_device) {
  const Allocation* found = find_memory(address, bytes);
  on_device = found && (found->kind == Kind::device || found->kind == Kind::mapped);
  if (side == Side::device && !found) return CUDA_ERROR_INVALID_VALUE;
  if (side == Side::host && on_device) return CUDA_ERROR_INVALID_VALUE;
  out = found ? behind(address, bytes) : reinterpret_cast<uint8_t*>(address);
  return CUDA_SUCCESS;
}

struct Request {
  uint64_t to, from;
  size_t bytes;
  Side to_side, from_side;
  CUstream stream;
  bool per_thread, synchronous;
};

CUresult copy(const Request& request) {
  FAKE_CUDA_ENTER(context);
  if (request.bytes == 0) return CUDA_SUCCESS;
  if (request.synchronous)
    if (const CUresult refused = capture_allows()) return refused;
  std::shared_ptr<Work> work;
  {
    std::lock_guard<std::mutex> driver(context->lock);
    std::lock_guard<std::mutex> hold(state().lock);
    Stream* stream = resolve(*context, request.stream, request.per_thread, why);
    if (!stream) return why;
    uint8_t *to, *from;
    bool to_device, from_device;
    why = place(request.to, request.bytes, request.to_side, to, to_device);
    if (why == CUDA_SUCCESS)
      why = place(request.from, request.bytes, request.from_side, from, from_device);
    if (why != CUDA_SUCCESS) return why;
    const Delay delay = delay_of(from_device && !to_device, stream->legacy);
    work = enqueue(*stream, [=, bytes = request.bytes] {
      pass_time(*stream, delay);
      if (!delay.forever) move(to, from, bytes);
    });
  }
  if (request.synchronous) wait(work);
  return CUDA_SUCCESS;
}

CUresult fill(CUdeviceptr to, unsigned char value, size_t bytes, CUstream handle, bool per_thread,
              bool synchronous) {
  FAKE_CUDA_ENTER(context);
  if (synchronous)
    if (const CUresult refused = capture_allows()) return refused;
  std::shared_ptr<Work> work;
  {
    std::lock_guard<std::mutex> driver(context->lock);
    std::lock_guard<std::mutex> hold(state().lock);
    Stream* stream = resolve(*context, handle, per_thread, why);
    if (!stream) return why;
    uint8_t* target;
    bool on_device;
    why = place(to, bytes, Side::device, target, on_device);
    if (why != CUDA_SUCCESS) return why;
    work = enqueue(*stream, [=] { memset(target, value, bytes); });
  }
  if (synchronous) wait(work);
  return CUDA_SUCCESS;
}

}  // namespace
}  // namespace fake_cuda

using namespace fake_cuda;

// One row a function: where to, where from.
#define COPY(name, to_type, from_type, to_kind, from_kind)                                        \
  CUresult name##_v2(to_type to, from_type from, size_t bytes) {                                  \
    return copy({(uint64_t)to, (uint64_t)from, bytes, to_kind, from_kind, nullptr, false, true}); \
  }                                                                                               \
  CUresult name##_v2_ptds(to_type to, from_type from, size_t bytes) {                             \
    return copy({(uint64_t)to, (uint64_t)from, bytes, to_kind, from_kind, nullptr, true, true});  \
  }                                                                                               \
  CUresult name##Async_v2(to_type to, from_type from, size_t bytes, CUstream stream) {            \
    return copy({(uint64_t)to, (uint64_t)from, bytes, to_kind, from_kind, stream, false, false}); \
  }                                                                                               \
  CUresult name##Async_v2_ptsz(to_type to, from_type from, size_t bytes, CUstream stream) {       \
    return copy({(uint64_t)to, (uint64_t)from, bytes, to_kind, from_kind, stream, true, false});  \
  }
COPY(cuMemcpyHtoD, CUdeviceptr, const void*, Side::device, Side::host)
COPY(cuMemcpyDtoH, void*, CUdeviceptr, Side::host, Side::device)
COPY(cuMemcpyDtoD, CUdeviceptr, CUdeviceptr, Side::device, Side::device)

CUresult cuMemcpy(CUdeviceptr to, CUdeviceptr from, size_t bytes) {
  return copy({to, from, bytes, Side::either, Side::either, nullptr, false, true});
}
CUresult cuMemcpy_ptds(CUdeviceptr to, CUdeviceptr from, size_t bytes) {
  return copy({to, from, bytes, Side::either, Side::either, nullptr, true, true});
}
CUresult cuMemcpyAsync(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream) {
  return copy({to, from, bytes, Side::either, Side::either, stream, false, false});
}
CUresult cuMemcpyAsync_ptsz(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream) {
  return copy({to, from, bytes, Side::either, Side::either, stream, true, false});
}

CUresult cuMemsetD8_v2(CUdeviceptr to, unsigned char value, size_t bytes) {
  return fill(to, value, bytes, nullptr, false, true);
}
CUresult cuMemsetD8_v2_ptds(CUdeviceptr to, unsigned char value, size_t bytes) {
  return fill(to, value, bytes, nullptr, true, true);
}
CUresult cuMemsetD8Async(CUdeviceptr to, unsigned char value, size_t bytes, CUstream stream) {
  return fill(to, value, bytes, stream, false, false);
}
CUresult cuMemsetD8Async_ptsz(CUdeviceptr to, unsigned char value, size_t bytes, CUstream stream) {
  return fill(to, value, bytes, stream, true, false);
}
