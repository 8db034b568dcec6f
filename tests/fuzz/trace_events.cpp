// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Events of a trace, mutated: what is read is a record by the schema, within its bytes.
#include <cstring>
#include <memory>

#include "catch.h"
#include "fuzzer.h"
#include "trace/codec.h"

using namespace sigma;

namespace {

// One event of each type, with a uverbs command that has attributes and payload.
Bytes sample_events() {
  Bytes events;
  for (const RecordSchema& schema : record_schemas()) {
    Bytes record(schema.size +
                 (schema.tail == Tail::uverbs ? 2 * sizeof(sigma_uverbs_attr) + 24 : 0));
    const sigma_header header{1000, schema.type, static_cast<uint16_t>(record.size()), 0, 1, 1};
    std::memcpy(record.data(), &header, sizeof header);
    if (schema.tail == Tail::uverbs) {
      const uint16_t attrs = 2, payload = 24;
      std::memcpy(record.data() + offsetof(sigma_uverbs, num_attrs), &attrs, sizeof attrs);
      std::memcpy(record.data() + offsetof(sigma_uverbs, payload_bytes), &payload, sizeof payload);
    }
    append_event(events, record, 1000, schema.type);
  }
  return events;
}

}  // namespace

TEST_CASE("mutated events do no harm") {
  Fuzzer fuzzer("trace_events", {sample_events()});
  auto buffer = std::make_unique<RecordBuffer>();
  size_t read = 0, refused = 0;
  while (fuzzer.next()) {
    std::span<const std::byte> rest = fuzzer.bytes();
    while (!rest.empty()) {
      const auto event = read_event(rest, buffer->bytes);
      if (!event) {
        ++refused;
        break;
      }
      if (event->encoded_bytes > rest.size()) FAIL("an event longer than its bytes");
      if (record_bytes(event->record) != event->record.size()) FAIL("not a record");
      ++read;
      rest = rest.subspan(event->encoded_bytes);
    }
  }
  CHECK(read > 50);
  CHECK(refused > 50);
}
