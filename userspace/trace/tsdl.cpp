// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
#include "trace/tsdl.h"

#include <fmt/format.h>

#include "trace/schema.h"

namespace sigma {
namespace {

std::string integer(size_t bytes, FieldForm form) {
  std::string attributes = fmt::format("size = {}; align = 8;", bytes * 8);
  if (form == FieldForm::signed_decimal) attributes += " signed = true;";
  if (form == FieldForm::hex || form == FieldForm::big_endian) attributes += " base = 16;";
  if (form == FieldForm::big_endian) attributes += " byte_order = be;";
  return "integer { " + attributes + " }";
}

// Field names take an underscore in front, which readers drop: "index" and others are free to clash
// with TSDL's own words.
std::string declare(const Field& field) {
  if (field.form == FieldForm::text)
    return fmt::format("integer {{ size = 8; align = 8; encoding = UTF8; }} _{}[{}];", field.name,
                       field.size);
  if (field.form == FieldForm::padding && field.size > 8)
    return fmt::format("integer {{ size = 8; align = 8; }} _{}[{}];", field.name, field.size);
  if (field.names.empty())
    return fmt::format("{} _{};", integer(field.size, field.form), field.name);
  std::string names;
  for (const ValueName& value : field.names)
    names += fmt::format("{}\"{}\" = {}", names.empty() ? "" : ", ", value.name, value.value);
  return fmt::format("enum : {} {{ {} }} _{};", integer(field.size, field.form), names, field.name);
}

std::string declare_all(std::span<const Field> fields, std::string_view indent) {
  std::string out;
  for (const Field& field : fields) out += fmt::format("{}{}\n", indent, declare(field));
  return out;
}

std::string event(const RecordSchema& schema, uint32_t stream) {
  std::string fields = declare_all(schema.fields, "    ");
  if (schema.tail == Tail::uverbs)
    fields +=
        "    struct uverbs_attr _attrs[_num_attrs];\n"
        "    integer { size = 8; align = 8; base = 16; } _payload[_payload_bytes];\n";
  return fmt::format(
      "event {{\n  name = \"{}\";\n  id = {};\n  stream_id = {};\n  fields := struct {{\n{}  }};\n"
      "}};\n\n",
      schema.name, schema.type, stream, fields);
}

std::string stream(uint32_t id) {
  return fmt::format(R"(stream {{
  id = {};
  packet.context := struct packet_context;
  event.header := struct event_header;
  event.context := struct event_context;
}};

)",
                     id);
}

// A quoted string: names of machines are not ours.
std::string quoted(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    const bool plain = c >= ' ' && c <= '~' && c != '"' && c != '\\';
    out += plain ? c : '?';
  }
  return out + '"';
}

std::string uuid_text(const Uuid& uuid) {
  std::string text;
  for (size_t i = 0; i < uuid.size(); ++i) {
    if (i == 4 || i == 6 || i == 8 || i == 10) text += '-';
    text += fmt::format("{:02x}", uuid[i]);
  }
  return text;
}

}  // namespace

std::string tsdl(const TsdlOptions& options) {
  const uint64_t offset_ns = options.clock.utc_ns - options.clock.monotonic_ns;
  std::string out = fmt::format(
      R"(/* CTF 1.8 */

typealias integer {{ size = 8; align = 8; }} := uint8_t;
typealias integer {{ size = 16; align = 8; }} := uint16_t;
typealias integer {{ size = 32; align = 8; }} := uint32_t;
typealias integer {{ size = 64; align = 8; }} := uint64_t;

trace {{
  major = 1;
  minor = 8;
  uuid = "{0}";
  byte_order = le;
  packet.header := struct {{
    uint32_t magic;
    uint8_t uuid[16];
    uint32_t stream_id;
    uint64_t stream_instance_id;
  }};
}};

env {{
  hostname = {1};
  sysname = "Linux";
  kernel_release = {2};
  tracer_name = "sigmatrace";
  tracer_version = {3};
  record_version = {4};
}};

clock {{
  name = monotonic;
  description = "CLOCK_MONOTONIC; offset to the Unix epoch";
  freq = 1000000000;
  offset_s = {5};
  offset = {6};
}};

typealias integer {{ size = 64; align = 8; map = clock.monotonic.value; }} := time_t;

struct packet_context {{
  time_t timestamp_begin;
  time_t timestamp_end;
  uint64_t content_size;
  uint64_t packet_size;
  uint64_t events_discarded;
  uint64_t events;
  uint32_t cpu_id;
}};

struct event_header {{
  time_t timestamp;
  uint16_t id;
}};

struct event_context {{
  uint16_t size;
  uint32_t cpu;
  uint32_t pid;
  uint32_t tid;
  uint64_t sequence;
  uint64_t late_ns;
}};

struct uverbs_attr {{
{7}}};

)",
      uuid_text(options.uuid), quoted(options.node), quoted(options.kernel),
      quoted(options.tool_version), SIGMA_RECORD_VERSION, offset_ns / 1'000'000'000,
      offset_ns % 1'000'000'000, declare_all(uverbs_attr_fields(), "  "));
  for (const uint32_t id : {kStreamCpu, kStreamControl, kStreamRings}) {
    out += stream(id);
    for (const RecordSchema& schema : record_schemas())
      if (schema.stream == id) out += event(schema, id);
  }
  return out;
}

}  // namespace sigma
