// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Code: the machine code of one ElfFile, decoded function by function when asked and kept.
//
// x86-64 only; for other machines body() is empty and every rung that needs instructions says so.
// Work is bounded: a hostile file can make it give up early, never loop.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "resolve/elf_file.h"

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

class Code {
 public:
  // `elf` must outlive the Code.
  explicit Code(const ElfFile& elf);
  ~Code();
  Code(const Code&) = delete;
  Code& operator=(const Code&) = delete;

  const ElfFile& elf() const { return elf_; }

  // The function's instructions in order of address, up to the first that does not decode.
  const std::vector<Instruction>& body(const FunctionRange& function);

  // The instruction in assembler's words, "push rbp".
  std::string disassemble(const Instruction& instruction);

  // The imported function that a call or jump to `address` reaches through a PLT stub.
  std::string_view stub_import(uint64_t address) const;
  // The imported function that a call or jump reaches, by stub or through the GOT (-fno-plt).
  std::string_view import_of(const Instruction& instruction) const;
  bool in_stubs(uint64_t address) const;
  // Stubs of an import and its words in the GOT, by address: what code that uses it refers to.
  std::vector<uint64_t> import_places(std::string_view import) const;

  // What a function may lead to in one step: calls, and jumps that leave it.
  struct Exits {
    std::vector<const FunctionRange*> functions;
    std::vector<std::string_view> imports;
  };
  const Exits& exits(const FunctionRange& function);

  // Functions reachable from `starts` in at most `depth` steps, these included.
  std::vector<const FunctionRange*> reachable(std::span<const FunctionRange* const> starts,
                                              unsigned depth);
  // Whether an import whose name begins with `prefix` is reached; `other` tells whether any import
  // that begins with `family` is.
  struct Reach {
    bool wanted = false, family = false;
  };
  Reach reaches(const FunctionRange& start, std::string_view prefix, std::string_view family,
                unsigned depth);

  // Functions whose code has a 32-bit pc-relative reference to one of the addresses (sorted): found
  // by a scan over all byte positions, so nothing is missed, and a few may be there by chance.
  std::vector<const FunctionRange*> functions_referring_to(
      std::span<const uint64_t> addresses) const;
  // Functions of at most `max_bytes` whose code has this 32-bit word at any byte position.
  std::vector<const FunctionRange*> functions_containing(uint32_t word, uint64_t max_bytes) const;
  // Whether anything, at any byte position, may be a 32-bit call or branch into [low, high].
  bool may_branch_into(uint64_t low, uint64_t high) const;

 private:
  struct Decoder;
  void find_stubs();

  const ElfFile& elf_;
  std::unique_ptr<Decoder> decoder_;
  size_t budget_;
  std::map<uint64_t, std::vector<Instruction>> bodies_;
  std::map<uint64_t, Exits> exits_;
  std::vector<std::pair<uint64_t, std::string_view>> stubs_;  // by address
  mutable std::vector<uint64_t> branch_destinations_;         // by address, filled when first asked
  mutable bool branches_scanned_ = false;
};

}  // namespace sigma
