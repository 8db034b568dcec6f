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
#include "resolve/instruction.h"

namespace sigma {

class InstructionDecoder;

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
  void find_stubs();

  const ElfFile& elf_;
  std::unique_ptr<InstructionDecoder> decoder_;
  size_t budget_;
  std::map<uint64_t, std::vector<Instruction>> bodies_;
  std::map<uint64_t, Exits> exits_;
  std::vector<std::pair<uint64_t, std::string_view>> stubs_;  // by address
  mutable std::vector<uint64_t> branch_destinations_;         // by address, filled when first asked
  mutable bool branches_scanned_ = false;
};

}  // namespace sigma
