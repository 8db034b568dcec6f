// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Flow: which pointers may be in a register at each instruction of a function.
//
// A forward may-analysis over basic blocks: a value is the set of things a register may hold that
// the resolver cares about; an empty set means anything else. Sets only grow and are capped, so it
// ends.
//
//   argument  the function's n-th argument plus a constant
//   loaded    what was read from [argument n + offset], plus a constant
//   address   a link-time address: by lea, or read from a word that the loader relocates
//   import    a function of another library, read from its GOT word
//   indexed   an address plus something unknown: a place in an array that begins at or before it
//   element   what was read from such a place; the value is the address, as for the first element
//   stack     the stack pointer at entry plus a constant: spills are followed through it
//   number    a constant that a register was set to: a member's offset, where compilers merge stores
//             to different members into one
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <map>
#include <set>
#include <span>
#include <vector>

#include "resolve/code.h"

namespace sigma {

struct Atom {
  enum Kind : uint8_t { argument, loaded, address, import, indexed, element, stack, number } kind = address;
  uint8_t index = 0;   // argument, loaded: which argument
  int32_t offset = 0;  // loaded: where it was read, relative to the argument
  int64_t value = 0;   // argument, loaded, stack: the constant; address, indexed, element: the
                      // address; import: the GOT word; number: itself
  auto operator<=>(const Atom&) const = default;
};

// Displacements and constants come from the file: their sums may wrap, and must not be undefined.
inline int64_t wrapping_add(int64_t a, int64_t b) {
  return static_cast<int64_t>(static_cast<uint64_t>(a) + static_cast<uint64_t>(b));
}

class FlowVisitor {
 public:
  virtual ~FlowVisitor() = default;
  // Eight bytes stored at `base` + `displacement`. `base_register` tells unknown bases apart.
  virtual void on_store(const Instruction&, std::span<const Atom> base, uint8_t base_register,
                        int64_t displacement, std::span<const Atom> value) = 0;
  // A call, or a jump out of the function: `arguments` as at its entry.
  virtual void on_exit(const Instruction&, std::span<const Atom> target,
                       std::span<const std::span<const Atom>, 6> arguments) = 0;
};

class Flow {
 public:
  explicit Flow(Code& code) : code_(code) { sets_.push_back({}); }
  // False when it gave up (too large, or it did not settle); then the visitor saw nothing.
  bool run(const FunctionRange& function, FlowVisitor& visitor);

 private:
  using Value = uint32_t;              // index into sets_; 0 is the empty set
  using Lanes = std::array<Value, 4>;  // of a vector register, 8 bytes each, lowest first
  struct State {
    std::array<Value, 16> general{};
    std::array<Lanes, 16> vector{};
    std::map<int64_t, Value> slots;  // of the stack, by offset from its entry value
    bool reached = false;
    bool operator==(const State&) const = default;
  };

  Value intern(std::vector<Atom> atoms);
  Value unite(Value a, Value b);
  Value shift(Value value, int64_t by);
  Value index(Value a, Value b);
  bool join(State& into, const State& from);
  Value load(const State& state, const Operand& memory, int64_t at = 0);
  void store(State& state, const Instruction&, const Operand& memory, int64_t at, Value value,
             FlowVisitor* visitor);
  // Where `memory` is, if the register beside the base holds one constant: as without it.
  Operand without_index(const State& state, const Operand& memory) const;
  Value source(const State& state, const Operand& operand);
  void step(State& state, const Instruction& instruction, FlowVisitor* visitor);
  void general_step(State& state, const Instruction& instruction, FlowVisitor* visitor);
  bool vector_step(State& state, const Instruction& instruction, FlowVisitor* visitor);
  Lanes lanes(const State& state, const Operand& operand);
  void report_exit(const State& state, const Instruction& instruction, FlowVisitor& visitor);

  Code& code_;
  std::deque<std::vector<Atom>> sets_;  // a deque: references stay valid while it grows
  std::map<std::vector<Atom>, Value> numbers_;
};

}  // namespace sigma
