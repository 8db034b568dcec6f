// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
#include "gpu_interpose/memory.h"

#include <string.h>

#include "gpu_interpose/driver.h"
#include "gpu_interpose/lock.h"
#include "gpu_interpose/queues.h"

namespace sigma::gpu {
namespace {

// PyTorch's expandable segments map 2 MiB pieces: 80 GiB are 40,960 of them. Untouched entries cost
// no memory.
constexpr size_t kCapacity = 65'536;

SpinLock lock;
Range ranges[kCapacity];  // by address, not overlapping
size_t used = 0;

// The first range that ends behind `address`.
size_t position_of(uint64_t address) {
  size_t low = 0, high = used;
  while (low < high) {
    const size_t middle = (low + high) / 2;
    if (ranges[middle].begin + ranges[middle].bytes <= address)
      low = middle + 1;
    else
      high = middle;
  }
  return low;
}

void erase(size_t first, size_t count) {
  if (count == 0) return;
  memmove(&ranges[first], &ranges[first + count], (used - first - count) * sizeof(Range));
  used -= count;
}

}  // namespace

bool add_range(const Range& range) {
  if (range.bytes == 0 || range.begin + range.bytes < range.begin) return false;
  const Locked locked(lock);
  const size_t at = position_of(range.begin);
  size_t end = at;
  while (end < used && ranges[end].begin < range.begin + range.bytes) ++end;
  erase(at, end - at);
  if (used == kCapacity) {
    count(SIGMA_GPU_RANGES_FULL);
    return end > at;
  }
  memmove(&ranges[at + 1], &ranges[at], (used - at) * sizeof(Range));
  ranges[at] = range;
  ++used;
  return end > at;
}

bool remove_range(uint64_t begin, Range& removed) {
  const Locked locked(lock);
  const size_t at = position_of(begin);
  if (at == used || ranges[at].begin != begin) return false;
  removed = ranges[at];
  erase(at, 1);
  return true;
}

bool find_range(uint64_t address, Range& found) {
  const Locked locked(lock);
  const size_t at = position_of(address);
  if (at == used || address < ranges[at].begin) return false;
  found = ranges[at];
  return true;
}

MemoryFacts memory_of(uint64_t address) {
  Range range;
  if (find_range(address, range)) return {range.memory, -1, range.begin};
  MemoryFacts facts = ask_driver(address);
  if (facts.memory == SIGMA_GPU_MEMORY_UNKNOWN) facts.memory = SIGMA_GPU_MEMORY_HOST;
  return facts;
}

void forget_ranges() {
  lock.unlock();
  used = 0;
}

}  // namespace sigma::gpu
