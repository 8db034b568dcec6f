// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
#include "resolve/instruction_decoder.h"

#include <capstone/capstone.h>
#include <fmt/format.h>

#include <algorithm>
#include <string_view>
#include <type_traits>

namespace sigma {
namespace {

static_assert(std::is_same_v<csh, size_t>);

// General register number, or kVector0 + n for xmm, ymm; kNoRegister for all else.
uint8_t register_number(unsigned reg) {
  switch (reg) {
#define SIGMA_REGISTER(number, r64, r32, r16, r8) \
  case X86_REG_##r64:                             \
  case X86_REG_##r32:                             \
  case X86_REG_##r16:                             \
  case X86_REG_##r8:                              \
    return number;
    SIGMA_REGISTER(0, RAX, EAX, AX, AL)
    SIGMA_REGISTER(1, RCX, ECX, CX, CL)
    SIGMA_REGISTER(2, RDX, EDX, DX, DL)
    SIGMA_REGISTER(3, RBX, EBX, BX, BL)
    SIGMA_REGISTER(4, RSP, ESP, SP, SPL)
    SIGMA_REGISTER(5, RBP, EBP, BP, BPL)
    SIGMA_REGISTER(6, RSI, ESI, SI, SIL)
    SIGMA_REGISTER(7, RDI, EDI, DI, DIL)
    SIGMA_REGISTER(8, R8, R8D, R8W, R8B)
    SIGMA_REGISTER(9, R9, R9D, R9W, R9B)
    SIGMA_REGISTER(10, R10, R10D, R10W, R10B)
    SIGMA_REGISTER(11, R11, R11D, R11W, R11B)
    SIGMA_REGISTER(12, R12, R12D, R12W, R12B)
    SIGMA_REGISTER(13, R13, R13D, R13W, R13B)
    SIGMA_REGISTER(14, R14, R14D, R14W, R14B)
    SIGMA_REGISTER(15, R15, R15D, R15W, R15B)
#undef SIGMA_REGISTER
    case X86_REG_AH:
      return 0;
    case X86_REG_CH:
      return 1;
    case X86_REG_DH:
      return 2;
    case X86_REG_BH:
      return 3;
    default:
      break;
  }
  if (reg >= X86_REG_XMM0 && reg <= X86_REG_XMM15)
    return static_cast<uint8_t>(kVector0 + reg - X86_REG_XMM0);
  if (reg >= X86_REG_YMM0 && reg <= X86_REG_YMM15)
    return static_cast<uint8_t>(kVector0 + reg - X86_REG_YMM0);
  return kNoRegister;
}

// rol ax, 8: how compilers swap two bytes.
bool is_half_swap(const cs_insn& insn) {
  const cs_x86& x86 = insn.detail->x86;
  return x86.op_count == 2 && x86.operands[0].type == X86_OP_REG && x86.operands[0].size == 2 &&
         x86.operands[1].type == X86_OP_IMM && x86.operands[1].imm == 8;
}

Opcode opcode_of(const cs_insn& insn) {
  switch (insn.id) {
    case X86_INS_ENDBR64:
      return Opcode::endbr;
    case X86_INS_NOP:
      return Opcode::nop;
    case X86_INS_PUSH:
      return Opcode::push;
    case X86_INS_POP:
      return Opcode::pop;
    case X86_INS_CALL:
      return Opcode::call;
    case X86_INS_JMP:
      return Opcode::jump;
    case X86_INS_RET:
      return Opcode::ret;
    case X86_INS_UD2:
    case X86_INS_HLT:
    case X86_INS_INT3:
      return Opcode::stop;
    case X86_INS_LEA:
      return Opcode::lea;
    case X86_INS_MOV:
    case X86_INS_MOVABS:
      return Opcode::move;
    case X86_INS_ADD:
      return Opcode::add;
    case X86_INS_SUB:
      return Opcode::sub;
    case X86_INS_MOVZX:
      return Opcode::move_zero;
    case X86_INS_BSWAP:
      return Opcode::swap_bytes;
    case X86_INS_ROL:
    case X86_INS_ROR:
      return is_half_swap(insn) ? Opcode::swap_bytes : Opcode::other;
    case X86_INS_AND:
      return Opcode::bit_and;
    case X86_INS_SHR:
      return Opcode::shift_right;
    case X86_INS_MOVQ:
    case X86_INS_VMOVQ:
    case X86_INS_MOVDQA:
    case X86_INS_MOVDQU:
    case X86_INS_MOVAPS:
    case X86_INS_MOVAPD:
    case X86_INS_MOVUPS:
    case X86_INS_MOVUPD:
    case X86_INS_VMOVDQA:
    case X86_INS_VMOVDQU:
    case X86_INS_VMOVAPS:
    case X86_INS_VMOVUPS:
      return Opcode::vector_move;
    case X86_INS_MOVHPS:
    case X86_INS_MOVHPD:
    case X86_INS_VMOVHPS:
    case X86_INS_VMOVHPD:
      return Opcode::vector_high;
    case X86_INS_PUNPCKLQDQ:
    case X86_INS_VPUNPCKLQDQ:
      return Opcode::vector_unpack;
    case X86_INS_PINSRQ:
    case X86_INS_VPINSRQ:
      return Opcode::vector_insert;
    case X86_INS_VINSERTI128:
    case X86_INS_VINSERTF128:
      return Opcode::vector_insert_half;
    default:
      break;
  }
  for (uint8_t i = 0; i < insn.detail->groups_count; ++i)
    if (insn.detail->groups[i] == X86_GRP_JUMP) return Opcode::jump_if;
  if (std::string_view(insn.mnemonic).starts_with("cmov")) return Opcode::move_if;
  return Opcode::other;
}

bool reads_only(unsigned id) {
  return id == X86_INS_CMP || id == X86_INS_TEST || id == X86_INS_PUSH || id == X86_INS_BT ||
         id == X86_INS_CALL || id == X86_INS_JMP || id == X86_INS_NOP;
}

Operand operand_of(const cs_x86_op& from, uint64_t next) {
  Operand operand;
  operand.size = from.size;
  switch (from.type) {
    case X86_OP_REG:
      operand.type = Operand::reg;
      operand.base = register_number(from.reg);
      break;
    case X86_OP_IMM:
      operand.type = Operand::immediate;
      operand.value = from.imm;
      break;
    case X86_OP_MEM:
      operand.type = Operand::memory;
      operand.value = from.mem.disp;
      if (from.mem.base == X86_REG_RIP) {
        operand.type = Operand::rip_memory;
        operand.value = static_cast<int64_t>(next + static_cast<uint64_t>(from.mem.disp));
      }
      // A segment register's base is unknown: such memory is nobody's field.
      if (from.mem.segment == X86_REG_INVALID || from.mem.segment == X86_REG_DS)
        operand.base = register_number(from.mem.base);
      operand.index = register_number(from.mem.index);
      operand.scale = static_cast<uint8_t>(from.mem.scale);
      break;
    default:
      break;
  }
  return operand;
}

}  // namespace

std::unique_ptr<InstructionDecoder> InstructionDecoder::open() {
  std::unique_ptr<InstructionDecoder> decoder(new InstructionDecoder);
  if (cs_open(CS_ARCH_X86, CS_MODE_64, &decoder->handle_) != CS_ERR_OK) return nullptr;
  cs_option(decoder->handle_, CS_OPT_DETAIL, CS_OPT_ON);
  decoder->insn_ = cs_malloc(decoder->handle_);
  return decoder->insn_ ? std::move(decoder) : nullptr;
}

InstructionDecoder::~InstructionDecoder() {
  if (insn_) cs_free(insn_, 1);
  if (handle_) cs_close(&handle_);
}

bool InstructionDecoder::decode(std::span<const std::byte>& bytes, uint64_t& address) {
  auto* data = reinterpret_cast<const uint8_t*>(bytes.data());
  size_t size = bytes.size();
  if (!cs_disasm_iter(handle_, &data, &size, &address, insn_)) return false;
  bytes = bytes.last(size);
  return true;
}

Instruction InstructionDecoder::instruction() const {
  Instruction out;
  out.address = insn_->address;
  out.size = static_cast<uint8_t>(insn_->size);
  out.opcode = opcode_of(*insn_);
  out.reads_only = reads_only(insn_->id) || out.opcode == Opcode::jump_if;
  const cs_x86& x86 = insn_->detail->x86;
  out.operand_count = std::min<uint8_t>(x86.op_count, 4);
  for (uint8_t i = 0; i < out.operand_count; ++i)
    out.operands[i] = operand_of(x86.operands[i], out.end());

  auto wrote = [&](uint8_t number) {
    if (number < kVector0)
      out.writes |= 1u << number;
    else if (number != kNoRegister)
      out.vector_writes |= static_cast<uint16_t>(1u << (number - kVector0));
  };
  cs_regs read, written;
  uint8_t read_count = 0, written_count = 0;
  if (cs_regs_access(handle_, insn_, read, &read_count, written, &written_count) == CS_ERR_OK)
    for (uint8_t i = 0; i < written_count; ++i) wrote(register_number(written[i]));
  // Capstone misses the access of some operands: the first is a destination unless known better.
  if (!out.reads_only && out.operand_count && out.operands[0].type == Operand::reg)
    wrote(out.operands[0].base);
  if (insn_->id == X86_INS_XCHG || insn_->id == X86_INS_XADD)
    if (out.operands[1].type == Operand::reg) wrote(out.operands[1].base);
  return out;
}

std::string InstructionDecoder::text() const {
  const std::string_view operands = insn_->op_str;
  return operands.empty() ? insn_->mnemonic : fmt::format("{} {}", insn_->mnemonic, operands);
}

}  // namespace sigma
