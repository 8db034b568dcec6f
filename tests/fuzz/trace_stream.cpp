// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// A stream's file of a trace, mutated: the pieces called sound lie in it, what is decoded is
// records by the schema in order of time and sequence, and all bytes are accounted for.
#include <cstring>

#include "catch.h"
#include "fuzzer.h"
#include "trace/codec.h"
#include "trace/packet_decoder.h"
#include "trace/stream_index.h"

using namespace sigma;

namespace {

constexpr Uuid kUuid = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16};

// An empty packet, then three with an event of each type.
Bytes sample_stream() {
  Bytes stream;
  uint64_t sequence = 0;
  for (uint64_t packet = 0; packet < 4; ++packet) {
    Bytes events;
    uint64_t count = 0;
    for (const RecordSchema& schema : record_schemas()) {
      if (packet == 0) break;
      Bytes record(schema.size);
      const sigma_header header{
          1000 + packet, schema.type, static_cast<uint16_t>(record.size()), 0, 1, 1};
      std::memcpy(record.data(), &header, sizeof header);
      append_event(events, record, 1000 + packet, sequence++);
      ++count;
    }
    const PacketHead head{.magic = kCtfMagic,
                          .uuid = kUuid,
                          .stream_id = kStreamControl,
                          .timestamp_begin = 1000 + packet,
                          .timestamp_end = 1000 + packet,
                          .content_bits = (sizeof(PacketHead) + events.size()) * 8,
                          .packet_bits = (sizeof(PacketHead) + events.size()) * 8,
                          .events_discarded = packet,
                          .events = count};
    const auto* bytes = reinterpret_cast<const std::byte*>(&head);
    stream.insert(stream.end(), bytes, bytes + sizeof head);
    stream.insert(stream.end(), events.begin(), events.end());
  }
  return stream;
}

}  // namespace

TEST_CASE("mutated streams do no harm") {
  Fuzzer fuzzer("trace_stream", {sample_stream()});
  size_t decoded = 0, damaged = 0;
  while (fuzzer.next()) {
    const Bytes& bytes = fuzzer.bytes();
    const StreamIndex index = index_stream(bytes, kUuid);
    uint64_t accounted = 0;
    for (const auto& piece : index.sound) {
      if (piece.data() < bytes.data() || piece.data() + piece.size() > bytes.data() + bytes.size())
        FAIL("a piece outside the file");
      accounted += piece.size();
    }
    for (const auto& damage : index.damages) accounted += damage.bytes;
    if (accounted != bytes.size()) FAIL("bytes that are neither sound nor damaged");
    damaged += index.damages.size();

    PacketSource source(index.sound, kUuid);
    DecodedPacket packet;
    while (source.next(packet)) {
      uint64_t last_ns = 0, next_sequence = 0;
      for (const DecodedEvent& event : packet.events) {
        if (event.timestamp_ns < last_ns || event.sequence < next_sequence) FAIL("out of order");
        if (reinterpret_cast<uintptr_t>(event.record.data()) % 8) FAIL("not aligned");
        if (record_bytes(event.record) != event.record.size()) FAIL("not a record");
        last_ns = event.timestamp_ns;
        next_sequence = event.sequence + 1;
        ++decoded;
      }
      damaged += !packet.damage.empty();
    }
  }
  CHECK(decoded > 50);
  CHECK(damaged > 50);
}
