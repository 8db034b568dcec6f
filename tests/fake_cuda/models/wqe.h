// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// WQEs as device code writes them: 16-byte stores into the ring, segment after segment, the control
// segment first (so that a valid index can stand over old segments for a moment). Layouts: struct
// mlx5_wqe_* of <infiniband/mlx5dv.h>.
#pragma once

#include <endian.h>

#include <cstdint>
#include <cstring>

namespace models {

enum Opcode : uint8_t {
  kNop = 0x00,
  kWrite = 0x08,
  kWriteImm = 0x09,
  kRead = 0x10,
  kAtomicFa = 0x12,
  kMaskedCs = 0x14,
  kMaskedFa = 0x15,
  kDump = 0x23,
};
inline constexpr uint8_t kSignaled = 8;        // fm_ce_se: CE = 2
inline constexpr uint8_t kAtomicExtended = 8;  // opmod of masked atomics: 8 + log2(bytes) - 2

struct Target {  // of an addressed (DC) WQE
  uint32_t qpn = 0;
  uint64_t key = 0;
  uint16_t lid = 0;
};

class WqeWriter {
 public:
  // `ring`: of `blocks` 64-byte blocks, a power of two.
  WqeWriter(uint8_t* ring, uint32_t blocks, uint64_t index)
      : ring_(ring), blocks_(blocks), index_(index) {}

  void control(uint32_t qpn, uint8_t opcode, uint8_t opmod, uint8_t flags, unsigned ds,
               uint32_t imm = 0) {
    uint32_t words[4] = {
        htobe32(uint32_t{opmod} << 24 | static_cast<uint32_t>(index_ & 0xffff) << 8 | opcode),
        htobe32(qpn << 8 | ds), htobe32(flags), htobe32(imm)};
    store(words);
  }
  // Without a GRH: 16 bytes (the base of the address vector), or 48 with the extension.
  void address(const Target& target, bool full) {
    uint32_t words[4] = {0, 0, htobe32(target.qpn | (full ? 1u << 31 : 0)),
                         htobe32(uint32_t{target.lid})};
    const uint64_t key = htobe64(target.key);
    memcpy(words, &key, 8);
    store(words);
    if (!full) return;
    const uint32_t nothing[4] = {};
    store(nothing);
    store(nothing);
  }
  void remote(uint64_t address, uint32_t rkey) {
    uint32_t words[4] = {0, 0, htobe32(rkey), 0};
    const uint64_t big = htobe64(address);
    memcpy(words, &big, 8);
    store(words);
  }
  void data(uint64_t address, uint32_t lkey, uint32_t bytes) {
    uint32_t words[4] = {htobe32(bytes), htobe32(lkey), 0, 0};
    const uint64_t big = htobe64(address);
    memcpy(words + 2, &big, 8);
    store(words);
  }
  // A 4-byte header, the bytes, padding: several segments where it is long.
  void inline_data(const void* bytes, uint32_t count) {
    uint8_t segments[256] = {};
    const uint32_t header = htobe32(0x80000000u | count);
    memcpy(segments, &header, 4);
    memcpy(segments + 4, bytes, count);
    for (uint32_t at = 0; at < 4 + count; at += 16) store(segments + at);
  }
  void atomic_add(uint64_t value) {
    const uint64_t words[2] = {htobe64(value), 0};
    store(words);
  }
  void masked_add32(uint32_t value) {
    const uint32_t words[4] = {htobe32(value), 0, 0, 0};
    store(words);
  }
  void masked_add64(uint64_t value) {
    const uint64_t words[2] = {htobe64(value), 0};
    store(words);
  }
  void masked_swap64(uint64_t swap, uint64_t compare) {
    const uint64_t words[4] = {htobe64(swap), htobe64(compare), ~uint64_t{0}, ~uint64_t{0}};
    store(words);
    store(words + 2);
  }
  static unsigned inline_segments(uint32_t bytes) { return (4 + bytes + 15) / 16; }

 private:
  void store(const void* segment) {
    uint8_t* at = ring_ + ((index_ * 64 + offset_) & (uint64_t{blocks_} * 64 - 1));
    // Two 8-byte stores: as much as an observer may count on.
    uint64_t words[2];
    memcpy(words, segment, 16);
    __atomic_store_n(reinterpret_cast<uint64_t*>(at), words[0], __ATOMIC_RELAXED);
    __atomic_store_n(reinterpret_cast<uint64_t*>(at) + 1, words[1], __ATOMIC_RELAXED);
    offset_ += 16;
  }

  uint8_t* ring_;
  uint32_t blocks_;
  uint64_t index_, offset_ = 0;
};

inline unsigned blocks_of(unsigned ds) {
  return (ds + 3) / 4;
}

}  // namespace models
