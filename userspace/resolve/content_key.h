// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// ContentKey: names a file's content within this process.
//
// A build-id alone will not do: it is a note that anyone can write, and a forged library in one
// container would lend its plan, and so its probe offsets, to the real one in all others. The hash
// is SipHash-2-4 (Aumasson, Bernstein 2012) under a key drawn at random by each process: collisions
// cannot be prepared.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace sigma {

struct ContentKey {
  std::string build_id;
  uint64_t size = 0;
  std::array<uint64_t, 2> hash{};  // under two keys
  auto operator<=>(const ContentKey&) const = default;
};

class ContentHasher {
 public:
  ContentHasher();  // draws the keys
  ContentKey key_of(std::string_view build_id, std::span<const std::byte> bytes) const;

 private:
  std::array<std::array<uint64_t, 2>, 2> keys_{};
};

uint64_t siphash(std::array<uint64_t, 2> key, std::span<const std::byte> bytes);

}  // namespace sigma
