// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
#include "resolve/resolver.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <tuple>

#include "resolve/classify.h"
#include "resolve/content_key.h"
#include "resolve/library_plan.h"

namespace sigma {
namespace {

constexpr size_t kMaxKept = 256;  // plans; a node has a few dozen different libraries at most

// "/proc/123/root" of a path into another process's files, else "".
std::string root_of(const std::string& path) {
  constexpr std::string_view kProc = "/proc/";
  if (!path.starts_with(kProc)) return {};
  size_t slash = path.find('/', kProc.size());
  if (slash == std::string::npos) return {};
  std::string_view rest = std::string_view(path).substr(slash);
  if (!rest.starts_with("/root/") && !rest.starts_with("/map_files/")) return {};
  return path.substr(0, slash) + "/root";
}

struct Order {
  std::optional<OpsOrder> order;
  std::string why;
};

}  // namespace

struct Resolver::Cache {
  ContentHasher hasher;
  std::map<ContentKey, std::shared_ptr<const Order>> orders;
  std::map<std::pair<ContentKey, ContentKey>, SharedPlan> plans;  // library, libibverbs

  std::pair<ContentKey, std::shared_ptr<const Order>> order_of(const std::string& libibverbs) {
    auto unknown = [](std::string why) {
      return std::pair(ContentKey{}, std::make_shared<const Order>(Order{{}, std::move(why)}));
    };
    if (libibverbs.empty()) return unknown("the process maps no libibverbs");
    auto elf = ElfFile::open(libibverbs);
    if (!elf) return unknown(elf.error().what);
    ContentKey key = hasher.key_of(elf->build_id(), elf->bytes());
    if (auto known = orders.find(key); known != orders.end()) return *known;
    Code code(*elf);
    auto derived = derive_ops_order(code);
    auto order = std::make_shared<const Order>(derived ? Order{*std::move(derived), {}}
                                                       : Order{{}, derived.error().what});
    if (orders.size() >= kMaxKept) orders.clear();
    orders.emplace(key, order);
    return {key, order};
  }
};

Resolver::Resolver() : cache_(std::make_unique<Cache>()) {}
Resolver::~Resolver() = default;

LibraryKind Resolver::classify(const std::string& path) const {
  return classify_file(path);
}

namespace {

void name_plan(LibraryPlan& plan, const ElfFile& elf, const std::string& path,
               const std::string& mapped_as) {
  plan.path = path;
  plan.build_id = elf.build_id();
  bool anonymous = mapped_as.empty() && path.find("/map_files/") != path.npos;
  plan.name = library_name(!mapped_as.empty() ? mapped_as
                           : anonymous        ? std::string(elf.soname())
                                              : path);
}

}  // namespace

Result<SharedPlan> Resolver::plan(const std::string& path, const std::string& libibverbs,
                                  const std::string& mapped_as) {
  SIGMA_ASSIGN(ElfFile elf, ElfFile::open(path));
  LibraryKind kind = classify_elf(elf);
  if (kind == LibraryKind::other)
    return Error{fmt::format("{}: neither libibverbs nor one of its providers", path)};
  std::pair<ContentKey, ContentKey> key{cache_->hasher.key_of(elf.build_id(), elf.bytes()), {}};
  std::shared_ptr<const Order> order;
  if (kind == LibraryKind::provider) std::tie(key.second, order) = cache_->order_of(libibverbs);

  auto& plans = cache_->plans;
  auto known = plans.find(key);
  if (known == plans.end()) {
    Code code(elf);
    SymbolNames names = load_symbol_names(elf, root_of(path));
    LibraryPlan plan =
        kind == LibraryKind::libibverbs ? plan_libibverbs(code, names)
        : kind == LibraryKind::gpu_library
            ? plan_gpu_library(code, names)
            : plan_provider(code, names, order->order ? &*order->order : nullptr, order->why);
    name_plan(plan, elf, path, mapped_as);
    if (plans.size() >= kMaxKept) plans.clear();
    known = plans.emplace(key, std::make_shared<const LibraryPlan>(std::move(plan))).first;
  }
  if (known->second->path == path) return known->second;
  // The same content under another path: probes are set by path.
  auto copy = std::make_shared<LibraryPlan>(*known->second);
  name_plan(*copy, elf, path, mapped_as);
  return SharedPlan(std::move(copy));
}

Result<SharedPlan> Resolver::plan_from_live(const std::string& path, const std::string& libibverbs,
                                            std::span<const LivePointer> live,
                                            const std::string& mapped_as) {
  SIGMA_ASSIGN(ElfFile elf, ElfFile::open(path));
  auto merged = std::make_shared<LibraryPlan>();
  if (classify_elf(elf) != LibraryKind::other) {
    SIGMA_ASSIGN(SharedPlan known, plan(path, libibverbs, mapped_as));
    *merged = *known;
  }
  name_plan(*merged, elf, path, mapped_as);
  Code code(elf);
  apply_live(*merged, code, load_symbol_names(elf, root_of(path)), live);
  return SharedPlan(std::move(merged));
}

std::string_view route_name(Route route) {
  static constexpr std::string_view kNames[] = {
      "symbols", "debug_file", "debug_data", "ops_table", "window_scan", "qp_ex_stores", "cq_ex_stores", "live"};
  auto index = static_cast<size_t>(route);
  return index < std::size(kNames) ? kNames[index] : "?";
}

std::string_view instruction_kind_name(InstructionKind kind) {
  static constexpr std::string_view kNames[] = {"push", "nop",  "nop5",
                                                "jump", "call", "single_step"};
  auto index = static_cast<size_t>(kind);
  return index < std::size(kNames) ? kNames[index] : "?";
}

}  // namespace sigma
