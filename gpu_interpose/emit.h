// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// The way out: batches of records (bpf/records.h: SIGMA_RING, _POST, _COMPLETION, _GAP) to whoever
// traces this process.
//
//   if (tracer_present()) { ... read queues, fill a batch ...; sigmatrace_gpu_emit(batch, bytes); }
//
// Nobody need be there: the function does nothing by itself. A tracer's probe at its first
// instruction copies the batch, at most SIGMA_GPU_BATCH_RECORDS and SIGMA_GPU_BATCH_BYTES of it, and
// stamps time, CPU, pid and tid over what the headers say. C and C++.
#pragma once

#include <stdint.h>

#include "bpf/config.h"
#include "bpf/records.h"

#ifdef __cplusplus
extern "C" {
#endif

// `records`: packed one behind the other, each with type and size in its header; in memory that the
// caller has just written, for the probe cannot fault a page in. Any thread.
__attribute__((visibility("default"))) void sigmatrace_gpu_emit(const void* records,
                                                                uint32_t bytes);

// The kernel counts here the probes on sigmatrace_gpu_emit in this process, from their attach to
// their end, also that of a tracer which is killed.
__attribute__((visibility("default"))) extern volatile uint16_t sigmatrace_gpu_tracers;

#ifdef __cplusplus
}

namespace sigma::gpu {

// Costs a load. Any thread.
inline bool tracer_present() {
  return __atomic_load_n(&sigmatrace_gpu_tracers, __ATOMIC_RELAXED) != 0;
}

}  // namespace sigma::gpu
#endif
