// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// The driver's state in one process: contexts, streams, memory.
//
// One lock guards the tables and the streams' queues; work on a stream runs without it, on the
// stream's own thread. Nothing is ever torn down: threads and other libraries' destructors outlive
// static destruction. A forked child gets CUDA_ERROR_NOT_INITIALIZED, as with the real driver.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <vector>

#include "../cuda_driver.h"

namespace fake_cuda {

// ---- options.cpp: faults and sizes, from the environment (see ../README.md)
struct Options {
  int devices = 2;
  uint32_t copy_us = 0, jitter_us = 0;  // latency of each copy, and what may come on top
  double stall_probability = 0;         // of a copy, which then takes this much longer
  uint32_t stall_ms = 0;
  uint64_t hang_after = ~uint64_t{0};  // device-to-host copies that complete
  uint32_t lock_ms = 0;                // that allocations hold the context's lock beside a kernel
  uint64_t seed = 1;
  bool dma_buf = true, peer_memory = true;  // what the device can do for a NIC
  bool coherent = false;                    // host threads may touch device memory
};
const Options& options();

// ---- Streams
struct Work {
  std::function<void()> run;
  std::vector<std::shared_ptr<Work>> after;
  bool done = false;
};

struct Context;

struct Stream {
  Context* context = nullptr;
  unsigned flags = 0;
  int priority = 0;
  bool legacy = false;
  bool alive = true;
  std::deque<std::shared_ptr<Work>> queue;
  std::shared_ptr<Work> last;
  CUstreamCaptureStatus capture = CU_STREAM_CAPTURE_STATUS_NONE;
  CUstreamCaptureMode capture_mode = CU_STREAM_CAPTURE_MODE_RELAXED;
  uint64_t capture_thread = 0;

  bool blocking() const { return !(flags & CU_STREAM_NON_BLOCKING) && !legacy; }
};

struct Event {
  Context* context = nullptr;
  std::shared_ptr<Work> recorded;
};

struct Context {
  int device = 0;
  bool primary = false, alive = true;
  Stream* legacy = nullptr;
  std::set<Stream*> streams;
  // Held by calls that the real driver serializes: allocations, module loading, enqueueing.
  std::mutex lock;
  unsigned kernels = 0;  // running
};

// ---- Memory
enum class Kind : uint8_t { device, managed, mapped, host, registered, io };

struct Allocation {
  uint64_t address = 0, bytes = 0;
  Kind kind = Kind::device;
  Context* context = nullptr;
  int device = 0;
  bool sync_memops = false;
  bool peer = true;       // a NIC may reach it
  uint64_t host = 0;      // of registered memory
  uint64_t physical = 0;  // of a mapping: its handle
  unsigned flags = 0;
};

struct Physical {
  uint64_t offset = 0, bytes = 0;  // in the memory file
  int device = 0;
  unsigned references = 1;
  bool peer = false;
};

struct State {
  std::mutex lock;
  std::condition_variable changed;  // some work was queued, or is done
  bool initialized = false, forked = false, ending = false;
  std::vector<Context*> primaries;  // by device; null: not retained
  std::vector<unsigned> retained;
  std::set<Context*> contexts;  // alive
  std::set<Context*> destroyed;
  std::set<Stream*> streams;  // alive
  std::set<Event*> events;
  std::map<uint64_t, Allocation> memory;    // by address
  std::map<uint64_t, uint64_t> reserved;    // address ranges of VMM: begin to bytes
  std::map<uint64_t, Physical> physical;    // by handle
  std::map<uint64_t, Allocation> dma_bufs;  // by inode of the descriptor
  uint64_t next_handle = 1, device_copies = 0, random = 1;
};
State& state();

// CUDA_SUCCESS, or why no call can work now.
CUresult usable();
// The calling thread's context; null with `why` set.
Context* current(CUresult& why);
// As calls that a capture in global mode forbids: invalidates such captures.
CUresult capture_allows();

#define FAKE_CUDA_ENTER(context)         \
  CUresult why = usable();               \
  if (why != CUDA_SUCCESS) return why;   \
  Context* const context = current(why); \
  if (!context) return why

// ---- memory.cpp
// Where the device side and the NIC reach a device address; null: nothing there.
uint8_t* behind(uint64_t address, uint64_t bytes);
// The allocation that holds all of a range. The lock is held.
const Allocation* find_memory(uint64_t address, uint64_t bytes);
Allocation* find_memory_at(uint64_t address);
void drop_context_memory(Context& context);
// Where a device address stands in the memory file. The lock is held.
bool file_of(uint64_t address, int& fd, uint64_t& offset);
uint64_t take_addresses(uint64_t bytes, uint64_t alignment);  // 0: none left
// Memory of the host's own that the driver knows: `made` says what it is. Null: none left.
void* take_host_memory(Context& context, uint64_t bytes, Allocation made);
void hold_context_lock(Context& context);  // as long as options say while a kernel runs

// ---- views.cpp
void end_views(uint64_t begin, uint64_t bytes);  // the lock is held

// ---- streams.cpp
Stream* resolve(Context& context, CUstream handle, bool per_thread, CUresult& why);
Stream* make_stream(Context& context, unsigned flags, int priority, bool legacy);
// Queues work behind what is there, and behind the legacy stream's (or, there, all others').
std::shared_ptr<Work> enqueue(Stream& stream, std::function<void()> run);
void wait(const std::shared_ptr<Work>& work);
void end_streams(Context& context);

}  // namespace fake_cuda
