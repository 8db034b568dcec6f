// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// The first bytes of a structure in the owner's memory, whose layout is not known: as far as its
// pages are there.
#pragma once

#include <algorithm>
#include <cstring>
#include <vector>

#include "observe/owner_memory.h"

namespace sigma {

class ObjectWindow {
 public:
  // At most `bytes` from `address` on (8-byte aligned); shorter where a page is missing.
  ObjectWindow(const OwnerMemory& memory, uint64_t address, size_t bytes) : address_(address) {
    constexpr uint64_t kPage = 4096;
    while (bytes_.size() < bytes) {
      const uint64_t at = address + bytes_.size();
      const size_t part = std::min<size_t>(bytes - bytes_.size(), kPage - at % kPage);
      bytes_.resize(bytes_.size() + part);
      if (memory.read(at, std::span(bytes_).last(part))) continue;
      bytes_.resize(bytes_.size() - part);
      break;
    }
  }

  uint64_t address() const { return address_; }
  size_t size() const { return bytes_.size(); }
  // 0 beyond the end: no field that anybody looks for.
  uint64_t word(size_t offset) const { return at<uint64_t>(offset); }
  uint32_t half(size_t offset) const { return at<uint32_t>(offset); }
  // Between these offsets.
  bool has_word(uint64_t value, size_t from = 0, size_t end = ~size_t{0}) const {
    for (size_t offset = from / 8 * 8; offset + 8 <= std::min(end, size()); offset += 8)
      if (word(offset) == value) return true;
    return false;
  }

 private:
  template <typename T>
  T at(size_t offset) const {
    T value = 0;
    if (offset <= size() && size() - offset >= sizeof(T))
      std::memcpy(&value, bytes_.data() + offset, sizeof(T));
    return value;
  }

  uint64_t address_;
  std::vector<std::byte> bytes_;
};

}  // namespace sigma
