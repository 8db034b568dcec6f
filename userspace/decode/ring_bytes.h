// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Bytes copied from a ring, in the order of its entries: at most two pieces, as one readv delivers
// a range that runs over the ring's end. Borrowed; never the job's memory itself, which may change
// between two looks.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <type_traits>

namespace sigma {

// Rings have 2^n entries. (std::has_single_bit calls libgcc on machines without such an
// instruction.)
constexpr bool power_of_two(uint32_t value) {
  return value != 0 && (value & (value - 1)) == 0;
}

class RingBytes {
 public:
  RingBytes() = default;
  explicit RingBytes(std::span<const std::byte> head, std::span<const std::byte> tail = {})
      : head_(head), tail_(tail) {}

  size_t size() const { return head_.size() + tail_.size(); }

  // False when the range is not wholly inside; nothing is written then.
  bool copy(size_t offset, void* to, size_t bytes) const {
    if (offset > size() || bytes > size() - offset) return false;
    auto* out = static_cast<std::byte*>(to);
    size_t from_head = 0;
    if (offset < head_.size()) {
      from_head = std::min(bytes, head_.size() - offset);
      std::memcpy(out, head_.data() + offset, from_head);
    }
    if (bytes > from_head)
      std::memcpy(out + from_head, tail_.data() + (offset + from_head - head_.size()),
                  bytes - from_head);
    return true;
  }

  // A whole ring in one piece, from the byte `offset` on and round. Nothing where it is in two.
  RingBytes round_from(size_t offset) const {
    if (!tail_.empty() || offset > head_.size()) return {};
    return RingBytes(head_.subspan(offset), head_.first(offset));
  }

  template <typename T>
  bool load(size_t offset, T& to) const {
    static_assert(std::is_trivially_copyable_v<T>);
    if (const std::byte* bytes = piece(offset, sizeof(to))) {
      std::memcpy(static_cast<void*>(&to), bytes, sizeof(to));
      return true;
    }
    return copy(offset, &to, sizeof(to));
  }

  // The range itself, where it lies in the first piece; else null.
  const std::byte* piece(size_t offset, size_t bytes) const {
    return offset <= head_.size() && bytes <= head_.size() - offset ? head_.data() + offset : nullptr;
  }

 private:
  std::span<const std::byte> head_, tail_;
};

}  // namespace sigma
