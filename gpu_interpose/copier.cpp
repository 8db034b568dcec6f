// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
#include "gpu_interpose/copier.h"

#include <sys/mman.h>
#include <time.h>

namespace sigma::gpu {

bool find_calls(CudaCalls& calls, void* (*find)(const char* symbol)) {
#define CALL(member, symbol, type, parameters) \
  calls.member = reinterpret_cast<decltype(calls.member)>(find(#symbol));
#include "gpu_interpose/reader_calls.def"
#undef CALL
  bool all = true;
#define CALL(member, symbol, type, parameters) all = all && calls.member;
#include "gpu_interpose/reader_calls.def"
#undef CALL
  return all;
}

uint64_t now_ns() {
  timespec time{};
  clock_gettime(CLOCK_MONOTONIC, &time);
  return static_cast<uint64_t>(time.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(time.tv_nsec);
}

void pause_ns(uint64_t ns) {
  const timespec time{static_cast<time_t>(ns / 1'000'000'000),
                      static_cast<long>(ns % 1'000'000'000)};
  nanosleep(&time, nullptr);
}

bool Copier::has_buffer() {
  if (buffer_) return true;
  void* memory = mmap(nullptr, kBufferBytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) return false;
  madvise(memory, kBufferBytes, MADV_DONTFORK);  // a child's copies would take the pages away
  buffer_ = static_cast<std::byte*>(memory);
  return true;
}

Copier::Open Copier::open(const CudaCalls& calls, int device) {
  calls_ = calls;
  device_ = device;
  unsigned flags = 0;
  int active = 0;
  if (!has_buffer() || calls.primary_state(device, &flags, &active) != cuda::kSuccess)
    return Open::failed;
  if (!active) return Open::inactive;
  error_ = calls.primary_retain(&context_, device);
  if (error_ != cuda::kSuccess) return Open::failed;
  int mode = cuda::kCaptureRelaxed;
  if (enter()) {
    // A capture of the job's, in any mode, does not mind what this thread does.
    calls.capture_mode(&mode);
    error_ = calls.stream_create(&stream_, cuda::kStreamNonBlocking);
    if (error_ == cuda::kSuccess)
      error_ = calls.host_register(buffer_, kBufferBytes, cuda::kHostRegisterPortable);
    registered_ = error_ == cuda::kSuccess;
    leave();
  }
  if (stream_ && registered_) return Open::ready;
  close();
  return Open::failed;
}

void Copier::close() {
  if (context_ && calls_.push(context_) == cuda::kSuccess) {
    if (stream_) calls_.stream_destroy(stream_);
    if (registered_ && !pending_ && !given_up_) calls_.host_unregister(buffer_);
    CUcontext ignored;
    calls_.pop(&ignored);
  }
  if (context_) calls_.primary_release(device_);
  // A copy that is under way may still come: to memory that nobody uses any more.
  if (pending_) buffer_ = nullptr;
  context_ = nullptr;
  stream_ = nullptr;
  pending_ = registered_ = given_up_ = false;
  error_ = cuda::kSuccess;
  used_ = 0;
}

void Copier::give_up() {
  if (!context_) return;
  given_up_ = true;
  buffer_ = nullptr;
  pending_ = false;
  error_ = cuda::kSuccess;
  used_ = 0;
}

bool Copier::enter() {
  if (!context_ || given_up_) return true;
  const CUresult result = calls_.push(context_);
  if (result != cuda::kSuccess) error_ = result;
  return result == cuda::kSuccess;
}

void Copier::leave() {
  CUcontext ignored;
  if (context_ && !given_up_) calls_.pop(&ignored);
}

void Copier::advance(size_t bytes) {
  constexpr size_t kAlign = 64;
  used_ += (bytes + kAlign - 1) / kAlign * kAlign;
  if (used_ > kBufferBytes) used_ = kBufferBytes;
}

const std::byte* Copier::copy(uint64_t from, size_t bytes) {
  if (!stream_ || given_up_ || error_ != cuda::kSuccess || bytes > room()) return nullptr;
  std::byte* to = buffer_ + used_;
  error_ = calls_.copy(to, from, bytes, stream_);
  if (error_ != cuda::kSuccess) return nullptr;
  pending_ = true;
  advance(bytes);
  return to;
}

// A copy takes 6 to 10 us: a few looks at once, then ever longer pauses.
Copier::Finish Copier::finish(uint64_t limit_ns) {
  if (error_ != cuda::kSuccess) return Finish::failed;
  if (!pending_) return Finish::done;
  const uint64_t begin = now_ns();
  uint64_t pause = 2'000;
  for (;;) {
    const CUresult result = calls_.stream_query(stream_);
    if (result == cuda::kSuccess) {
      pending_ = false;
      return Finish::done;
    }
    if (result != cuda::kNotReady) {
      error_ = result;
      return Finish::failed;
    }
    if (now_ns() - begin >= limit_ns) return Finish::late;
    pause_ns(pause);
    if (pause < 1'000'000) pause += pause / 2;
  }
}

}  // namespace sigma::gpu
