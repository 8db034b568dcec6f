// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
#include "resolve/flow.h"

#include <algorithm>
#include <deque>

namespace sigma {
namespace {

constexpr size_t kMaxAtoms = 24;  // mlx5 has at most 8 variants of one pointer
constexpr size_t kMaxSlots = 64;
constexpr size_t kMaxSets = 1u << 16;
constexpr size_t kRoundsPerBlock = 64;
constexpr int64_t kMaxNumber = 16384;  // offsets within an object

struct Block {
  size_t first = 0, last = 0;  // instructions [first, last)
  std::vector<size_t> next;
};

// Stores whose place depends on the way that led here: what is stored does as well.
bool has_indexed_store(const std::vector<Instruction>& body, const Block& block) {
  return std::any_of(body.begin() + static_cast<ptrdiff_t>(block.first),
                     body.begin() + static_cast<ptrdiff_t>(block.last), [](const Instruction& i) {
                       const Operand& to = i.operands[0];
                       return i.opcode == Opcode::move && to.type == Operand::memory &&
                              to.index != kNoRegister && to.size == 8;
                     });
}

// Leaders are destinations of branches and what follows a branch or a return.
std::vector<Block> blocks_of(const std::vector<Instruction>& body) {
  auto index_of = [&](uint64_t address) -> size_t {
    auto found = std::lower_bound(body.begin(), body.end(), address,
                                  [](const Instruction& i, uint64_t a) { return i.address < a; });
    return found != body.end() && found->address == address
               ? static_cast<size_t>(found - body.begin())
               : body.size();
  };
  auto ends = [](const Instruction& i) {
    return i.branch() || i.opcode == Opcode::ret || i.opcode == Opcode::stop;
  };
  std::vector<bool> leader(body.size() + 1, false);
  leader[0] = true;
  bool indirect = false;
  for (size_t i = 0; i < body.size(); ++i) {
    if (!ends(body[i])) continue;
    leader[i + 1] = true;
    if (!body[i].branch()) continue;
    if (uint64_t destination = body[i].destination())
      leader[index_of(destination)] = true;
    else
      indirect = true;
  }
  std::vector<Block> blocks;
  std::vector<size_t> block_at(body.size(), 0);
  for (size_t i = 0; i < body.size(); ++i) {
    if (leader[i]) blocks.push_back({i, i, {}});
    block_at[i] = blocks.size() - 1;
    blocks.back().last = i + 1;
  }
  std::vector<bool> entered(blocks.size(), false);
  for (size_t b = 0; b < blocks.size(); ++b) {
    const Instruction& last = body[blocks[b].last - 1];
    bool falls =
        last.opcode != Opcode::jump && last.opcode != Opcode::ret && last.opcode != Opcode::stop;
    if (falls && blocks[b].last < body.size()) blocks[b].next.push_back(b + 1);
    if (last.branch() && last.destination()) {
      size_t to = index_of(last.destination());
      if (to < body.size()) blocks[b].next.push_back(block_at[to]);
    }
    for (size_t next : blocks[b].next) entered[next] = true;
  }
  // A switch's cases are entered through a table only: from every indirect jump, as far as we know.
  if (indirect)
    for (Block& block : blocks) {
      const Instruction& last = body[block.last - 1];
      if (last.opcode != Opcode::jump || last.operands[0].type == Operand::immediate ||
          last.operands[0].type == Operand::rip_memory)
        continue;
      for (size_t b = 1; b < blocks.size(); ++b)
        if (!entered[b]) block.next.push_back(b);
    }
  return blocks;
}

}  // namespace

bool Flow::run(const FunctionRange& function, FlowVisitor& visitor) {
  const std::vector<Instruction>& body = code_.body(function);
  if (body.empty()) return false;
  std::vector<Block> blocks = blocks_of(body);
  std::vector<State> at_entry(blocks.size());
  State& start = at_entry[0];
  start.reached = true;
  for (uint8_t i = 0; i < 6; ++i)
    start.general[kArgumentRegisters[i]] = intern({{Atom::argument, i, 0, 0}});
  start.general[kRsp] = intern({{Atom::stack, 0, 0, 0}});

  std::deque<size_t> work{0};
  std::vector<bool> queued(blocks.size(), false);
  size_t rounds = blocks.size() * kRoundsPerBlock;
  while (!work.empty()) {
    if (rounds-- == 0 || sets_.size() > kMaxSets) return false;
    size_t b = work.front();
    work.pop_front();
    queued[b] = false;
    State state = at_entry[b];
    for (size_t i = blocks[b].first; i < blocks[b].last; ++i) step(state, body[i], nullptr);
    for (size_t next : blocks[b].next)
      if (join(at_entry[next], state) && !queued[next]) {
        queued[next] = true;
        work.push_back(next);
      }
  }
  const auto pass = [&](State& state, size_t b, FlowVisitor* seen_by) {
    for (size_t i = blocks[b].first; i < blocks[b].last; ++i) step(state, body[i], seen_by);
  };
  for (size_t b = 0; b < blocks.size(); ++b) {
    if (!at_entry[b].reached) continue;
    if (b == 0 || !has_indexed_store(body, blocks[b])) {
      State state = at_entry[b];
      pass(state, b, &visitor);
      continue;
    }
    // From each block that leads here by itself: united, offsets and pointers would mix.
    for (size_t before = 0; before < blocks.size(); ++before) {
      const auto& next = blocks[before].next;
      if (!at_entry[before].reached || std::find(next.begin(), next.end(), b) == next.end()) continue;
      State state = at_entry[before];
      pass(state, before, nullptr);
      pass(state, b, &visitor);
    }
  }
  return true;
}

Flow::Value Flow::intern(std::vector<Atom> atoms) {
  if (atoms.empty()) return 0;
  auto [entry, fresh] = numbers_.try_emplace(std::move(atoms), static_cast<Value>(sets_.size()));
  if (fresh) sets_.push_back(entry->first);
  return entry->second;
}

// A union beyond the cap keeps `a`: incomplete, but it stays monotonic and so the analysis ends.
Flow::Value Flow::unite(Value a, Value b) {
  if (a == b || b == 0) return a;
  if (a == 0) return b;
  std::vector<Atom> atoms;
  std::set_union(sets_[a].begin(), sets_[a].end(), sets_[b].begin(), sets_[b].end(),
                 std::back_inserter(atoms));
  return atoms.size() > kMaxAtoms ? a : intern(std::move(atoms));
}

Flow::Value Flow::shift(Value value, int64_t by) {
  if (by == 0 || value == 0) return value;
  std::vector<Atom> atoms;
  for (Atom atom : sets_[value])
    if (atom.kind != Atom::import && atom.kind != Atom::element && atom.kind != Atom::number) {
      atom.value = wrapping_add(atom.value, by);
      atoms.push_back(atom);
    }
  std::sort(atoms.begin(), atoms.end());
  return intern(std::move(atoms));
}

// The sum of two values: a place in an array, where one is an address and the other is not.
Flow::Value Flow::index(Value a, Value b) {
  const auto is_place = [](const Atom& atom) {
    return atom.kind == Atom::address || atom.kind == Atom::indexed;
  };
  std::vector<Atom> atoms;
  for (const auto& [value, other] : {std::pair(a, b), std::pair(b, a)}) {
    if (std::any_of(sets_[other].begin(), sets_[other].end(), is_place)) continue;
    for (const Atom& atom : sets_[value])
      if (is_place(atom)) atoms.push_back({Atom::indexed, 0, 0, atom.value});
  }
  std::sort(atoms.begin(), atoms.end());
  return intern(std::move(atoms));
}

bool Flow::join(State& into, const State& from) {
  if (!into.reached) {
    into = from;
    return true;
  }
  bool grew = false;
  auto merge = [&](Value& to, Value value) {
    Value both = unite(to, value);
    grew |= both != to;
    to = both;
  };
  for (size_t r = 0; r < 16; ++r) {
    merge(into.general[r], from.general[r]);
    for (size_t lane = 0; lane < 4; ++lane) merge(into.vector[r][lane], from.vector[r][lane]);
  }
  for (const auto& [offset, value] : from.slots)
    if (auto slot = into.slots.find(offset); slot != into.slots.end())
      merge(slot->second, value);
    else if (value && into.slots.size() < kMaxSlots)
      grew = into.slots.emplace(offset, value).second;
  return grew;
}

// Eight bytes read from memory + `at`.
Flow::Value Flow::load(const State& state, const Operand& memory, int64_t at) {
  std::vector<Atom> atoms;
  if (memory.type == Operand::rip_memory) {
    uint64_t address = static_cast<uint64_t>(memory.value) + static_cast<uint64_t>(at);
    const Relocation* relocation = code_.elf().relocation(address);
    if (!relocation) return 0;
    if (relocation->import.empty())
      return intern({{Atom::address, 0, 0, static_cast<int64_t>(relocation->target)}});
    return intern({{Atom::import, 0, 0, static_cast<int64_t>(address)}});
  }
  if (memory.type != Operand::memory || memory.base >= 16) return 0;
  Value base = state.general[memory.base];
  if (memory.index != kNoRegister)
    base = memory.index < 16 ? index(base, state.general[memory.index]) : 0;
  Value from_stack = 0;
  for (const Atom& atom : sets_[base]) {
    auto place = wrapping_add(wrapping_add(atom.value, memory.value), at);
    if (atom.kind == Atom::argument && place >= INT32_MIN && place <= INT32_MAX)
      atoms.push_back({Atom::loaded, atom.index, static_cast<int32_t>(place), 0});
    if (atom.kind == Atom::stack)
      if (auto slot = state.slots.find(place); slot != state.slots.end())
        from_stack = unite(from_stack, slot->second);
    if (atom.kind == Atom::indexed) atoms.push_back({Atom::element, 0, 0, place});
    if (atom.kind == Atom::address)
      if (const Relocation* r = code_.elf().relocation(static_cast<uint64_t>(place));
          r && r->import.empty())
        atoms.push_back({Atom::address, 0, 0, static_cast<int64_t>(r->target)});
  }
  std::sort(atoms.begin(), atoms.end());
  return unite(from_stack, intern(std::move(atoms)));
}

Operand Flow::without_index(const State& state, const Operand& memory) const {
  const auto number = [&](uint8_t r) -> const Atom* {
    if (r >= 16) return nullptr;
    const auto& atoms = sets_[state.general[r]];
    return atoms.size() == 1 && atoms[0].kind == Atom::number ? &atoms[0] : nullptr;
  };
  Operand plain = memory;
  if (memory.type != Operand::memory || memory.index == kNoRegister || memory.scale != 1) return plain;
  const Atom* atom = number(memory.index);
  if (atom == nullptr) {
    atom = number(memory.base);
    plain.base = memory.index;
  }
  if (atom == nullptr) return memory;
  plain.index = kNoRegister;
  plain.value = wrapping_add(memory.value, atom->value);
  return plain;
}

void Flow::store(State& state, const Instruction& instruction, const Operand& place_named, int64_t at,
                 Value value, FlowVisitor* visitor) {
  const Operand memory = without_index(state, place_named);
  if (memory.type != Operand::memory || memory.base >= 16 || memory.index != kNoRegister) return;
  Value base = state.general[memory.base];
  bool on_stack = false;
  const auto& bases = sets_[base];
  for (const Atom& atom : bases) {
    if (atom.kind != Atom::stack) continue;
    on_stack = true;
    auto place = wrapping_add(wrapping_add(atom.value, memory.value), at);
    auto slot = state.slots.find(place);
    if (slot != state.slots.end())
      slot->second = bases.size() == 1 ? value : unite(slot->second, value);
    else if (value && state.slots.size() < kMaxSlots)
      state.slots.emplace(place, value);
  }
  if (visitor && !on_stack)
    visitor->on_store(instruction, bases, memory.base, wrapping_add(memory.value, at),
                      sets_[value]);
}

Flow::Value Flow::source(const State& state, const Operand& operand) {
  if (operand.size != 8) return 0;
  if (operand.type == Operand::reg) return operand.base < 16 ? state.general[operand.base] : 0;
  if (operand.type == Operand::memory || operand.type == Operand::rip_memory)
    return load(state, operand);
  return 0;
}

void Flow::step(State& state, const Instruction& instruction, FlowVisitor* visitor) {
  if (visitor && (instruction.opcode == Opcode::call || instruction.branch()))
    report_exit(state, instruction, *visitor);
  if (!vector_step(state, instruction, visitor)) general_step(state, instruction, visitor);
}

void Flow::general_step(State& state, const Instruction& instruction, FlowVisitor* visitor) {
  const Operand& to = instruction.operands[0];
  const Operand& from = instruction.operands[1];
  bool to_register = to.type == Operand::reg && to.base < 16;
  auto clobber = [&](uint32_t registers) {
    for (uint8_t r = 0; r < 16; ++r)
      if (registers >> r & 1) state.general[r] = 0;
    for (uint8_t r = 0; r < 16; ++r)
      if (instruction.vector_writes >> r & 1) state.vector[r] = {};
  };
  Value result = 0;
  switch (instruction.opcode) {
    case Opcode::lea:
      if (from.type == Operand::rip_memory)
        result = intern({{Atom::address, 0, 0, from.value}});
      else if (from.base < 16 && from.index == kNoRegister)
        result = shift(state.general[from.base], from.value);
      else if (from.base < 16 && from.index < 16)
        result = shift(index(state.general[from.base], state.general[from.index]), from.value);
      break;
    case Opcode::move:
      if (to.type == Operand::memory && to.size == 8)
        store(state, instruction, to, 0, source(state, from), visitor);
      // A position-dependent file may load a plain number that is an address.
      result = source(state, from);
      if (from.type == Operand::immediate && from.value > 0 && from.value < kMaxNumber && to.size >= 4)
        result = intern({{Atom::number, 0, 0, from.value}});
      break;
    case Opcode::move_if:
      if (to_register) result = unite(state.general[to.base], source(state, from));
      break;
    case Opcode::add:
    case Opcode::sub:
      if (to_register && to.size == 8 && from.type == Operand::immediate)
        result = shift(state.general[to.base],
                       instruction.opcode == Opcode::add
                           ? from.value
                           : static_cast<int64_t>(0 - static_cast<uint64_t>(from.value)));
      else if (instruction.opcode == Opcode::add && to_register && to.size == 8)
        result = index(state.general[to.base], source(state, from));
      break;
    case Opcode::push: {
      Value pushed = source(state, to);
      state.general[kRsp] = shift(state.general[kRsp], -8);
      Operand top{Operand::memory, 8, kRsp, kNoRegister, 1, 0};
      store(state, instruction, top, 0, pushed, nullptr);
      return;
    }
    case Opcode::pop: {
      Operand top{Operand::memory, 8, kRsp, kNoRegister, 1, 0};
      result = load(state, top);
      Value stack = shift(state.general[kRsp], 8);
      clobber(instruction.writes);
      state.general[kRsp] = stack;
      if (to_register) state.general[to.base] = result;
      return;
    }
    case Opcode::call: {
      Value stack = state.general[kRsp];
      clobber(kCallClobbered);
      state.vector = {};
      state.general[kRsp] = stack;
      return;
    }
    default:
      break;
  }
  clobber(instruction.writes);
  if (to_register && !instruction.reads_only && result) state.general[to.base] = result;
}

void Flow::report_exit(const State& state, const Instruction& instruction, FlowVisitor& visitor) {
  std::array<std::span<const Atom>, 6> arguments;
  for (size_t i = 0; i < 6; ++i) arguments[i] = sets_[state.general[kArgumentRegisters[i]]];
  const Operand& operand = instruction.operands[0];
  Value target = operand.type == Operand::immediate ? 0 : source(state, operand);
  visitor.on_exit(instruction, sets_[target], arguments);
}

}  // namespace sigma
