// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// The table behind decode_uverbs(): which bytes of which attribute of which command are which fact.
// A new command or field is a row in uverbs_table.cpp.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "decode/uverbs.h"

namespace sigma {

// Puts a field of 1, 2, 4, 8 or (GID) 16 bytes, host order, into the facts.
using UverbsStore = void (*)(UverbsFacts& facts, std::span<const std::byte> field);

struct UverbsRow {
  static constexpr uint8_t kWhole = 0;         // width: the attribute is an integer or a handle
  static constexpr uint16_t kAlways = 0xffff;  // unless: no such condition

  uint16_t attr;
  uint16_t offset;  // in the attribute's payload
  uint8_t width;    // bytes, or kWhole
  UverbsStore store;
  uint32_t mask = 0;               // bits of the command's attribute mask that make the field valid
  uint16_t unless_zero = kAlways;  // offset of a byte of the payload that must not be 0
  bool absent_is_zero = false;     // senders leave the attribute out when it is 0
};

struct UverbsMethod {
  static constexpr uint32_t kIoctl = ~0u;
  static constexpr uint16_t kNoMask = 0xffff;

  uint16_t object, method;
  uint32_t write_cmd;  // INVOKE_WRITE: value of WRITE_CMD; else kIoctl
  UverbsObject creates;
  UverbsAction action;
  std::span<const UverbsRow> rows;
  std::span<const UverbsRow> mlx5_rows = {};
  uint16_t mask_offset = kNoMask;  // of the 32-bit attribute mask in CORE_IN
};

std::span<const UverbsMethod> uverbs_methods();

}  // namespace sigma
