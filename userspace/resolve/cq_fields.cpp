// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// The function's only argument is followed through its registers: the CQ, a structure that the CQ
// points to, a field of either, and the swap, shift and mask applied to the field.
#include "resolve/cq_fields.h"

#include <array>

namespace sigma {
namespace {

constexpr size_t kMaxInstructions = 24;
constexpr int64_t kMaxOffset = 1 << 16;

struct Value {
  enum Kind : uint8_t { unknown, cq, structure, field } kind = unknown;
  int64_t pointer = 0;  // structure: where in the CQ the pointer to it is
  int64_t offset = 0;   // cq, structure: added to the pointer so far
  sigma_cq_field place{};
};

uint32_t mask_of(unsigned bytes) {
  return bytes >= 4 ? ~0u : (1u << 8 * bytes) - 1;
}

Value load(const Value& base, int64_t displacement, uint8_t size) {
  Value out;
  const int64_t offset = base.offset + displacement;
  if (offset < 0 || offset >= kMaxOffset) return out;
  if (base.kind != Value::cq && base.kind != Value::structure) return out;
  if (size == 8) {
    if (base.kind != Value::cq) return out;
    out.kind = Value::structure;
    out.pointer = offset;
    return out;
  }
  if (size != 1 && size != 2 && size != 4) return out;
  out.kind = Value::field;
  out.place.pointer =
      base.kind == Value::cq ? SIGMA_CQ_EMBEDDED : static_cast<uint32_t>(base.pointer);
  out.place.offset = static_cast<uint32_t>(offset);
  out.place.size = size;
  out.place.mask = mask_of(size);
  return out;
}

class Reader {
 public:
  Reader() { registers_[kRdi].kind = Value::cq; }

  // False: the function does more than reading.
  bool step(const Instruction& i) {
    if (i.branch() || i.opcode == Opcode::call || i.opcode == Opcode::stop) return false;
    const Operand& to = i.operands[0];
    const Operand& from = i.operands[1];
    Value result;
    switch (i.opcode) {
      case Opcode::move:
      case Opcode::move_zero:
        if (to.type != Operand::reg && i.opcode == Opcode::move) return false;  // a store
        result = source(from);
        if (result.kind == Value::field && from.type == Operand::reg)
          result.place.mask &= mask_of(from.size);
        // Into a part of a register, the rest of which stays.
        if (i.opcode == Opcode::move && to.size < 4) result = {};
        break;
      case Opcode::lea:
        if (from.base < 16 && from.index == kNoRegister) {
          result = registers_[from.base];
          result.offset = result.offset + from.value;
          if (result.kind == Value::field || result.offset < 0 || result.offset >= kMaxOffset)
            result = {};
        }
        break;
      case Opcode::swap_bytes:
        result = of(to);
        if (result.kind != Value::field || result.place.size != to.size || result.place.shift ||
            result.place.mask != mask_of(to.size))
          result = {};
        else
          result.place.swapped ^= 1;
        break;
      case Opcode::bit_and:
        result = of(to);
        if (result.kind == Value::field && from.type == Operand::immediate && from.value >= 0)
          result.place.mask &= static_cast<uint32_t>(from.value);
        else
          result = {};
        break;
      case Opcode::shift_right:
        result = of(to);
        if (result.kind == Value::field && from.type == Operand::immediate && from.value > 0 &&
            from.value < 8 * result.place.size) {
          result.place.shift = static_cast<uint8_t>(result.place.shift + from.value);
          result.place.mask >>= from.value;
        } else {
          result = {};
        }
        break;
      default:
        break;
    }
    for (uint8_t r = 0; r < 16; ++r)
      if (i.writes >> r & 1) registers_[r] = {};
    if (to.type == Operand::reg && to.base < 16 && !i.reads_only) registers_[to.base] = result;
    return true;
  }

  std::optional<sigma_cq_field> result() const {
    const Value& value = registers_[kRax];
    if (value.kind != Value::field) return std::nullopt;
    return value.place;
  }

 private:
  Value of(const Operand& operand) const {
    return operand.type == Operand::reg && operand.base < 16 ? registers_[operand.base] : Value{};
  }
  Value source(const Operand& from) const {
    if (from.type == Operand::reg) return of(from);
    if (from.type == Operand::memory && from.base < 16 && from.index == kNoRegister)
      return load(registers_[from.base], from.value, from.size);
    return {};
  }

  std::array<Value, 16> registers_{};
};

}  // namespace

std::optional<sigma_cq_field> field_returned_by(Code& code, const FunctionRange& function) {
  Reader reader;
  size_t count = 0;
  for (const Instruction& instruction : code.body(function)) {
    if (instruction.opcode == Opcode::ret) return reader.result();
    if (++count > kMaxInstructions || !reader.step(instruction)) return std::nullopt;
  }
  return std::nullopt;
}

}  // namespace sigma
