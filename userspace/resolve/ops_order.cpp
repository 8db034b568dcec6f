// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// verbs_set_ops is a row of `if (ops->x) { priv->ops.x = ops->x; vctx->context.ops.x = ops->x; }`.
// Every store of a word loaded from ops+X is one of two: into the private copy, at a constant
// distance from X; or into the public structure, which names X.
#include "resolve/ops_order.h"

#include <fmt/format.h>
#include <infiniband/verbs.h>

#include <algorithm>
#include <map>
#include <set>

#include "resolve/flow.h"

namespace sigma {
namespace {

struct PublicField {
  int offset;  // from ibv_context
  std::string_view name;
};

#define SIGMA_OP(member, name) \
  { static_cast<int>(offsetof(ibv_context, ops.member)), #name }
#define SIGMA_VERB(member, name)                            \
  {                                                         \
    static_cast<int>(offsetof(verbs_context, member)) -     \
        static_cast<int>(offsetof(verbs_context, context)), \
        #name                                               \
  }

// Names as struct verbs_context_ops has them. query_port appears twice in the public structures and
// is left out, as are the fields that are not copied.
constexpr PublicField kPublic[] = {
    SIGMA_OP(_compat_alloc_pd, alloc_pd),
    SIGMA_OP(_compat_dealloc_pd, dealloc_pd),
    SIGMA_OP(_compat_reg_mr, reg_mr),
    SIGMA_OP(_compat_rereg_mr, rereg_mr),
    SIGMA_OP(_compat_dereg_mr, dereg_mr),
    SIGMA_OP(alloc_mw, alloc_mw),
    SIGMA_OP(bind_mw, bind_mw),
    SIGMA_OP(dealloc_mw, dealloc_mw),
    SIGMA_OP(_compat_create_cq, create_cq),
    SIGMA_OP(poll_cq, poll_cq),
    SIGMA_OP(req_notify_cq, req_notify_cq),
    SIGMA_OP(_compat_cq_event, cq_event),
    SIGMA_OP(_compat_resize_cq, resize_cq),
    SIGMA_OP(_compat_destroy_cq, destroy_cq),
    SIGMA_OP(_compat_create_srq, create_srq),
    SIGMA_OP(_compat_modify_srq, modify_srq),
    SIGMA_OP(_compat_query_srq, query_srq),
    SIGMA_OP(_compat_destroy_srq, destroy_srq),
    SIGMA_OP(post_srq_recv, post_srq_recv),
    SIGMA_OP(_compat_create_qp, create_qp),
    SIGMA_OP(_compat_query_qp, query_qp),
    SIGMA_OP(_compat_modify_qp, modify_qp),
    SIGMA_OP(_compat_destroy_qp, destroy_qp),
    SIGMA_OP(post_send, post_send),
    SIGMA_OP(post_recv, post_recv),
    SIGMA_OP(_compat_create_ah, create_ah),
    SIGMA_OP(_compat_destroy_ah, destroy_ah),
    SIGMA_OP(_compat_attach_mcast, attach_mcast),
    SIGMA_OP(_compat_detach_mcast, detach_mcast),
    SIGMA_OP(_compat_async_event, async_event),
    SIGMA_VERB(advise_mr, advise_mr),
    SIGMA_VERB(create_cq_ex, create_cq_ex),
    SIGMA_VERB(create_qp_ex, create_qp_ex),
    SIGMA_VERB(create_srq_ex, create_srq_ex),
    SIGMA_VERB(create_wq, create_wq),
    SIGMA_VERB(destroy_wq, destroy_wq),
    SIGMA_VERB(modify_wq, modify_wq),
    SIGMA_VERB(open_qp, open_qp),
    SIGMA_VERB(open_xrcd, open_xrcd),
    SIGMA_VERB(modify_cq, modify_cq),
    SIGMA_VERB(post_srq_ops, post_srq_ops),
    SIGMA_VERB(query_device_ex, query_device_ex),
    SIGMA_VERB(query_rt_values, query_rt_values),
    SIGMA_VERB(get_srq_num, get_srq_num),
};
#undef SIGMA_OP
#undef SIGMA_VERB

constexpr int kPrivBelowContext = static_cast<int>(offsetof(verbs_context, context)) -
                                  static_cast<int>(offsetof(verbs_context, priv));
constexpr int kMaxSlots = 256;

class SetOpsVisitor : public FlowVisitor {
 public:
  std::map<int, std::set<int>> public_stores;  // ops offset -> vctx offsets
  std::map<int, std::map<int, int>>
      private_stores;  // vctx offset of the pointer -> ops offset -> place

  void on_store(const Instruction&, std::span<const Atom> base, uint8_t, int64_t displacement,
                std::span<const Atom> value) override {
    // verbs_set_ops(struct verbs_context *, const struct verbs_context_ops *)
    if (value.size() != 1 || base.size() != 1) return;
    const Atom &stored = value[0], &into = base[0];
    if (stored.kind != Atom::loaded || stored.index != 1 || stored.value != 0) return;
    if (stored.offset < 0 || stored.offset % 8 || stored.offset >= kMaxSlots * 8) return;
    int64_t place = wrapping_add(into.value, displacement);
    if (place < 0 || place > 1 << 20 || into.index != 0) return;
    if (into.kind == Atom::argument) public_stores[stored.offset].insert(static_cast<int>(place));
    if (into.kind == Atom::loaded)
      private_stores[into.offset][stored.offset] = static_cast<int>(place);
  }
  void on_exit(const Instruction&, std::span<const Atom>,
               std::span<const std::span<const Atom>, 6>) override {}
};

Error unsure(const ElfFile& elf, std::string_view why) {
  return Error{fmt::format("{}: order of verbs_context_ops not derived: {}", elf.path(), why),
               "report this libibverbs build"};
}

// Orders of past releases, by number of slots and the slots of the data path. A last resort for a
// libibverbs whose verbs_set_ops cannot be followed; source: rdma-core's libibverbs/driver.h, tags
// v17 to v65.
struct KnownOrder {
  int slots, create_qp, poll_cq, post_recv, post_send, post_srq_recv;
};
constexpr KnownOrder kKnown[] = {
    {53, 13, 38, 39, 40, 42}, {60, 15, 44, 45, 46, 48}, {64, 17, 47, 48, 49, 51},
    {65, 18, 48, 49, 50, 52}, {66, 19, 49, 50, 51, 53}, {67, 19, 50, 51, 52, 54},
    {72, 19, 52, 53, 54, 56}, {73, 19, 52, 53, 54, 56}, {75, 19, 53, 54, 55, 57},
    {76, 19, 53, 54, 55, 57}, {79, 20, 55, 56, 57, 59}, {81, 20, 56, 57, 58, 60},
    {83, 21, 58, 59, 60, 62}, {93, 22, 62, 63, 64, 66},
};

// libibverbs has a table of its own with every slot filled: the longest row of pointers to
// functions.
int longest_function_row(const ElfFile& elf) {
  int longest = 0, row = 0;
  uint64_t expected = 0;
  for (const Relocation& relocation : elf.relocations()) {
    bool function = relocation.import.empty() && elf.function_at(relocation.target);
    row = function ? (relocation.address == expected ? row + 1 : 1) : 0;
    expected = relocation.address + 8;
    longest = std::max(longest, row);
  }
  return longest;
}

Result<OpsOrder> known_order(const ElfFile& elf, const Error& cause) {
  int slots = longest_function_row(elf);
  for (const KnownOrder& known : kKnown) {
    if (known.slots != slots) continue;
    OpsOrder order;
    order.names.resize(static_cast<size_t>(slots));
    order.names[static_cast<size_t>(known.create_qp)] = "create_qp";
    order.names[static_cast<size_t>(known.poll_cq)] = "poll_cq";
    order.names[static_cast<size_t>(known.post_recv)] = "post_recv";
    order.names[static_cast<size_t>(known.post_send)] = "post_send";
    order.names[static_cast<size_t>(known.post_srq_recv)] = "post_srq_recv";
    return order;
  }
  return cause;
}

Result<OpsOrder> derive(Code& code) {
  const ElfFile& elf = code.elf();
  const Symbol* symbol = elf.exported("verbs_set_ops");
  if (!symbol) return unsure(elf, "it does not export verbs_set_ops");
  const FunctionRange* range = elf.function_at(symbol->value);
  FunctionRange by_symbol{symbol->value, symbol->size};
  if (!range) range = &by_symbol;
  SetOpsVisitor seen;
  if (!Flow(code).run(*range, seen)) return unsure(elf, "verbs_set_ops cannot be decoded");

  // The pointer whose target takes most of the private copies is verbs_context.priv.
  auto most = std::max_element(
      seen.private_stores.begin(), seen.private_stores.end(),
      [](const auto& a, const auto& b) { return a.second.size() < b.second.size(); });
  if (most == seen.private_stores.end() || most->second.size() < 32)
    return unsure(elf, "no private copy of the table is made");
  const auto& copies = most->second;
  int distance = copies.begin()->second - copies.begin()->first;
  int last = 0;
  for (const auto& [from, to] : copies) {
    if (to - from != distance) return unsure(elf, "the private copy is not in the table's order");
    last = std::max(last, from);
  }
  int64_t context = int64_t{most->first} + kPrivBelowContext;

  OpsOrder order;
  order.derived = true;
  order.names.resize(static_cast<size_t>(last / 8 + 1));
  for (const auto& [from, places] : seen.public_stores)
    for (int place : places)
      for (const PublicField& field : kPublic)
        if (field.offset == place - context && from <= last) {
          std::string& name = order.names[static_cast<size_t>(from / 8)];
          if (!name.empty() && name != field.name)
            return unsure(elf,
                          fmt::format("slot {} is both {} and {}", from / 8, name, field.name));
          name = field.name;
        }

  std::string_view previous;
  int named = 0;
  for (const std::string& name : order.names) {
    if (name.empty()) continue;
    if (!(previous < name)) return unsure(elf, fmt::format("{} comes before {}", previous, name));
    previous = name;
    ++named;
  }
  if (named < 24) return unsure(elf, fmt::format("only {} slots are named", named));
  for (std::string_view name : {"create_qp", "poll_cq", "post_recv", "post_send", "post_srq_recv"})
    if (order.index(name) < 0) return unsure(elf, fmt::format("{} has no slot", name));
  return order;
}

}  // namespace

int OpsOrder::index(std::string_view name) const {
  auto found = std::find(names.begin(), names.end(), name);
  return found == names.end() ? -1 : static_cast<int>(found - names.begin());
}

Result<OpsOrder> derive_ops_order(Code& libibverbs) {
  auto order = derive(libibverbs);
  return order ? std::move(order) : known_order(libibverbs.elf(), order.error());
}

}  // namespace sigma
