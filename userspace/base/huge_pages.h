// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// HugePages: an allocator for large buffers that are filled from end to end and used again. What is a
// multiple of 2 MiB is asked to be huge pages. The first touch of a page of 4 KiB takes some 0.1 us on a
// bare machine, and took 14 us in a virtual machine with shadow page tables (0.3 us as part of a huge
// page): more than all that is done with the records in it.
#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <cstdlib>
#include <new>
#include <vector>

namespace sigma {

inline constexpr size_t kHugePageBytes = 2u << 20;

template <typename T>
struct HugePages {
  using value_type = T;
  HugePages() = default;
  template <typename U>
  HugePages(const HugePages<U>&) {}

  T* allocate(size_t count) {
    const size_t bytes = count * sizeof(T);
    const bool huge = bytes % kHugePageBytes == 0;
    void* memory = huge ? std::aligned_alloc(kHugePageBytes, bytes) : std::malloc(bytes);
    if (memory == nullptr) throw std::bad_alloc();
    if (huge) madvise(memory, bytes, MADV_HUGEPAGE);  // where they are not to be had, small ones serve
    return static_cast<T*>(memory);
  }
  void deallocate(T* memory, size_t) noexcept { std::free(memory); }

  template <typename U>
  bool operator==(const HugePages<U>&) const {
    return true;
  }
};

// Records, back to back, each at a multiple of 8 bytes.
using RecordBytes = std::vector<std::byte, HugePages<std::byte>>;

}  // namespace sigma
