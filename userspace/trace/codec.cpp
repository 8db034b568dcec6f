// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
#include "trace/codec.h"

#include <cstring>

namespace sigma {
namespace {

constexpr size_t kHeaderBytes = sizeof(sigma_header);

}  // namespace

std::optional<size_t> record_bytes(std::span<const std::byte> record) {
  if (record.size() < kHeaderBytes || record.size() > kMaxRecordBytes) return std::nullopt;
  sigma_header header;
  std::memcpy(&header, record.data(), sizeof header);
  const RecordSchema* schema = schema_of(header.type);
  if (!schema || header.size != record.size() || header.size < schema->size) return std::nullopt;
  if (schema->tail == Tail::none) return schema->size;
  sigma_uverbs fixed;
  std::memcpy(&fixed, record.data(), sizeof fixed);
  const size_t bytes =
      sizeof fixed + fixed.num_attrs * sizeof(sigma_uverbs_attr) + fixed.payload_bytes;
  return bytes <= record.size() ? std::optional(bytes) : std::nullopt;
}

void append_event(std::vector<std::byte>& out, std::span<const std::byte> record,
                  uint64_t timestamp_ns, uint64_t sequence) {
  EventHead head;
  std::memcpy(&head, record.data(), kHeaderBytes);
  head.late_ns = timestamp_ns - head.timestamp_ns;
  head.timestamp_ns = timestamp_ns;
  head.size = static_cast<uint16_t>(record.size());
  head.sequence = sequence;
  const auto* bytes = reinterpret_cast<const std::byte*>(&head);
  out.insert(out.end(), bytes, bytes + sizeof head);
  out.insert(out.end(), record.begin() + kHeaderBytes, record.end());
}

std::optional<Event> read_event(std::span<const std::byte> bytes, std::span<std::byte> out) {
  if (bytes.size() < sizeof(EventHead)) return std::nullopt;
  EventHead head;
  std::memcpy(&head, bytes.data(), sizeof head);
  if (head.size < kHeaderBytes || head.size > out.size()) return std::nullopt;
  const size_t body = head.size - kHeaderBytes;
  if (bytes.size() - sizeof head < body) return std::nullopt;

  Event event{head.timestamp_ns, head.sequence, sizeof head + body, {}};
  head.timestamp_ns -= head.late_ns;
  std::memcpy(out.data(), &head, kHeaderBytes);
  std::memcpy(out.data() + kHeaderBytes, bytes.data() + sizeof head, body);
  event.record = out.first(head.size);
  // An event has no size of its own in CTF: its fields say where the next one begins.
  if (record_bytes(event.record) != head.size) return std::nullopt;
  return event;
}

}  // namespace sigma
