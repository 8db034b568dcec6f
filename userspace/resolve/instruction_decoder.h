// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// InstructionDecoder: capstone's decoding of x86-64, in the resolver's words (instruction.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "resolve/instruction.h"

struct cs_insn;

namespace sigma {

class InstructionDecoder {
 public:
  static std::unique_ptr<InstructionDecoder> open();  // null: capstone could not
  ~InstructionDecoder();
  InstructionDecoder(const InstructionDecoder&) = delete;
  InstructionDecoder& operator=(const InstructionDecoder&) = delete;

  // The first instruction of `bytes`, which stand at `address`; both go on behind it. False: it is none.
  bool decode(std::span<const std::byte>& bytes, uint64_t& address);
  // The one decoded last: in short, and in assembler's words ("push rbp").
  Instruction instruction() const;
  std::string text() const;

 private:
  InstructionDecoder() = default;

  size_t handle_ = 0;  // csh
  cs_insn* insn_ = nullptr;
};

}  // namespace sigma
