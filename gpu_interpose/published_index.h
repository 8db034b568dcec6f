// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Where stacks keep the 64-bit producer indices of their queues: in the structures that they copy
// to the GPU for their kernels. A copy of the job's to device memory is searched, while there are
// queues without an index, for a structure of a known layout that names a queue's number and two
// of its addresses.
//
// No other memory is searched: of what a GPU's memory holds beside that, nobody could say that it
// may be read, or for how long it is there.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "gpu_interpose/registry.h"

namespace sigma::gpu {

// What a structure says, to be compared with the queues that are known. 0: it says nothing of that.
struct PublishedIndex {
  uint32_t qp_num = 0;
  uint64_t ring = 0;
  uint64_t record = 0;  // the doorbell record, or its second half
  uint64_t completions = 0;
  uint64_t index = 0;   // where the index itself is
  uint32_t behind = 0;  // how far it may be behind the doorbell record, in blocks
};

// A queue whose index is not known has come, its ring there. Any thread.
void want_index(uint64_t ring_addr);
// The job has copied this to the device's memory. Any thread; bounded, and cheap while nothing is
// wanted.
void on_copied_to_device(uint64_t to, const void* from, size_t bytes);

}  // namespace sigma::gpu
