// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Seeded mutations of a sample, for parsers of hostile bytes: the same on every run.
#pragma once

#include <cstddef>
#include <random>
#include <vector>

namespace sigma {

using Bytes = std::vector<std::byte>;

// Changes bytes, sets extreme values, cuts, repeats a piece. The result has exactly its own size on
// the heap, so that the address sanitizer sees a read beyond it.
inline Bytes mutate(const Bytes& sample, std::mt19937& random) {
  Bytes bytes = sample;
  auto below = [&](size_t limit) { return static_cast<size_t>(random() % limit); };
  for (size_t change = 1 + below(4); change > 0 && !bytes.empty(); --change) {
    size_t at = below(bytes.size());
    switch (below(6)) {
      case 0:
        bytes[at] ^= static_cast<std::byte>(1u << below(8));
        break;
      case 1:
        bytes[at] = static_cast<std::byte>(random());
        break;
      case 2:
        bytes[at] = std::byte{0xff};
        break;
      case 3:
        bytes[at] = std::byte{0};
        break;
      case 4:
        bytes.resize(at);
        break;
      default: {
        Bytes piece(bytes.begin() + static_cast<std::ptrdiff_t>(at), bytes.end());
        piece.resize(1 + below(piece.size()));
        bytes.insert(bytes.begin() + static_cast<std::ptrdiff_t>(below(bytes.size())),
                     piece.begin(), piece.end());
      }
    }
  }
  bytes.shrink_to_fit();
  return bytes;
}

}  // namespace sigma
