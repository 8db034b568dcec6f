// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// The fields of every record, once. The trace's metadata (tsdl.h), the codec (codec.h) and the
// tests derive from this table; static_asserts in schema.cpp hold it against bpf/records.h: a
// record type without a row, or a field that is left out, does not compile.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "bpf/records.h"
#include "output/value_names.h"
#include "trace/packet.h"

namespace sigma {

enum class FieldForm : uint8_t {
  decimal,
  signed_decimal,
  hex,
  big_endian,  // shown in hex
  text,        // NUL-terminated or full
  padding,
};

struct Field {
  std::string_view name;
  uint16_t offset;  // in the record
  uint16_t size;    // bytes; of a text, its length
  FieldForm form = FieldForm::decimal;
  std::span<const ValueName> names = {};  // the field is an enum
};

// What follows the fixed part: attributes and payload of a uverbs command.
enum class Tail : uint8_t { none, uverbs };

struct RecordSchema {
  uint16_t type;
  std::string_view name;
  uint16_t size;                  // of the fixed part, header included
  std::span<const Field> fields;  // from the header's end to `size`, without holes
  Tail tail = Tail::none;
  // Where it is kept. The many are in streams that a flight recorder overwrites: of their CPU, or of
  // what was read from rings.
  uint32_t stream = kStreamControl;
};

std::span<const RecordSchema> record_schemas();
std::span<const Field> uverbs_attr_fields();

// nullptr: no such type.
const RecordSchema* schema_of(uint16_t type);

}  // namespace sigma
