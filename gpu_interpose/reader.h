// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// The reader: one thread that reads queues in device memory while a tracer is attached (sampler.h),
// and what the hooks say to it. Nothing here keeps the job waiting for the GPU or for the driver:
// where the thread does not answer in time it is left behind, and its loss is declared.
//
// Environment, read when the thread starts: SIGMATRACE_GPU_TIER=3 (memory is not mapped, but
// copied), or 5 (nothing is sampled, snapshots only), SIGMATRACE_GPU_HANG_MS (posted and unmoved
// for so long is a hang; 5000), SIGMATRACE_GPU_WAIT_MS (that the job waits for a last look, at
// most; 20), SIGMATRACE_GPU_MOST_POSTS (to one queue in a second; 20,000,000: after how long
// without a look counts are modulo 65,536), SIGMATRACE_GPU_SIGNAL=N (a signal of default
// disposition, on which all rings are told).
#pragma once

#include <stdint.h>

#include <atomic>

namespace sigma::gpu {

// A queue came or changed. Starts the thread at the first one in device memory.
void reader_queues_changed(bool in_device_memory);

// The last look at queues that are about to go, from before the job's call:
//   if (reader_listens()) { reader_mark(i, ends)...; reader_wait(); }   the entries' marks are then
//   cleared by reader_gone(i), when the registry says that they have ended.
// Other marks are cleared by reader_unmark(i), whether the reader has come to them or not.
enum class ReaderMark : uint8_t {
  none,
  ends,
  look,   // as a last look, but the queue stays
  reset,  // the entry is a new life of a queue that was reset
};
bool reader_listens();
void reader_mark(uint32_t index, ReaderMark mark);
void reader_unmark(uint32_t index);
void reader_wait();
void reader_gone(uint32_t index);

// Around a call that may end a context: the reader has taken its last looks and left it meanwhile.
class ReaderPause {
 public:
  ReaderPause();
  ~ReaderPause();
  ReaderPause(const ReaderPause&) = delete;
  ReaderPause& operator=(const ReaderPause&) = delete;
};

// In a forked child there is no thread.
void reader_after_fork();

}  // namespace sigma::gpu
