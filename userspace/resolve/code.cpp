// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Functions of one file: decoded when asked, within bounds, and where they lead. Their instructions:
// instruction_decoder.h.
#include "resolve/code.h"

#include <algorithm>
#include <cstring>
#include <set>

#include "resolve/instruction_decoder.h"

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

}  // namespace

Code::Code(const ElfFile& elf) : elf_(elf), budget_(kMaxInstructions) {
  uint64_t code_bytes = 0;
  for (const Segment& segment : elf.segments())
    if (segment.executable) code_bytes += segment.file_size;
  if (elf.machine() != EM_X86_64 || code_bytes > kMaxCodeBytes) return;
  decoder_ = InstructionDecoder::open();
  if (decoder_) find_stubs();
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
    body.push_back(decoder_->instruction());
    --budget_;
  }
  return body;
}

std::string Code::disassemble(const Instruction& instruction) {
  auto bytes = elf_.at(instruction.address, instruction.size);
  uint64_t address = instruction.address;
  if (!decoder_ || bytes.empty() || !decoder_->decode(bytes, address)) return {};
  return decoder_->text();
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
