// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
#include "trace/stream_index.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <string_view>

namespace sigma {
namespace {

constexpr uint32_t kMaxCpus = 8192;      // of Linux
constexpr size_t kMaxDamages = 1 << 16;  // then the rest is one

// The next beginning of a packet behind the first byte: magic and uuid together occur nowhere else.
size_t next_beginning(std::span<const std::byte> bytes, const Uuid& uuid) {
  std::byte mark[4 + sizeof(Uuid)];
  std::memcpy(mark, &kCtfMagic, 4);
  std::memcpy(mark + 4, uuid.data(), sizeof(Uuid));
  const auto next = std::search(bytes.begin() + 1, bytes.end(), std::begin(mark), std::end(mark));
  return static_cast<size_t>(next - bytes.begin());
}

}  // namespace

const char* reject_packet(std::span<const std::byte> bytes, const Uuid& uuid, PacketHead* head) {
  if (bytes.size() < sizeof *head) return "torn";
  std::memcpy(head, bytes.data(), sizeof *head);
  if (head->magic != kCtfMagic) return "no packet begins here";
  if (head->uuid != uuid) return "belongs to another trace";
  if (head->stream_id > kStreamRings) return "unknown stream";
  const uint64_t size = head->packet_bits / 8;
  if (head->packet_bits % 8 || head->content_bits != head->packet_bits || size < sizeof *head)
    return "impossible size";
  if (size > bytes.size()) return "torn";
  if (head->timestamp_end < head->timestamp_begin) return "ends before it begins";
  if (head->events > (size - sizeof *head) / sizeof(EventHead)) return "impossible count of events";
  return nullptr;
}

StreamIndex index_stream(std::span<const std::byte> bytes, const Uuid& uuid) {
  StreamIndex index;
  std::optional<uint64_t> discarded;
  uint64_t discarded_ns = 0;
  size_t kept = 0;  // offset of what is sound and not yet in index.sound
  const auto keep_until = [&](size_t offset) {
    if (offset > kept) index.sound.push_back(bytes.subspan(kept, offset - kept));
  };
  for (auto rest = bytes; !rest.empty();) {
    PacketHead head;
    if (const char* reason = reject_packet(rest, uuid, &head)) {
      const size_t skipped =
          index.damages.size() < kMaxDamages ? next_beginning(rest, uuid) : rest.size();
      const bool at_end = std::string_view(reason) == "torn" && skipped == rest.size();
      index.damages.push_back({skipped, at_end ? "a torn packet at its end" : reason});
      keep_until(bytes.size() - rest.size());
      rest = rest.subspan(skipped);
      kept = bytes.size() - rest.size();
      continue;
    }
    if (head.stream_id == kStreamCpu && head.cpu_id < kMaxCpus)
      index.cpus = std::max(index.cpus, head.cpu_id + 1);
    if (discarded && head.events_discarded > *discarded) {
      const uint64_t count = head.events_discarded - *discarded;
      index.discarded += count;
      if (index.discards.size() < StreamIndex::kMaxDiscards)
        index.discards.push_back({discarded_ns, head.timestamp_end, count});
    }
    discarded = std::max(discarded.value_or(0), head.events_discarded);
    discarded_ns = head.timestamp_end;
    index.first_ns =
        index.first_ns ? std::min(index.first_ns, head.timestamp_begin) : head.timestamp_begin;
    index.last_ns = std::max(index.last_ns, head.timestamp_end);
    rest = rest.subspan(head.packet_bits / 8);
  }
  keep_until(bytes.size());
  return index;
}

}  // namespace sigma
