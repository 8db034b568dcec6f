// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// What a stream's file holds, by the heads of its packets alone: the pieces that are whole, what
// lies between them, and what the heads say of losses. Content is hostile.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "trace/packet.h"

namespace sigma {

// Records that the ring buffer had no room for, between two packets of the control stream.
struct Discard {
  uint64_t begin_ns, end_ns, records;
};

struct StreamIndex {
  std::vector<std::span<const std::byte>> sound;  // whole packets
  struct Damage {
    uint64_t bytes;
    std::string what;
  };
  std::vector<Damage> damages;
  std::vector<Discard> discards;       // at most kMaxDiscards
  uint64_t discarded = 0;              // of all
  uint64_t first_ns = 0, last_ns = 0;  // of the packets; 0 without any
  uint32_t cpus = 0;                   // the highest one of a packet, plus 1

  static constexpr size_t kMaxDiscards = 1 << 16;
};

// Why these bytes are not the beginning of a packet of this trace; nullptr: they are.
const char* reject_packet(std::span<const std::byte> bytes, const Uuid& uuid, PacketHead* head);

StreamIndex index_stream(std::span<const std::byte> bytes, const Uuid& uuid);

}  // namespace sigma
