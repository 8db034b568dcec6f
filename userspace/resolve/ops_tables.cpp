// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Providers call verbs_set_ops(vctx, &table) a few times as a device is opened; the tables are
// constant and lie in .data.rel.ro, each filled slot with a relocation. Every call is followed for
// what its second argument may be; where that is not a constant (libhns keeps the table within a
// structure chosen by hardware generation), the relocated words are searched for something that can
// only be a table.
#include "resolve/ops_tables.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

#include "resolve/flow.h"

namespace sigma {
namespace {

constexpr unsigned kAnchorDepth = 5;
// libhns's table has three slots with an anchor (modify_qp, destroy_qp, destroy_cq or query_qp).
constexpr int kAnchorsToBelieveLooks = 2;

// What must be reachable from a slot's function. Functions of the family prove which command a slot
// issues; create_ah and the like have no command of their own and are no anchors.
struct Anchor {
  std::string_view slot, reaches;
};
constexpr Anchor kAnchors[] = {
    {"alloc_pd", "ibv_cmd_alloc_pd"},
    {"attach_mcast", "ibv_cmd_attach_mcast"},
    {"create_cq", "ibv_cmd_create_cq"},
    {"create_cq_ex", "ibv_cmd_create_cq"},
    {"create_qp", "ibv_cmd_create_qp"},
    {"create_qp_ex", "ibv_cmd_create_qp"},
    {"create_srq", "ibv_cmd_create_srq"},
    {"create_srq_ex", "ibv_cmd_create_srq"},
    {"dealloc_pd", "ibv_cmd_dealloc_pd"},
    {"dereg_mr", "ibv_cmd_dereg_mr"},
    {"destroy_cq", "ibv_cmd_destroy_cq"},
    {"destroy_qp", "ibv_cmd_destroy_qp"},
    {"destroy_srq", "ibv_cmd_destroy_srq"},
    {"detach_mcast", "ibv_cmd_detach_mcast"},
    {"modify_qp", "ibv_cmd_modify_qp"},
    {"modify_srq", "ibv_cmd_modify_srq"},
    {"query_device_ex", "ibv_cmd_query_device"},
    {"query_qp", "ibv_cmd_query_qp"},
    {"query_srq", "ibv_cmd_query_srq"},
    {"reg_mr", "ibv_cmd_reg_mr"},
    {"rereg_mr", "ibv_cmd_rereg_mr"},
    {"resize_cq", "ibv_cmd_resize_cq"},
};
constexpr std::string_view kFamily = "ibv_cmd_";

class CallVisitor : public FlowVisitor {
 public:
  explicit CallVisitor(Code& code) : code_(code) {}
  std::set<uint64_t> tables;
  unsigned calls = 0, unknown = 0;

  void on_store(const Instruction&, std::span<const Atom>, uint8_t, int64_t,
                std::span<const Atom>) override {}
  void on_exit(const Instruction& instruction, std::span<const Atom> target,
               std::span<const std::span<const Atom>, 6> arguments) override {
    bool set_ops = code_.import_of(instruction) == "verbs_set_ops";
    for (const Atom& atom : target)
      if (atom.kind == Atom::import) {
        const Relocation* slot = code_.elf().relocation(static_cast<uint64_t>(atom.value));
        set_ops |= slot && slot->import == "verbs_set_ops";
      }
    if (!set_ops) return;
    ++calls;
    bool known = false;
    for (const Atom& atom : arguments[1])
      if (atom.kind == Atom::address) {
        tables.insert(static_cast<uint64_t>(atom.value));
        known = true;
      }
    unknown += !known;
  }

 private:
  Code& code_;
};

class TableReader {
 public:
  TableReader(Code& code, const OpsOrder& order) : code_(code), elf_(code.elf()), order_(order) {}

  // The table at `address`, or the reason why there is none.
  Result<OpsTable> read(uint64_t address) {
    auto refuse = [&](const std::string& why) {
      return Error{fmt::format("table at {:#x} refused: {}", address, why)};
    };
    OpsTable table;
    table.address = address;
    if (elf_.at(address, order_.names.size() * 8).empty()) return refuse("beyond the file's data");
    for (size_t i = 0; i < order_.names.size(); ++i) {
      uint64_t place = address + i * 8;
      const Relocation* relocation = elf_.relocation(place);
      if (!relocation) {
        if (elf_.read<uint64_t>(place) != uint64_t{0})
          return refuse(fmt::format("slot {} is no pointer", i));
        continue;
      }
      if (relocation->import.empty() &&
          (!elf_.function_at(relocation->target) || code_.in_stubs(relocation->target)))
        return refuse(fmt::format("slot {} points at {:#x}, where no function starts", i,
                                  relocation->target));
      table.slots.push_back({order_.names[i], relocation->target, relocation->import});
    }
    if (table.slots.empty()) return refuse("it is empty");
    for (const OpsSlot& slot : table.slots) judge(slot, table);
    return table;
  }

  // Cheap part of the checks, for the search.
  bool plausible(uint64_t address) const {
    if (elf_.at(address, order_.names.size() * 8).empty()) return false;
    for (size_t i = 0; i < order_.names.size(); ++i) {
      const Relocation* relocation = elf_.relocation(address + i * 8);
      if (relocation ? relocation->import.empty() && !elf_.function_at(relocation->target)
                     : elf_.read<uint64_t>(address + i * 8) != uint64_t{0})
        return false;
    }
    return true;
  }

 private:
  void judge(const OpsSlot& slot, OpsTable& table) {
    for (const Anchor& anchor : kAnchors) {
      if (anchor.slot != slot.name) continue;
      Code::Reach reach;
      if (slot.import.empty()) {
        auto key = std::pair(slot.address, anchor.reaches);
        auto [entry, fresh] = reached_.try_emplace(key);
        if (fresh)
          entry->second =
              code_.reaches(*elf_.function_at(slot.address), anchor.reaches, kFamily, kAnchorDepth);
        reach = entry->second;
      } else {
        reach = {slot.import.starts_with(anchor.reaches), slot.import.starts_with(kFamily)};
      }
      table.anchors_agree += reach.wanted;
      table.anchors_contradict += !reach.wanted && reach.family;
    }
  }

  Code& code_;
  const ElfFile& elf_;
  const OpsOrder& order_;
  std::map<std::pair<uint64_t, std::string_view>, Code::Reach> reached_;
};

// Every place at which a table could begin so that the three slots which each data path has are
// pointers to different functions.
std::set<uint64_t> candidates(const TableReader& reader, const ElfFile& elf,
                              const OpsOrder& order) {
  constexpr size_t kMaxCandidates = 256;
  auto distance = [&](std::string_view name) {
    return static_cast<uint64_t>(order.index(name)) * 8;
  };
  auto target = [&](uint64_t place) {
    const Relocation* relocation = elf.relocation(place);
    return relocation && relocation->import.empty() ? relocation->target : 0;
  };
  std::set<uint64_t> found;
  for (const Relocation& relocation : elf.relocations()) {
    uint64_t start = relocation.address - distance("post_send");
    uint64_t send = target(relocation.address), recv = target(start + distance("post_recv")),
             poll = target(start + distance("poll_cq"));
    if (!send || !recv || !poll || send == recv || send == poll || recv == poll) continue;
    if (reader.plausible(start)) found.insert(start);
    if (found.size() > kMaxCandidates) break;
  }
  return found;
}

// Adds the tables that can only be tables. Shifted by a slot a true table still has functions in
// most places: the anchors tell, and of two that overlap neither is believed.
void search(TableReader& reader, const ElfFile& elf, const OpsOrder& order, OpsTables& out) {
  const uint64_t bytes = order.names.size() * 8;
  auto overlap = [&](const OpsTable& a, const OpsTable& b) {
    return std::max(a.address, b.address) - std::min(a.address, b.address) < bytes;
  };
  std::vector<OpsTable> believed;
  for (uint64_t start : candidates(reader, elf, order)) {
    auto table = reader.read(start);
    if (!table) continue;
    bool known = std::any_of(out.tables.begin(), out.tables.end(),
                             [&](const OpsTable& passed) { return overlap(passed, *table); });
    if (known) continue;
    if (table->anchors_agree >= kAnchorsToBelieveLooks && table->anchors_contradict == 0)
      believed.push_back(std::move(*table));
    else if (table->anchors_agree > 0)
      out.doubts.push_back(
          fmt::format("something like a table at {:#x}: {} anchors agree, {} do not", start,
                      table->anchors_agree, table->anchors_contradict));
  }
  for (const OpsTable& table : believed) {
    bool alone = std::none_of(believed.begin(), believed.end(), [&](const OpsTable& other) {
      return &other != &table && overlap(other, table);
    });
    if (alone)
      out.tables.push_back(table);
    else
      out.doubts.push_back(fmt::format("tables overlap at {:#x}", table.address));
  }
}

}  // namespace

OpsTables find_ops_tables(Code& provider, const OpsOrder& order) {
  const ElfFile& elf = provider.elf();
  OpsTables out;
  std::vector<uint64_t> references = provider.import_places("verbs_set_ops");
  CallVisitor seen(provider);
  bool gave_up = false;
  for (const FunctionRange* function : provider.functions_referring_to(references)) {
    if (provider.in_stubs(function->start)) continue;
    gave_up |= !Flow(provider).run(*function, seen);
  }
  out.calls = seen.calls;
  if (gave_up) out.doubts.push_back("a function that calls verbs_set_ops could not be followed");

  TableReader reader(provider, order);
  for (uint64_t address : seen.tables) {
    auto table = reader.read(address);
    if (!table) {
      out.doubts.push_back(table.error().what);
      continue;
    }
    // An order that was not derived needs proof from every table that it is used on.
    bool proven = order.derived || table->anchors_agree > 0;
    if (table->anchors_contradict > 0 || !proven) {
      out.doubts.push_back(fmt::format("table at {:#x} refused: {} anchors agree, {} contradict",
                                       address, table->anchors_agree, table->anchors_contradict));
      continue;
    }
    table->passed = true;
    out.tables.push_back(std::move(*table));
  }
  if (seen.unknown > 0 || seen.calls == 0) {
    size_t before = out.tables.size();
    search(reader, elf, order, out);
    if (out.tables.size() == before && seen.unknown > 0)
      out.doubts.push_back(
          fmt::format("{} of {} calls of verbs_set_ops pass a table that was not found",
                      seen.unknown, seen.calls));
  }
  return out;
}

}  // namespace sigma
