// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Instruction: what the resolver needs to know of a machine instruction of x86-64. Capstone's detail is a
// kilobyte and a half an instruction; this is a tenth of it, so that a provider's whole text may stay
// decoded while its plan is made.
#pragma once

#include <cstdint>

namespace sigma {

// General registers in the order of their encoding, then the vector registers.
inline constexpr uint8_t kRax = 0, kRcx = 1, kRdx = 2, kRsp = 4, kRbp = 5, kRsi = 6, kRdi = 7,
                         kR8 = 8, kR9 = 9, kVector0 = 16, kNoRegister = 0xff;
// System V AMD64 psABI 3.2.3: integer arguments, and what a call leaves undefined.
inline constexpr uint8_t kArgumentRegisters[] = {kRdi, kRsi, kRdx, kRcx, kR8, kR9};
inline constexpr uint32_t kCallClobbered = 0x0fc7;  // rax rcx rdx rsi rdi r8-r11

struct Operand {
  enum Type : uint8_t { none, reg, memory, rip_memory, immediate };
  Type type = none;
  uint8_t size = 0;             // bytes
  uint8_t base = kNoRegister;   // reg: the register; memory: the base register
  uint8_t index = kNoRegister;  // memory
  uint8_t scale = 1;            // memory: of the index
  int64_t value = 0;            // immediate; memory: displacement; rip_memory: the address
};

enum class Opcode : uint8_t {
  other,
  endbr,
  nop,
  push,
  pop,
  call,
  jump,
  jump_if,
  ret,
  stop,
  lea,
  move,
  move_if,
  add,
  sub,
  move_zero,    // movzx
  swap_bytes,   // bswap; of two bytes a rotation by 8
  bit_and,
  shift_right,  // shr, of an unsigned value
  vector_move,         // whole register, or its low 8 bytes with the rest zeroed (size tells)
  vector_high,         // movhps and kin: memory into the second 8 bytes
  vector_unpack,       // punpcklqdq: the first 8 bytes of both sources
  vector_insert,       // pinsrq
  vector_insert_half,  // vinserti128
};

struct Instruction {
  uint64_t address = 0;
  uint8_t size = 0;
  Opcode opcode = Opcode::other;
  uint8_t operand_count = 0;
  bool reads_only = false;  // cmp, test and kin: operand 0 is not written
  uint32_t writes = 0;      // bit r: general register r, whole or in part
  uint16_t vector_writes = 0;
  Operand operands[4];
  uint64_t end() const { return address + size; }
  bool branch() const { return opcode == Opcode::jump || opcode == Opcode::jump_if; }
  // Destination of a direct call or branch; 0 when indirect.
  uint64_t destination() const {
    bool direct = operand_count == 1 && operands[0].type == Operand::immediate;
    return direct ? static_cast<uint64_t>(operands[0].value) : 0;
  }
};

}  // namespace sigma
