// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// The memory of a queue's owner, as the search for rings sees it. An interface, so that tests can
// offer memory of any content.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <type_traits>

#include "base/be.h"
#include "resolve/remote_memory.h"

namespace sigma {

class OwnerMemory {
 public:
  virtual ~OwnerMemory() = default;
  // All of `out`, or false and nothing. Brings no page in.
  virtual bool read(uint64_t address, std::span<std::byte> out) const = 0;
  // Bytes from `address` on that the owner may write; 0: none.
  virtual uint64_t writable_from(uint64_t address) const = 0;

  template <typename T>
  std::optional<T> load(uint64_t address) const {
    static_assert(std::is_trivially_copyable_v<T>);
    T value;
    if (!read(address, std::as_writable_bytes(std::span(&value, 1)))) return std::nullopt;
    return value;
  }
  std::optional<uint32_t> be32(uint64_t address) const {
    const auto value = load<Be32>(address);
    if (!value) return std::nullopt;
    return static_cast<uint32_t>(*value);
  }
};

// Another process, by process_vm_readv: present pages only, never a device's.
class RemoteOwner : public OwnerMemory {
 public:
  explicit RemoteOwner(const RemoteMemory& memory) : memory_(memory) {}

  bool read(uint64_t address, std::span<std::byte> out) const override {
    return memory_.read(address, out);
  }
  uint64_t writable_from(uint64_t address) const override {
    const Mapping* mapping = find_mapping(memory_.maps(), address);
    if (!mapping || !mapping->readable || !mapping->writable || is_device_mapping(*mapping)) return 0;
    return mapping->end - address;
  }

 private:
  const RemoteMemory& memory_;
};

}  // namespace sigma
