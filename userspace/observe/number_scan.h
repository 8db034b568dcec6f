// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Where in a process's memory given numbers stand, as aligned 32-bit words, amid words of a kind.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <vector>

#include "resolve/remote_memory.h"

namespace sigma {

inline constexpr size_t kMaxPlaces = 1024;  // of one number, beyond which none is believed

// The words around a place that are asked for, in bytes from its word.
struct Surroundings {
  size_t before = 0, after = 0;  // multiples of 8
  std::function<bool(std::span<const uint64_t>)> fit;
};

// One pass over the writable private memory; present pages only. Places in order of address; those
// whose surroundings cross a hole are taken as they are.
std::map<uint32_t, std::vector<uint64_t>> find_numbers(const RemoteMemory& memory,
                                                       const std::set<uint32_t>& numbers,
                                                       const Surroundings& around,
                                                       const ScanLimits& limits);

}  // namespace sigma
