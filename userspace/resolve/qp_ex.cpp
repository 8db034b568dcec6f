// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Somewhere below create_qp or create_qp_ex stand rows of `qp->wr_send = send_ud;`: stores of
// function addresses at constant distances from one pointer. Their pattern is matched against the
// public layout of ibv_qp_ex to find where it begins: wr_start, wr_complete and wr_abort are there,
// and no function is stored where ibv_qp or wr_id lie.
#include "resolve/qp_ex.h"

#include <fmt/format.h>

#include <algorithm>

#include "resolve/cq_ex.h"
#include "resolve/pointer_stores.h"

namespace sigma {
namespace {

constexpr unsigned kCreateDepth = 5;
constexpr int64_t kFirstPointer = offsetof(ibv_qp_ex, wr_atomic_cmp_swp);
constexpr int64_t kLastPointer = offsetof(ibv_qp_ex, wr_abort);
constexpr size_t kMinFields = 6;  // the three of a batch, a builder and a setter or two

const FunctionInfo* member_at(int64_t offset) {
  for (const FunctionInfo& info : kFunctions)
    if (info.holder == Holder::qp_ex && info.offset == offset) return &info;
  return nullptr;
}

using Stores = PointerStores::Stores;

struct Fit {
  int64_t offset = 0;
  size_t fields = 0;
  bool tie = false;
};

bool has(const Stores& stores, int64_t offset) {
  return stores.count(offset) != 0;
}

// How many members the stores fill when ibv_qp_ex begins at `offset`; 0 when they contradict it.
size_t fields_at(const Stores& stores, int64_t offset) {
  // No function lies within ibv_qp, comp_mask, wr_id and wr_flags.
  for (auto store = stores.lower_bound(offset); store != stores.end(); ++store) {
    if (store->first < offset + kFirstPointer) return 0;
    break;
  }
  size_t fields = 0;
  for (const FunctionInfo& info : kFunctions)
    fields += info.holder == Holder::qp_ex && has(stores, offset + info.offset);
  return fields;
}

// The one place at which a whole ibv_qp_ex fits.
Fit fit_whole(const Stores& stores) {
  Fit best;
  for (const auto& [distance, functions] : stores) {
    int64_t offset = distance - static_cast<int64_t>(offsetof(ibv_qp_ex, wr_start));
    // wr_start is common to all QP types in every provider that has it.
    if (offset < 0 || functions.size() != 1) continue;
    if (!has(stores, offset + static_cast<int64_t>(offsetof(ibv_qp_ex, wr_complete))) ||
        !has(stores, offset + static_cast<int64_t>(offsetof(ibv_qp_ex, wr_abort))))
      continue;
    size_t fields = fields_at(stores, offset);
    if (fields > best.fields)
      best = {offset, fields, false};
    else if (fields == best.fields)
      best.tie = true;
  }
  return best;
}

class Collector {
 public:
  explicit Collector(Code& code) : code_(code) {}

  void look_at(const FunctionRange& function) {
    PointerStores visitor(code_.elf());
    if (!Flow(code_).run(function, visitor)) return;
    for (auto& [pointer, stores] : visitor.functions)
      groups_.push_back({pointer.first, std::move(stores)});
  }

  QpExFunctions solve() const {
    QpExFunctions out;
    // The pattern of all stores together is the richest; a single function's is the cleanest. The
    // whole fit must come from one of them, and every group that has one must agree on the place.
    std::set<int64_t> offsets;
    size_t most = 0, pointers = 0;
    for (const Group& group : groups_) {
      pointers += group.stores.size();
      Fit fit = fit_whole(group.stores);
      if (fit.fields >= kMinFields && !fit.tie) {
        offsets.insert(fit.offset);
        most = std::max(most, fit.fields);
      }
    }
    if (offsets.empty()) {
      Stores all;
      for (const Group& group : groups_)
        for (const auto& [distance, functions] : group.stores)
          all[distance].insert(functions.begin(), functions.end());
      Fit fit = fit_whole(all);
      if (fit.fields >= kMinFields && !fit.tie) offsets.insert(fit.offset);
    }
    if (offsets.empty()) {
      if (pointers >= kMinFields)
        out.doubt = fmt::format("{} stores of function addresses below create_qp fit no ibv_qp_ex",
                                pointers);
      return out;
    }
    // Functions are handed the QP, or the ibv_qp_ex within it: two places may be right, each for
    // some.
    out.offset = *offsets.rbegin();
    offsets.insert(0);
    for (const Group& group : groups_) take(group.stores, offsets, out);
    return out;
  }

  // wr_complete is exchanged when a QP changes state, by functions that do little else
  // (mlx5_qp_fill_wr_complete_error and _real). One that restores a known wr_complete proves the
  // place; what others store there is another variant.
  void add_exchanged_complete(QpExFunctions& out) const {
    constexpr uint64_t kMaxBytes = 2048;
    std::set<uint64_t>& complete = out.variants[SIGMA_FN_WR_COMPLETE];
    for (int64_t base : std::set<int64_t>{0, out.offset}) {
      auto place = base + static_cast<int64_t>(offsetof(ibv_qp_ex, wr_complete));
      std::set<uint64_t> exchanged;
      for (const FunctionRange* function :
           code_.functions_containing(static_cast<uint32_t>(place), kMaxBytes)) {
        PointerStores visitor(code_.elf());
        if (!Flow(code_).run(*function, visitor)) continue;
        auto through_first = visitor.functions.find({true, 0});
        if (through_first == visitor.functions.end() || through_first->second.size() != 1) continue;
        const auto& [distance, functions] = *through_first->second.begin();
        if (distance == place) exchanged.insert(functions.begin(), functions.end());
      }
      bool restores = std::any_of(exchanged.begin(), exchanged.end(),
                                  [&](uint64_t address) { return complete.count(address) != 0; });
      if (restores) complete.insert(exchanged.begin(), exchanged.end());
    }
  }

 private:
  struct Group {
    bool argument;
    Stores stores;
  };

  // Takes a group at the one place where more of it fits than at any other.
  void take(const Stores& stores, const std::set<int64_t>& offsets, QpExFunctions& out) const {
    int64_t best = -1;
    size_t most = 0;
    bool tie = false;
    for (int64_t offset : offsets) {
      size_t fields = fields_at(stores, offset);
      tie = fields == most && fields > 0 ? true : fields > most ? false : tie;
      if (fields > most) {
        most = fields;
        best = offset;
      }
    }
    if (best < 0 || tie) return;
    for (const auto& [distance, functions] : stores)
      if (const FunctionInfo* member = member_at(distance - best))
        if (distance - best >= kFirstPointer && distance - best <= kLastPointer)
          out.variants[member->function].insert(functions.begin(), functions.end());
  }

  Code& code_;
  std::vector<Group> groups_;
};

}  // namespace

QpExFunctions find_qp_ex_functions(Code& provider, const OpsTables& tables) {
  const ElfFile& elf = provider.elf();
  std::vector<const FunctionRange*> qp;
  for (const OpsTable& table : tables.tables)
    for (const OpsSlot& slot : table.slots) {
      const FunctionRange* function = slot.import.empty() ? elf.function_at(slot.address) : nullptr;
      if (!function) continue;
      if (slot.name == "create_qp" || slot.name == "create_qp_ex") qp.push_back(function);
    }
  // What a CQ needs as well (allocation, commands) stores its own function pointers: ibv_cq_ex.
  const auto cq = cq_creators(provider, tables);
  auto shared = provider.reachable(cq, kCreateDepth);
  std::set<const FunctionRange*> excluded(shared.begin(), shared.end());
  Collector collector(provider);
  for (const FunctionRange* function : provider.reachable(qp, kCreateDepth))
    if (!excluded.count(function)) collector.look_at(*function);
  QpExFunctions out = collector.solve();
  if (out.found()) collector.add_exchanged_complete(out);
  return out;
}

}  // namespace sigma
