// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// The bytes of a stream: packets of events, CTF 1.8, all integers little-endian and byte-aligned.
//
//   packet   PacketHead, events, nothing after them: packet_bits == content_bits
//   event    EventHead, then the record from its header's end to its own end
//
// A stream begins with a packet without events whose events_discarded is 0: babeltrace2 cannot tell
// a number of discarded events without it. Within a file timestamps and
// sequence numbers never go back; sequence numbers count the events of the whole trace in order of
// delivery, so that a merge by them is exact and what is missing can be counted.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>

#include "bpf/records.h"

namespace sigma {

static_assert(std::endian::native == std::endian::little,
              "the trace holds records as they lie in memory; a big-endian host needs a codec");

inline constexpr uint32_t kCtfMagic = 0xc1fc1fc1;
using Uuid = std::array<uint8_t, 16>;

inline constexpr uint32_t kStreamCpu = 0;      // one stream per CPU: posts and completions
inline constexpr uint32_t kStreamControl = 1;  // everything else, and what the tracer knows itself
inline constexpr uint32_t kStreamRings = 2;    // what was read from queues in memory: of no CPU

#pragma pack(push, 1)
struct PacketHead {
  uint32_t magic;
  Uuid uuid;
  uint32_t stream_id;           // kStreamCpu, kStreamControl, kStreamRings
  uint64_t stream_instance_id;  // the CPU; else 0
  uint64_t timestamp_begin;
  uint64_t timestamp_end;
  uint64_t content_bits;
  uint64_t packet_bits;
  uint64_t events_discarded;  // of the stream, up to this packet's end
  uint64_t events;            // in this packet
  uint32_t cpu_id;
};

struct EventHead {
  uint64_t timestamp_ns;  // the record's time, or the stream's last where the record was late
  uint16_t id;            // the record's type
  uint16_t size;          // of the record
  uint32_t cpu, pid, tid;
  uint64_t sequence;
  uint64_t late_ns;  // timestamp_ns minus the record's own time
};
#pragma pack(pop)

SIGMA_SIZE(PacketHead, 84);
SIGMA_SIZE(EventHead, 40);
SIGMA_AT(EventHead, cpu, offsetof(sigma_header, cpu));
// The first 24 bytes are a record's header, so that one copy takes it.
SIGMA_AT(EventHead, sequence, sizeof(sigma_header));

inline constexpr size_t kMaxRecordBytes = UINT16_MAX;
inline constexpr size_t kPacketBytes = 256 * 1024;  // of a packet that is full

}  // namespace sigma
