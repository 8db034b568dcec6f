// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Copier: asynchronous copies out of one GPU's memory, on a stream of our own in the device's
// primary context.
//
// No call of it waits for the GPU: finish() polls. A call may still block inside the driver, where
// another thread holds the context's lock; so only the reader's thread makes them, and nobody waits
// for that thread without a limit. Never a second context, for it would take turns with a
// persistent kernel; never the legacy stream; never a synchronous copy.
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
  // What was asked for and not finished is left to the driver.
  void close();
  bool is_open() const { return stream_ != nullptr; }
  int device() const { return device_; }
  CUcontext context() const { return context_; }

  // Between these the context is current.
  bool enter();
  void leave();

  // Where the bytes will be once finish() has said so; null: no room, or refused. Copies are done
  // one after the other.
  const std::byte* copy(uint64_t from, size_t bytes);
  size_t room() const { return kBufferBytes - used_; }
  // What lies behind the first `used` bytes is not wanted any more. No copy may be under way.
  size_t used() const { return used_; }
  void rewind(size_t used) { used_ = used; }
  enum class Finish : uint8_t { done, late, failed };
  // `late`: not done within the limit. May be called again; nothing else may be before it is done.
  Finish finish(uint64_t limit_ns);
  CUresult last_error() const { return error_; }

 private:
  CudaCalls calls_{};
  int device_ = -1;
  CUcontext context_ = nullptr;
  CUstream stream_ = nullptr;
  std::byte* buffer_ = nullptr;
  size_t used_ = 0;
  CUresult error_ = cuda::kSuccess;
};

// Sleeps; CLOCK_MONOTONIC in ns.
void pause_ns(uint64_t ns);
uint64_t now_ns();

}  // namespace sigma::gpu
