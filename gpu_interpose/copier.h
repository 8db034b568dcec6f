// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Copier: asynchronous copies out of one GPU's memory, on a stream of our own in the device's
// primary context; and the buffer that they go to.
//
// No call of it waits for the GPU: finish() polls. A call may still block inside the driver, where
// another thread holds the context's lock; so only the reader's thread makes them, and nobody waits
// for that thread without a limit. Never a second context, for it would take turns with a
// persistent kernel; never the legacy stream; never a synchronous copy.
//
// The buffer is memory of ours, lent to the driver: what the driver allocates goes with the
// context, which the job may end while we read there.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include <cstddef>

#include "gpu_interpose/cuda.h"

namespace sigma::gpu {

struct CudaCalls {
#define CALL(member, symbol, type, parameters) CUresult(*member) parameters;
#include "gpu_interpose/reader_calls.def"
#undef CALL
};
// Fills them by `find(symbol)`; false when one is missing.
bool find_calls(CudaCalls& calls, void* (*find)(const char* symbol));

class Copier {
 public:
  static constexpr size_t kBufferBytes = size_t{2} << 20;

  enum class Open : uint8_t { ready, inactive, failed };
  // `inactive`: the job has no primary context of this device now; try again later. We make none.
  Open open(const CudaCalls& calls, int device);
  // What was asked for and not finished is left to the driver, and so is the buffer then.
  void close();
  bool is_open() const { return stream_ != nullptr; }
  int device() const { return device_; }
  CUcontext context() const { return context_; }

  // No more copies: it is as if it were closed, but for close(), which asks the driver for nothing
  // before the job does. What is under way may come, to the buffer of before.
  void give_up();

  // Between these the context is current. Nothing is done while it is not open.
  bool enter();
  void leave();
  // The buffer is there. Copies also need open().
  bool has_buffer();

  // Where the bytes will be once finish() has said so; null: no room, or refused. Copies are done
  // one after the other.
  const std::byte* copy(uint64_t from, size_t bytes);
  // The same for bytes that are there now, of a window (window.h): `read(to)`.
  template <typename Read>
  const std::byte* take(Read&& read, size_t bytes) {
    if (!buffer_ || bytes > room()) return nullptr;
    std::byte* to = buffer_ + used_;
    if (!read(to)) return nullptr;
    advance(bytes);
    return to;
  }
  size_t room() const { return kBufferBytes - used_; }
  // What lies behind the first `used` bytes is not wanted any more. No copy may be under way.
  size_t used() const { return used_; }
  void rewind(size_t used) { used_ = used; }
  enum class Finish : uint8_t { done, late, failed };
  // `late`: not done within the limit. May be called again; nothing else may be before it is done.
  Finish finish(uint64_t limit_ns);
  CUresult last_error() const { return error_; }
  void forget_error() { error_ = cuda::kSuccess; }

 private:
  void advance(size_t bytes);

  CudaCalls calls_{};
  int device_ = -1;
  CUcontext context_ = nullptr;
  CUstream stream_ = nullptr;
  std::byte* buffer_ = nullptr;
  size_t used_ = 0;
  bool pending_ = false, registered_ = false, given_up_ = false;
  CUresult error_ = cuda::kSuccess;
};

// Sleeps; CLOCK_MONOTONIC in ns.
void pause_ns(uint64_t ns);
uint64_t now_ns();

}  // namespace sigma::gpu
