// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
#include "resolve/probe_site.h"

#include <fmt/format.h>

#include <algorithm>

namespace sigma {
namespace {

// Nanoseconds a hit, medians on the reference machine (bench post).
constexpr uint32_t expected_ns(InstructionKind kind) {
  switch (kind) {
    case InstructionKind::push:
      return 560;
    case InstructionKind::nop5:
      return 390;
    case InstructionKind::nop:
    case InstructionKind::jump:
    case InstructionKind::call:
      return 540;
    case InstructionKind::single_step:
      break;
  }
  return 11000;
}

uint8_t byte_at(std::span<const std::byte> bytes, size_t i) {
  return i < bytes.size() ? std::to_integer<uint8_t>(bytes[i]) : 0;
}

// Kernels before 6.18 emulate 90 and its prefixed forms only, and step over the long forms (0f 1f).
bool short_nop(std::span<const std::byte> bytes) {
  return byte_at(bytes, bytes.size() - 1) == 0x90 && bytes.size() <= 2;
}

struct Candidate {
  const Instruction* instruction;
  InstructionKind kind;
  bool return_valid;
  bool long_nop;
};

// The straight line from the entry: every instruction in it runs in every call.
class EntryBlock {
 public:
  EntryBlock(Code& code, const FunctionRange& function, unsigned arguments)
      : code_(code), elf_(code.elf()), function_(function) {
    for (unsigned i = 0; i < std::min(arguments, 6u); ++i) wanted_ |= 1u << kArgumentRegisters[i];
  }

  std::vector<Candidate> candidates() {
    std::vector<Candidate> found;
    const auto& body = code_.body(function_);
    bool stack_moved = false;
    for (const Instruction& instruction : body) {
      auto bytes = elf_.at(instruction.address, instruction.size);
      InstructionKind kind = classify_instruction(bytes);
      bool first = instruction.address == function_.start ||
                   (&instruction == &body[1] && body[0].opcode == Opcode::endbr);
      // A nop5 becomes a call that writes below rsp on 6.18: at the very start nothing lives there.
      bool usable =
          kind != InstructionKind::single_step && (kind != InstructionKind::nop5 || first);
      if (usable && once(instruction, kind)) {
        bool long_nop =
            (kind == InstructionKind::nop || kind == InstructionKind::nop5) && !short_nop(bytes);
        found.push_back({&instruction, kind, !stack_moved, long_nop});
      }
      bool leaves = instruction.branch() || instruction.opcode == Opcode::call ||
                    instruction.opcode == Opcode::ret || instruction.opcode == Opcode::stop;
      // A system call would clobber rcx and may not return; what does not name its writes is not
      // passed.
      if (leaves || instruction.writes & wanted_) break;
      stack_moved |= (instruction.writes >> kRsp & 1) != 0;
      stack_moved |= instruction.opcode == Opcode::push || instruction.opcode == Opcode::pop;
    }
    return found;
  }

 private:
  // Nothing may come back to the instruction, or to one before it, within the same call. (A jump to
  // the entry itself is refused before.)
  bool once(const Instruction& instruction, InstructionKind kind) {
    if (instruction.address == function_.start) return true;
    uint64_t low = function_.start + 1, high = instruction.address;
    bool table_jump = false;
    for (const Instruction& other : code_.body(function_)) {
      if (!other.branch()) continue;
      uint64_t destination = other.destination();
      if (destination >= low && destination <= high) return false;
      table_jump |= destination == 0 && other.operands[0].type != Operand::rip_memory;
    }
    if (code_.may_branch_into(low, high) || neighbour_branches_into(low, high)) return false;
    // A jump through a register may be a loop's switch, with cases anywhere; but no loop pushes.
    return !table_jump || kind == InstructionKind::push;
  }

  // Short branches out of another function, a part of this one that was moved nearby; the far ones
  // are may_branch_into()'s.
  bool neighbour_branches_into(uint64_t low, uint64_t high) {
    constexpr uint64_t kShort = 130;  // 127 and the instruction's own bytes
    const auto& functions = elf_.functions();
    auto after = std::lower_bound(functions.begin(), functions.end(), high + kShort,
                                  [](const FunctionRange& f, uint64_t a) { return f.start < a; });
    while (after != functions.begin() && (--after)->end() + kShort > low) {
      if (after->start == function_.start) continue;
      for (const Instruction& other : code_.body(*after))
        if (other.branch() && other.destination() >= low && other.destination() <= high)
          return true;
    }
    return false;
  }

  Code& code_;
  const ElfFile& elf_;
  const FunctionRange& function_;
  uint32_t wanted_ = 0;
};

ProbeSite site_of(Code& code, const FunctionRange& function, const Candidate& candidate,
                  uint64_t entry_offset) {
  ProbeSite site;
  site.delta = static_cast<uint32_t>(candidate.instruction->address - function.start);
  site.file_offset = entry_offset + site.delta;
  site.kind = candidate.kind;
  site.return_valid = candidate.return_valid;
  site.expected_ns = expected_ns(candidate.kind);
  site.instruction = code.disassemble(*candidate.instruction);
  return site;
}

}  // namespace

InstructionKind classify_instruction(std::span<const std::byte> bytes) {
  uint8_t first = byte_at(bytes, 0), second = byte_at(bytes, 1);
  size_t size = bytes.size();
  if (size == 1 && first >= 0x50 && first <= 0x57) return InstructionKind::push;
  if (size == 2 && first == 0x41 && second >= 0x50 && second <= 0x57) return InstructionKind::push;
  if (size == 2 && (first == 0xeb || (first >= 0x70 && first <= 0x7f)))
    return InstructionKind::jump;
  if (size == 5 && first == 0xe9) return InstructionKind::jump;
  if (size == 6 && first == 0x0f && second >= 0x80 && second <= 0x8f) return InstructionKind::jump;
  if (size == 5 && first == 0xe8) return InstructionKind::call;
  if ((size == 1 && first == 0x90) || (size == 2 && first == 0x66 && second == 0x90))
    return InstructionKind::nop;
  // The canonical long nops, which alone are recognised: lengths 3 to 8 (asm/nops.h).
  static constexpr std::string_view kNops[] = {
      {"\x0f\x1f\x00", 3},
      {"\x0f\x1f\x40\x00", 4},
      {"\x0f\x1f\x44\x00\x00", 5},
      {"\x66\x0f\x1f\x44\x00\x00", 6},
      {"\x0f\x1f\x80\x00\x00\x00\x00", 7},
      {"\x0f\x1f\x84\x00\x00\x00\x00\x00", 8},
  };
  std::string_view text(reinterpret_cast<const char*>(bytes.data()), size);
  for (std::string_view nop : kNops)
    if (text == nop) return size == 5 ? InstructionKind::nop5 : InstructionKind::nop;
  return InstructionKind::single_step;
}

Result<ProbeSites> choose_probe_sites(Code& code, const FunctionRange& function,
                                      unsigned arguments) {
  const ElfFile& elf = code.elf();
  auto offset = elf.offset_of(function.start);
  // The kernel goes from the offset to the address: both ways must agree, for the whole function.
  if (!offset || elf.address_of(*offset) != function.start ||
      elf.at(function.start, function.size).empty())
    return Error{fmt::format("{:#x} is not at one place of the file", function.start)};

  ProbeSites sites;
  if (elf.machine() != EM_X86_64) {
    sites.entry.file_offset = *offset;
    sites.entry.return_valid = true;
    sites.entry.expected_ns = expected_ns(InstructionKind::single_step);
    sites.paired = sites.entry;
    return sites;
  }
  const auto& body = code.body(function);
  if (body.empty()) return Error{fmt::format("no instruction decodes at {:#x}", function.start)};
  for (const Instruction& instruction : body)
    if (instruction.branch() && instruction.destination() == function.start)
      return Error{
          fmt::format("the function at {:#x} loops over its entry: calls cannot be counted there",
                      function.start)};
  // The entry, single-stepped, always serves. It may be an emulated instruction all the same.
  auto entry_kind = classify_instruction(elf.at(body[0].address, body[0].size));
  Candidate fallback{&body[0], entry_kind, true, false};

  auto candidates = EntryBlock(code, function, arguments).candidates();
  auto best = [&](bool paired) {
    const Candidate* found = nullptr;
    for (const Candidate& candidate : candidates) {
      if (paired && !candidate.return_valid) continue;
      if (!found || (found->long_nop && !candidate.long_nop)) found = &candidate;
    }
    return found ? *found : fallback;
  };
  sites.entry = site_of(code, function, best(false), *offset);
  sites.paired = site_of(code, function, best(true), *offset);
  return sites;
}

}  // namespace sigma
