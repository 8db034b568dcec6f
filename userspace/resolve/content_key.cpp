// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
#include "resolve/content_key.h"

#include <sys/random.h>

#include <bit>
#include <cerrno>
#include <cstring>

namespace sigma {

uint64_t siphash(std::array<uint64_t, 2> key, std::span<const std::byte> bytes) {
  uint64_t v0 = key[0] ^ 0x736f6d6570736575, v1 = key[1] ^ 0x646f72616e646f6d;
  uint64_t v2 = key[0] ^ 0x6c7967656e657261, v3 = key[1] ^ 0x7465646279746573;
  auto round = [&] {
    v0 += v1, v1 = std::rotl(v1, 13) ^ v0, v0 = std::rotl(v0, 32);
    v2 += v3, v3 = std::rotl(v3, 16) ^ v2;
    v0 += v3, v3 = std::rotl(v3, 21) ^ v0;
    v2 += v1, v1 = std::rotl(v1, 17) ^ v2, v2 = std::rotl(v2, 32);
  };
  auto absorb = [&](uint64_t word) {
    v3 ^= word;
    round();
    round();
    v0 ^= word;
  };
  size_t whole = bytes.size() / 8 * 8;
  for (size_t at = 0; at < whole; at += 8) {
    uint64_t word;
    std::memcpy(&word, bytes.data() + at, sizeof word);
    absorb(word);
  }
  uint64_t last = uint64_t{bytes.size()} << 56;
  for (size_t i = whole; i < bytes.size(); ++i)
    last |= std::to_integer<uint64_t>(bytes[i]) << (8 * (i - whole));
  absorb(last);
  v2 ^= 0xff;
  for (int i = 0; i < 4; ++i) round();
  return v0 ^ v1 ^ v2 ^ v3;
}

ContentHasher::ContentHasher() {
  size_t done = 0;
  while (done < sizeof keys_) {
    ssize_t got = getrandom(reinterpret_cast<char*>(&keys_) + done, sizeof keys_ - done, 0);
    if (got > 0)
      done += static_cast<size_t>(got);
    else if (errno != EINTR)
      break;  // no such system call: the keys stay guessable, nothing else fails
  }
}

ContentKey ContentHasher::key_of(std::string_view build_id,
                                 std::span<const std::byte> bytes) const {
  return {
      std::string(build_id), bytes.size(), {siphash(keys_[0], bytes), siphash(keys_[1], bytes)}};
}

}  // namespace sigma
