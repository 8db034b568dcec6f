// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Vector registers as carriers of pointers: compilers fill neighbouring members of a structure two
// or four at a time, from pairs put together in a register or from constants in .data.rel.ro.
#include "resolve/flow.h"

namespace sigma {
namespace {

bool is_vector(const Operand& operand) {
  return operand.type == Operand::reg && operand.base >= kVector0 && operand.base != kNoRegister;
}

}  // namespace

Flow::Lanes Flow::lanes(const State& state, const Operand& operand) {
  if (is_vector(operand)) {
    Lanes all = state.vector[operand.base - kVector0];
    if (operand.size < 32) all[2] = all[3] = 0;
    return all;
  }
  if (operand.type == Operand::reg) return {source(state, operand)};
  Lanes loaded{};
  for (size_t lane = 0; lane < 4 && operand.size >= 8 * (lane + 1); ++lane)
    loaded[lane] = load(state, operand, static_cast<int64_t>(8 * lane));
  return loaded;
}

// True when it was a vector instruction that matters here. Forms of three operands (VEX) name the
// first source apart; the others use the destination for it. What an instruction keeps of the upper
// halves is dropped: nothing builds a value there piece by piece but the insertions.
bool Flow::vector_step(State& state, const Instruction& instruction, FlowVisitor* visitor) {
  const Operand& to = instruction.operands[0];
  const Operand& second = instruction.operands[1];
  bool three = instruction.operand_count >= 3 && instruction.operands[2].type != Operand::immediate;
  const Operand& first_source = three ? second : to;
  const Operand& last_source = three ? instruction.operands[2] : second;
  unsigned selected = 0;  // by the immediate, which is the last operand
  if (instruction.operand_count >= 3)
    selected = static_cast<unsigned>(instruction.operands[instruction.operand_count - 1].value) & 1;

  Lanes result{};
  switch (instruction.opcode) {
    case Opcode::vector_move: {
      Lanes value = lanes(state, second);
      if (to.type == Operand::memory) {
        for (size_t lane = 0; lane < 4 && to.size >= 8 * (lane + 1); ++lane)
          store(state, instruction, to, static_cast<int64_t>(8 * lane), value[lane], visitor);
        return true;
      }
      if (to.type == Operand::reg && to.base < 16) {
        state.general[to.base] = value[0];
        return true;
      }
      result = value;
      break;
    }
    case Opcode::vector_high:
      if (to.type == Operand::memory) {
        store(state, instruction, to, 0, lanes(state, second)[1], visitor);
        return true;
      }
      result = {lanes(state, first_source)[0], load(state, last_source)};
      break;
    case Opcode::vector_unpack: {
      Lanes a = lanes(state, first_source), b = lanes(state, last_source);
      result = {a[0], b[0], a[2], b[2]};
      break;
    }
    case Opcode::vector_insert:  // pinsrq
      result = lanes(state, first_source);
      result[selected] = source(state, last_source);
      result[2] = result[3] = 0;
      break;
    case Opcode::vector_insert_half: {  // vinserti128
      Lanes half = lanes(state, last_source);
      result = lanes(state, first_source);
      result[2 * selected] = half[0];
      result[2 * selected + 1] = half[1];
      break;
    }
    default:
      return false;
  }
  if (!is_vector(to)) return false;
  state.vector[to.base - kVector0] = result;
  return true;
}

}  // namespace sigma
