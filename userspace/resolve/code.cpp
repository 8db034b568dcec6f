// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Capstone's detail is a kilobyte and a half an instruction: what the resolver needs of it is kept
// in a tenth of that, so that a provider's whole text may stay decoded while its plan is made.
#include "resolve/code.h"

#include <capstone/capstone.h>
#include <fmt/format.h>

#include <algorithm>
#include <set>

namespace sigma {
namespace {

// libmlx5 has 90 thousand instructions, and no function beyond 20 KiB.
constexpr size_t kMaxInstructions = 512u << 10;
constexpr uint64_t kMaxFunctionBytes = 1u << 20;
constexpr uint64_t kMaxCodeBytes = 16u << 20;

constexpr std::byte kEndbr64[] = {std::byte{0xf3}, std::byte{0x0f}, std::byte{0x1e},
                                  std::byte{0xfa}};

int32_t word32(std::span<const std::byte> bytes, size_t at) {
  int32_t value;
  std::memcpy(&value, bytes.data() + at, sizeof value);
  return value;
}

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

struct Code::Decoder {
  csh handle = 0;
  cs_insn* insn = nullptr;
  ~Decoder() {
    if (insn) cs_free(insn, 1);
    if (handle) cs_close(&handle);
  }

  bool decode(std::span<const std::byte>& bytes, uint64_t& address) {
    auto* data = reinterpret_cast<const uint8_t*>(bytes.data());
    size_t size = bytes.size();
    if (!cs_disasm_iter(handle, &data, &size, &address, insn)) return false;
    bytes = bytes.last(size);
    return true;
  }

  Instruction compact() const {
    Instruction out;
    out.address = insn->address;
    out.size = static_cast<uint8_t>(insn->size);
    out.opcode = opcode_of(*insn);
    out.reads_only = reads_only(insn->id) || out.opcode == Opcode::jump_if;
    const cs_x86& x86 = insn->detail->x86;
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
    if (cs_regs_access(handle, insn, read, &read_count, written, &written_count) == CS_ERR_OK)
      for (uint8_t i = 0; i < written_count; ++i) wrote(register_number(written[i]));
    // Capstone misses the access of some operands: the first is a destination unless known better.
    if (!out.reads_only && out.operand_count && out.operands[0].type == Operand::reg)
      wrote(out.operands[0].base);
    if (insn->id == X86_INS_XCHG || insn->id == X86_INS_XADD)
      if (out.operands[1].type == Operand::reg) wrote(out.operands[1].base);
    return out;
  }
};

Code::Code(const ElfFile& elf) : elf_(elf), budget_(kMaxInstructions) {
  uint64_t code_bytes = 0;
  for (const Segment& segment : elf.segments())
    if (segment.executable) code_bytes += segment.file_size;
  if (elf.machine() != EM_X86_64 || code_bytes > kMaxCodeBytes) return;
  auto decoder = std::make_unique<Decoder>();
  if (cs_open(CS_ARCH_X86, CS_MODE_64, &decoder->handle) != CS_ERR_OK) return;
  cs_option(decoder->handle, CS_OPT_DETAIL, CS_OPT_ON);
  decoder->insn = cs_malloc(decoder->handle);
  if (!decoder->insn) return;
  decoder_ = std::move(decoder);
  find_stubs();
}

Code::~Code() = default;

// A stub is a jump through a GOT word that the loader fills with an import: ff 25 rel32, after an
// optional endbr64 and an optional bnd (f2). Found by these bytes, so it needs no section names and
// serves .plt, .plt.sec and .plt.got alike.
void Code::find_stubs() {
  for (const Segment& segment : elf_.segments()) {
    if (!segment.executable) continue;
    auto bytes = elf_.from(segment.address);
    for (size_t at = 0; at + 6 <= bytes.size(); ++at) {
      if (bytes[at] != std::byte{0xff} || bytes[at + 1] != std::byte{0x25}) continue;
      uint64_t address = segment.address + at;
      const Relocation* slot =
          elf_.relocation(address + 6 + static_cast<uint64_t>(int64_t{word32(bytes, at + 2)}));
      if (!slot || slot->import.empty()) continue;
      stubs_.push_back({address, slot->import});
      size_t lead = at;
      if (lead >= 1 && bytes[lead - 1] == std::byte{0xf2})
        stubs_.push_back({segment.address + --lead, slot->import});
      if (lead >= 4 && std::equal(std::begin(kEndbr64), std::end(kEndbr64),
                                  bytes.begin() + static_cast<ptrdiff_t>(lead) - 4))
        stubs_.push_back({segment.address + lead - 4, slot->import});
    }
  }
  std::sort(stubs_.begin(), stubs_.end());
}

std::string_view Code::stub_import(uint64_t address) const {
  auto found = std::lower_bound(stubs_.begin(), stubs_.end(), address,
                                [](const auto& stub, uint64_t a) { return stub.first < a; });
  return found != stubs_.end() && found->first == address ? found->second : std::string_view();
}

std::string_view Code::import_of(const Instruction& instruction) const {
  const Operand& operand = instruction.operands[0];
  if (operand.type == Operand::immediate) return stub_import(static_cast<uint64_t>(operand.value));
  if (operand.type != Operand::rip_memory) return {};
  const Relocation* slot = elf_.relocation(static_cast<uint64_t>(operand.value));
  return slot ? slot->import : std::string_view();
}

bool Code::in_stubs(uint64_t address) const {
  for (const Section& section : elf_.sections())
    if (section.name.starts_with(".plt") && address >= section.address &&
        address - section.address < section.size)
      return true;
  return !stub_import(address).empty();
}

std::vector<uint64_t> Code::import_places(std::string_view import) const {
  std::vector<uint64_t> places;
  for (const auto& [address, name] : stubs_)
    if (name == import) places.push_back(address);
  for (const Relocation& relocation : elf_.relocations())
    if (relocation.import == import) places.push_back(relocation.address);
  std::sort(places.begin(), places.end());
  return places;
}

const std::vector<Instruction>& Code::body(const FunctionRange& function) {
  auto [entry, fresh] = bodies_.try_emplace(function.start);
  std::vector<Instruction>& body = entry->second;
  if (!fresh || !decoder_ || function.size > kMaxFunctionBytes) return body;
  auto bytes = elf_.at(function.start, function.size);
  uint64_t address = function.start;
  body.reserve(std::min<size_t>(bytes.size() / 4 + 1, budget_));
  while (!bytes.empty() && budget_ > 0 && decoder_->decode(bytes, address)) {
    body.push_back(decoder_->compact());
    --budget_;
  }
  return body;
}

std::string Code::disassemble(const Instruction& instruction) {
  auto bytes = elf_.at(instruction.address, instruction.size);
  uint64_t address = instruction.address;
  if (!decoder_ || bytes.empty() || !decoder_->decode(bytes, address)) return {};
  std::string_view operands = decoder_->insn->op_str;
  return operands.empty() ? decoder_->insn->mnemonic
                          : fmt::format("{} {}", decoder_->insn->mnemonic, operands);
}

const Code::Exits& Code::exits(const FunctionRange& function) {
  auto [entry, fresh] = exits_.try_emplace(function.start);
  Exits& exits = entry->second;
  if (!fresh) return exits;
  for (const Instruction& instruction : body(function)) {
    if (!instruction.branch() && instruction.opcode != Opcode::call) continue;
    if (auto import = import_of(instruction); !import.empty()) {
      exits.imports.push_back(import);
      continue;
    }
    uint64_t destination = instruction.destination();
    if (destination == 0) continue;
    if (instruction.branch() && destination - function.start < function.size) continue;
    // A jump may lead into the middle of a part that the compiler moved away.
    if (const FunctionRange* callee = elf_.function_around(destination))
      exits.functions.push_back(callee);
  }
  std::sort(exits.functions.begin(), exits.functions.end());
  exits.functions.erase(std::unique(exits.functions.begin(), exits.functions.end()),
                        exits.functions.end());
  return exits;
}

std::vector<const FunctionRange*> Code::reachable(std::span<const FunctionRange* const> starts,
                                                  unsigned depth) {
  std::vector<const FunctionRange*> order;
  std::set<const FunctionRange*> seen;
  for (const FunctionRange* start : starts)
    if (seen.insert(start).second) order.push_back(start);
  size_t begin = 0;
  for (unsigned step = 0; step < depth; ++step) {
    size_t end = order.size();
    for (; begin < end; ++begin)
      for (const FunctionRange* callee : exits(*order[begin]).functions)
        if (seen.insert(callee).second) order.push_back(callee);
  }
  return order;
}

Code::Reach Code::reaches(const FunctionRange& start, std::string_view prefix,
                          std::string_view family, unsigned depth) {
  Reach reach;
  std::set<const FunctionRange*> seen{&start};
  std::vector<const FunctionRange*> frontier{&start};
  for (unsigned step = 0; step < depth && !frontier.empty(); ++step) {
    std::vector<const FunctionRange*> next;
    for (const FunctionRange* function : frontier) {
      const Exits& out = exits(*function);
      for (std::string_view import : out.imports) {
        if (import.starts_with(prefix)) return {true, true};
        if (import.starts_with(family)) reach.family = true;
      }
      for (const FunctionRange* callee : out.functions)
        if (seen.insert(callee).second) next.push_back(callee);
    }
    frontier = std::move(next);
  }
  return reach;
}

std::vector<const FunctionRange*> Code::functions_referring_to(
    std::span<const uint64_t> addresses) const {
  std::set<const FunctionRange*> found;
  if (addresses.empty() || !decoder_) return {};
  for (const Segment& segment : elf_.segments()) {
    if (!segment.executable) continue;
    auto bytes = elf_.from(segment.address);
    for (size_t at = 0; at + 4 <= bytes.size(); ++at) {
      uint64_t target =
          segment.address + at + 4 + static_cast<uint64_t>(int64_t{word32(bytes, at)});
      if (target < addresses.front() || target > addresses.back()) continue;
      if (!std::binary_search(addresses.begin(), addresses.end(), target)) continue;
      if (const FunctionRange* function = elf_.function_around(segment.address + at))
        found.insert(function);
    }
  }
  return {found.begin(), found.end()};
}

std::vector<const FunctionRange*> Code::functions_containing(uint32_t word,
                                                             uint64_t max_bytes) const {
  std::vector<const FunctionRange*> found;
  if (!decoder_) return found;
  for (const FunctionRange& function : elf_.functions()) {
    if (function.size > max_bytes) continue;
    auto bytes = elf_.at(function.start, function.size);
    for (size_t at = 0; at + 4 <= bytes.size(); ++at)
      if (static_cast<uint32_t>(word32(bytes, at)) == word) {
        found.push_back(&function);
        break;
      }
  }
  return found;
}

bool Code::may_branch_into(uint64_t low, uint64_t high) const {
  if (!branches_scanned_ && decoder_) {
    branches_scanned_ = true;
    for (const Segment& segment : elf_.segments()) {
      if (!segment.executable) continue;
      auto bytes = elf_.from(segment.address);
      for (size_t at = 0; at + 5 <= bytes.size(); ++at) {
        auto first = std::to_integer<uint8_t>(bytes[at]);
        bool near_branch =
            first == 0xe8 || first == 0xe9 || (first & 0xf0) == 0x80;  // 0f 8x: its 2nd byte
        if (!near_branch) continue;
        if ((first & 0xf0) == 0x80 && (at == 0 || bytes[at - 1] != std::byte{0x0f})) continue;
        uint64_t target =
            segment.address + at + 5 + static_cast<uint64_t>(int64_t{word32(bytes, at + 1)});
        if (elf_.executable(target)) branch_destinations_.push_back(target);
      }
    }
    std::sort(branch_destinations_.begin(), branch_destinations_.end());
  }
  auto at = std::lower_bound(branch_destinations_.begin(), branch_destinations_.end(), low);
  return at != branch_destinations_.end() && *at <= high;
}

}  // namespace sigma
