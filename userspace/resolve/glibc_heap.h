// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Is this address in live memory? Asked of glibc's malloc, in another process's heap.
//
// free() leaves most of an object as it was. A destroyed queue pair whose chunk was merged with a
// free neighbour is byte for byte a living one, back-pointers included, and only the allocator's
// own book-keeping tells. glibc keeps a header before each chunk (its size, and whether the chunk
// before it is in use), so that a walk from the start of an arena finds the chunk of any address.
//
// The layout is glibc's (malloc/malloc.c: malloc_chunk, arena.c: heap_info), unchanged for 64-bit
// since 2.3 and not an ABI: a walk counts only if it runs through to the very end of its arena,
// which a wrong start or another layout does not. Otherwise, and for other allocators, the answer
// is unknown.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "resolve/remote_memory.h"

namespace sigma {

struct HeapPlace {
  enum Kind : uint8_t {
    unknown,  // not in an arena of glibc's that could be walked
    in_use,   // in an allocated chunk, `offset` bytes after the pointer that malloc gave
    free,     // in a free chunk, or beyond the last one
  };
  Kind kind = unknown;
  uint64_t offset = 0;
};

// One place for each address; `addresses` in ascending order. Reads the arenas that hold any of
// them, and the maps again where a heap grew meanwhile.
std::vector<HeapPlace> find_heap_places(RemoteMemory& memory, std::span<const uint64_t> addresses,
                                        const ScanLimits& limits, ScanTotals& totals);

}  // namespace sigma
