// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Records to events and back. Input of both directions is hostile: nothing is read outside the
// given bytes, and what does not fit the schema is refused.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "trace/packet.h"
#include "trace/schema.h"

namespace sigma {

// The part of `record` that the schema describes: records come in size classes, and the rest of a
// class is not kept. nullopt: not a record (type unknown, or size does not fit it).
std::optional<size_t> record_bytes(std::span<const std::byte> record);

// Appends one event. `record` is record_bytes() long; its header's size is set accordingly.
void append_event(std::vector<std::byte>& out, std::span<const std::byte> record,
                  uint64_t timestamp_ns, uint64_t sequence);

// A record is at most this long, aligned for its integers.
struct alignas(8) RecordBuffer {
  std::byte bytes[kMaxRecordBytes + 1];
};

// An event takes so many bytes more than its record.
inline constexpr size_t kEventOverhead = sizeof(EventHead) - sizeof(sigma_header);

struct Event {
  uint64_t timestamp_ns = 0;
  uint64_t sequence = 0;
  size_t encoded_bytes = 0;
  std::span<const std::byte> record;  // in `out`
};

// The event at the beginning of `bytes`, its record copied to `out`. nullopt: torn, malformed, or
// longer than `out`.
std::optional<Event> read_event(std::span<const std::byte> bytes, std::span<std::byte> out);

}  // namespace sigma
