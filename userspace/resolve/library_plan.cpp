// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
#include "resolve/library_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "resolve/cq_ex.h"
#include "resolve/functions.h"
#include "resolve/ops_tables.h"
#include "resolve/probe_site.h"
#include "resolve/qp_ex.h"

namespace sigma {
namespace {

// What a name says its function is: "mlx5_post_send", "irdma_upost_send", "c4iw_post_receive".
// Longer words come first: post_srq_recv is no post_recv.
struct Word {
  std::string_view word;
  sigma_function function;
};
constexpr Word kWords[] = {
    {"post_srq_recv", SIGMA_FN_POST_SRQ_RECV},
    {"post_receive", SIGMA_FN_POST_RECV},
    {"post_send", SIGMA_FN_POST_SEND},
    {"post_recv", SIGMA_FN_POST_RECV},
    {"poll_cq", SIGMA_FN_POLL_CQ},
};
const Word* word_in(std::string_view name) {
  for (const Word& word : kWords)
    if (name.find(word.word) != name.npos) return &word;
  return nullptr;
}
// SIGMA_FUNCTIONS when the name says nothing.
sigma_function said_by(std::string_view name) {
  const Word* word = word_in(name);
  return word ? word->function : SIGMA_FUNCTIONS;
}

bool from_ops(sigma_function function) {
  const FunctionInfo* info = find_function(function);
  return info && info->holder == Holder::context_ops;
}

// Collects functions of one plan; what cannot be probed, or is two things at once, becomes
// unresolved.
class PlanBuilder {
 public:
  PlanBuilder(LibraryPlan& plan, Code& code, const SymbolNames& names)
      : plan_(plan), code_(code), names_(names) {}

  void add(sigma_function function, uint64_t address, Route route) {
    auto [entry, fresh] = taken_.try_emplace(address, function);
    if (!fresh) {
      if (entry->second != function) shared_.emplace(address, std::pair(entry->second, function));
      return;
    }
    const FunctionRange* range = code_.elf().function_at(address);
    if (!range)
      return unresolved(function, fmt::format("{:#x} is not the start of a function", address));
    for (const std::string& name : names_.at(address))
      if (from_ops(function) && said_by(name) != SIGMA_FUNCTIONS && said_by(name) != function &&
          !named_as(address, function))
        return unresolved(function, fmt::format("its symbol {} contradicts", name));
    auto sites = choose_probe_sites(code_, *range, find_function(function)->arguments);
    if (!sites) return unresolved(function, sites.error().what);
    ResolvedFunction resolved{function,     route,         address, *code_.elf().offset_of(address),
                              sites->entry, sites->paired, {}};
    if (!names_.at(address).empty()) resolved.symbol = best_name(address, function);
    plan_.functions.push_back(std::move(resolved));
  }

  void unresolved(sigma_function function, std::string reason) {
    for (const UnresolvedFunction& known : plan_.unresolved)
      if (known.function == function && known.reason == reason) return;
    plan_.unresolved.push_back({function, std::move(reason)});
  }

  bool has(sigma_function function) const {
    return std::any_of(plan_.functions.begin(), plan_.functions.end(),
                       [&](const ResolvedFunction& f) { return f.function == function; });
  }

  // One address that is two functions (folded by the linker, say): a probe could not tell which.
  void finish() {
    for (const auto& [address, both] : shared_) {
      std::erase_if(plan_.functions,
                    [&](const ResolvedFunction& f) { return f.address == address; });
      for (sigma_function function : {both.first, both.second})
        unresolved(function,
                   fmt::format("{} and {} are one function at {:#x}", function_name(both.first),
                               function_name(both.second), address));
    }
    std::sort(plan_.functions.begin(), plan_.functions.end(),
              [](const ResolvedFunction& a, const ResolvedFunction& b) {
                return std::pair(a.function, a.address) < std::pair(b.function, b.address);
              });
  }

 private:
  bool named_as(uint64_t address, sigma_function function) const {
    const auto& names = names_.at(address);
    return std::any_of(names.begin(), names.end(),
                       [&](const std::string& name) { return said_by(name) == function; });
  }
  const std::string& best_name(uint64_t address, sigma_function function) const {
    const auto& names = names_.at(address);
    for (const std::string& name : names)
      if (name.find(function_name(function)) != name.npos) return name;
    return names.front();
  }

  LibraryPlan& plan_;
  Code& code_;
  const SymbolNames& names_;
  std::map<uint64_t, sigma_function> taken_;
  std::map<uint64_t, std::pair<sigma_function, sigma_function>> shared_;
};

// Functions whose name is PREFIX_post_send and so on. Names are a convention, not a contract: used
// where the tables cannot be followed, and only when they leave one function for each.
void add_by_name(PlanBuilder& builder, const SymbolNames& names) {
  std::map<sigma_function, std::vector<uint64_t>> found;
  for (const auto& [address, all] : names.all())
    for (const std::string& name : all) {
      const Word* word = word_in(name);
      if (!word || name.starts_with('_') || name.starts_with("ibv_")) continue;
      if (!name.ends_with(word->word)) continue;  // no .cold, .part, _v1, _db
      found[word->function].push_back(address);
      break;
    }
  for (const auto& [function, addresses] : found) {
    if (addresses.size() == 1)
      builder.add(function, addresses[0], names.source());
    else
      builder.unresolved(function, fmt::format("{} functions have such a name", addresses.size()));
  }
}

}  // namespace

LibraryPlan plan_libibverbs(Code& code, const SymbolNames& names) {
  LibraryPlan plan;
  plan.kind = LibraryKind::libibverbs;
  PlanBuilder builder(plan, code, names);
  for (const FunctionInfo& info : kFunctions) {
    if (info.holder != Holder::exported) continue;
    const Symbol* symbol = code.elf().exported(info.name);
    if (symbol)
      builder.add(info.function, symbol->value, Route::symbols);
    else
      builder.unresolved(info.function, fmt::format("{} is not exported", info.name));
  }
  builder.finish();
  return plan;
}

LibraryPlan plan_gpu_library(Code& code, const SymbolNames& names) {
  LibraryPlan plan;
  plan.kind = LibraryKind::gpu_library;
  PlanBuilder builder(plan, code, names);
  const std::string name(function_name(SIGMA_FN_GPU_EMIT));
  const Symbol* emit = code.elf().exported(name);
  // Without its counter the library would not know that somebody listens.
  const Symbol* counter = code.elf().exported("sigmatrace_gpu_tracers");
  const auto offset = counter ? code.elf().offset_of(counter->value) : std::nullopt;
  if (const Symbol* registry = code.elf().exported("sigmatrace_gpu_registry"))
    plan.registry_offset = code.elf().offset_of(registry->value).value_or(0);
  if (emit && offset)
    builder.add(SIGMA_FN_GPU_EMIT, emit->value, Route::symbols);
  else
    builder.unresolved(SIGMA_FN_GPU_EMIT, name + " or its counter of probes is not exported");
  builder.finish();
  for (ResolvedFunction& function : plan.functions) function.counter_offset = offset.value_or(0);
  return plan;
}

LibraryPlan plan_provider(Code& code, const SymbolNames& names, const OpsOrder* order,
                          const std::string& why) {
  LibraryPlan plan;
  plan.kind = LibraryKind::provider;
  if (!names.note().empty()) plan.notes.push_back(names.note());
  PlanBuilder builder(plan, code, names);
  if (!order) {
    add_by_name(builder, names);
    for (const FunctionInfo& info : kFunctions)
      if (info.holder == Holder::context_ops && !builder.has(info.function))
        builder.unresolved(info.function, why);
    builder.finish();
    return plan;
  }

  OpsTables tables = find_ops_tables(code, *order);
  plan.notes.insert(plan.notes.end(), tables.doubts.begin(), tables.doubts.end());
  // Slots that name a command of libibverbs itself: posts and polls then go through the kernel.
  std::map<sigma_function, std::string> by_kernel;
  for (const OpsTable& table : tables.tables)
    for (const OpsSlot& slot : table.slots)
      for (const FunctionInfo& info : kFunctions) {
        if (info.holder != Holder::context_ops || info.name != slot.name) continue;
        if (slot.import.empty())
          builder.add(info.function, slot.address,
                      table.passed ? Route::ops_table : Route::window_scan);
        else
          by_kernel[info.function] = slot.import;
      }
  for (const auto& [function, import] : by_kernel) {
    std::string reason = fmt::format("{} is {} of libibverbs", function_name(function), import);
    if (builder.has(function))
      plan.notes.push_back("with some kernels " + reason);
    else
      builder.unresolved(function, reason);
  }
  if (tables.tables.empty()) {
    add_by_name(builder, names);
    std::string reason =
        tables.calls ? "no table of operations was found" : "it never calls verbs_set_ops";
    for (const FunctionInfo& info : kFunctions)
      if (info.holder == Holder::context_ops && !builder.has(info.function))
        builder.unresolved(info.function, reason);
  }

  QpExFunctions qp_ex = find_qp_ex_functions(code, tables);
  for (const auto& [function, addresses] : qp_ex.variants)
    for (uint64_t address : addresses) builder.add(function, address, Route::qp_ex_stores);
  if (!qp_ex.doubt.empty())
    for (sigma_function function : {SIGMA_FN_WR_START, SIGMA_FN_WR_COMPLETE})
      builder.unresolved(function, qp_ex.doubt);
  CqExFunctions cq_ex = find_cq_ex_functions(code, tables);
  // One row of stores may fit both structures, where it fills but a part of either (efa, rdma-core 65):
  // what fits ibv_qp_ex, by the stricter pattern, is no poll.
  const auto is_builder = [&](uint64_t address) {
    return std::any_of(qp_ex.variants.begin(), qp_ex.variants.end(),
                       [&](const auto& variant) { return variant.second.count(address) != 0; });
  };
  for (const auto& [function, addresses] : cq_ex.variants)
    for (uint64_t address : addresses)
      if (!is_builder(address)) builder.add(function, address, Route::cq_ex_stores);
  plan.cq_layout = cq_ex.layout;
  if (!cq_ex.doubt.empty())
    for (sigma_function function : {SIGMA_FN_START_POLL, SIGMA_FN_NEXT_POLL})
      builder.unresolved(function, cq_ex.doubt);
  builder.finish();
  return plan;
}

void apply_live(LibraryPlan& plan, Code& code, const SymbolNames& names,
                std::span<const LivePointer> live) {
  for (const LivePointer& seen : live) {
    if (!find_function(seen.function)) continue;
    auto address = code.elf().address_of(seen.file_offset);
    if (!address || !code.elf().executable(*address)) {
      plan.notes.push_back(
          fmt::format("a running process shows {} at offset {:#x}, which is no code",
                      function_name(seen.function), seen.file_offset));
      continue;
    }
    bool known = false;
    for (ResolvedFunction& function : plan.functions)
      if (function.address == *address && function.function == seen.function)
        known = function.seen_live = true;
    if (known) continue;

    auto conflict = [&](const ResolvedFunction& f) { return f.address == *address; };
    for (const ResolvedFunction& function : plan.functions)
      if (conflict(function))
        plan.notes.push_back(fmt::format("{:#x} was taken for {}; a running process shows {}",
                                         *address, function_name(function.function),
                                         function_name(seen.function)));
    std::erase_if(plan.functions, conflict);
    LibraryPlan addition;
    PlanBuilder builder(addition, code, names);
    builder.add(seen.function, *address, Route::live);
    for (ResolvedFunction& function : addition.functions) {
      function.seen_live = true;
      plan.functions.push_back(std::move(function));
      std::erase_if(plan.unresolved,
                    [&](const UnresolvedFunction& u) { return u.function == seen.function; });
    }
    for (UnresolvedFunction& reason : addition.unresolved)
      plan.unresolved.push_back(std::move(reason));
  }
}

}  // namespace sigma
