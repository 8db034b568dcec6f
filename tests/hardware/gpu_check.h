// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// gpu_check in two parts, for CUDA's declarations and the library's own are two: gpu_check.cu has the
// GPU's side, gpu_check_reader.cpp the reader.
#pragma once

#include <stdint.h>

namespace check {

// A queue that the persistent kernel posts to; device addresses, or host addresses that the GPU reaches.
struct Queue {
  unsigned long long ring, doorbell, cq;
  unsigned blocks, qp_num;
};

inline constexpr uint64_t kRemote = 0x5000'0000'0000;
__attribute__((unused)) inline uint64_t remote_of(uint64_t index) { return kRemote + (index & 0xffff) * 4096; }
__attribute__((unused)) inline uint32_t bytes_of(uint64_t index) { return 64 + (index & 0xffff) % 1000; }

struct Figures {
  uint64_t looks = 0, seen = 0, missed = 0, posted = 0, wrong = 0;
  double p50_us = 0, p99_us = 0, most_us = 0;  // of a look
  double open_us = 0;                          // the first look: stream and buffer are made in it
  const char* reason = "";                     // why the reader gave up, if it did
};

// Reads the queue for so long, with the library's own reader. `look_for(symbol)`: the driver's function.
Figures read_queue(const Queue& queue, double seconds, void* (*look_for)(const char* symbol));

}  // namespace check
