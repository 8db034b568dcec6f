// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Big-endian fields: integers that *are* their byte order, for mirrors of wire and device
// structures.
//
//   struct CtrlSegment { Be32 opmod_idx_opcode; Be32 qpn_ds; ... };
//   uint32_t qpn = segment.qpn_ds >> 8;   // reads as the host's integer
//
// Alignment 1, trivially copyable: any byte range may be viewed or copied into one.
#pragma once

#include <array>
#include <bit>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

namespace sigma {

template <std::unsigned_integral T>
constexpr T byteswap(T value) {
  T swapped = 0;
  for (size_t i = 0; i < sizeof(T); ++i) {
    swapped = static_cast<T>(swapped << 8 | (value & 0xff));
    value = static_cast<T>(value >> 8);
  }
  return swapped;
}

template <std::unsigned_integral T>
constexpr T be_to_host(T value) {
  return std::endian::native == std::endian::big ? value : byteswap(value);
}

template <std::unsigned_integral T>
class BigEndian {
 public:
  BigEndian() = default;
  BigEndian(T host) { *this = host; }  // NOLINT(google-explicit-constructor)

  operator T() const {  // NOLINT(google-explicit-constructor)
    T raw;
    std::memcpy(&raw, bytes_.data(), sizeof(raw));
    return be_to_host(raw);
  }
  BigEndian& operator=(T host) {
    const T raw = be_to_host(host);
    std::memcpy(bytes_.data(), &raw, sizeof(raw));
    return *this;
  }

 private:
  std::array<std::byte, sizeof(T)> bytes_;
};

using Be16 = BigEndian<uint16_t>;
using Be32 = BigEndian<uint32_t>;
using Be64 = BigEndian<uint64_t>;

static_assert(sizeof(Be64) == 8 && alignof(Be64) == 1 && std::is_trivially_copyable_v<Be64>);
static_assert(byteswap(uint32_t{0x01020304}) == 0x04030201);

}  // namespace sigma
