// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// PointerStores: which function addresses one function stores at which distances from one pointer:
// rows of `qp->wr_send = send_ud;` as they stand in create_qp, and the like for completion queues.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <utility>

#include "resolve/flow.h"

namespace sigma {

class PointerStores : public FlowVisitor {
 public:
  // By which pointer: an argument, or else whatever a register held.
  using Pointer = std::pair<bool, uint8_t>;
  using Stores = std::map<int64_t, std::set<uint64_t>>;  // distance -> addresses

  explicit PointerStores(const ElfFile& elf) : elf_(elf) {}

  std::map<Pointer, Stores> functions;  // addresses of functions
  std::map<Pointer, Stores> elements;   // places in arrays, of which any element may be stored

  void on_store(const Instruction&, std::span<const Atom> base, uint8_t base_register,
                int64_t displacement, std::span<const Atom> value) override {
    for (const Atom& atom : value) {
      const auto address = static_cast<uint64_t>(atom.value);
      const bool function = atom.kind == Atom::address && elf_.function_at(address);
      if (!function && atom.kind != Atom::element) continue;
      const bool argument = base.size() == 1 && base[0].kind == Atom::argument;
      const int64_t distance = wrapping_add(displacement, argument ? base[0].value : 0);
      if (distance < 0 || distance >= kMaxObjectBytes || distance % 8) continue;
      const Pointer pointer{argument, argument ? base[0].index : base_register};
      (function ? functions : elements)[pointer][distance].insert(address);
    }
  }
  void on_exit(const Instruction&, std::span<const Atom>,
               std::span<const std::span<const Atom>, 6>) override {}

 private:
  static constexpr int64_t kMaxObjectBytes = 16384;
  const ElfFile& elf_;
};

}  // namespace sigma
