// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Somewhere below create_cq_ex stand rows of `cq->read_opcode = ...;`, and one function has them
// all: their pattern is matched against the public layout of ibv_cq_ex to find where it begins.
// Where start_poll, next_poll and end_poll come from an array of such triples (mlx5), every row of
// it is a variant.
#include "resolve/cq_ex.h"

#include <fmt/format.h>
#include <infiniband/mlx5dv.h>

#include <algorithm>
#include <optional>

#include "resolve/cq_fields.h"
#include "resolve/pointer_stores.h"

namespace sigma {
namespace {

using Stores = PointerStores::Stores;

constexpr unsigned kCreateDepth = 5;
constexpr int64_t kFirstPointer = offsetof(ibv_cq_ex, start_poll);
constexpr int64_t kFirstReader = offsetof(ibv_cq_ex, read_opcode);
constexpr int64_t kLastReader = offsetof(ibv_cq_ex, read_completion_wallclock_ns);
// What every provider has: the three that move on, opcode, vendor_err and wc_flags.
constexpr int64_t kAlways[] = {offsetof(ibv_cq_ex, read_opcode),
                               offsetof(ibv_cq_ex, read_vendor_err),
                               offsetof(ibv_cq_ex, read_wc_flags)};
constexpr size_t kMinReaders = 6;
constexpr size_t kMaxRows = 32;  // mlx5: five properties, each yes or no

struct FieldReader {
  sigma_cq_field_name name;
  int64_t offset;  // of the pointer to the reader in ibv_cq_ex
};
constexpr FieldReader kFieldReaders[] = {
    {SIGMA_CQ_QP_NUM, offsetof(ibv_cq_ex, read_qp_num)},
    {SIGMA_CQ_OPCODE, offsetof(ibv_cq_ex, read_opcode)},
    {SIGMA_CQ_BYTE_LEN, offsetof(ibv_cq_ex, read_byte_len)},
    {SIGMA_CQ_VENDOR_ERR, offsetof(ibv_cq_ex, read_vendor_err)},
    {SIGMA_CQ_IMM, offsetof(ibv_cq_ex, read_imm_data)},
    {SIGMA_CQ_WC_FLAGS, offsetof(ibv_cq_ex, read_wc_flags)},
    {SIGMA_CQ_SRC_QP, offsetof(ibv_cq_ex, read_src_qp)},
};

// Where ibv_cq_ex begins in what one function fills through one pointer.
std::optional<int64_t> place_of_cq_ex(const Stores& functions, const Stores& elements) {
  std::optional<int64_t> found;
  for (const auto& [distance, addresses] : functions) {
    const int64_t offset = distance - kFirstReader;
    const auto has = [&](int64_t member) { return functions.count(offset + member) != 0; };
    if (offset < 0 || !std::all_of(std::begin(kAlways), std::end(kAlways), has)) continue;
    bool polls = true;
    for (int64_t member = kFirstPointer; member < kFirstReader; member += 8)
      polls = polls && (has(member) || elements.count(offset + member) != 0);
    size_t readers = 0;
    for (int64_t member = kFirstReader; member <= kLastReader; member += 8) readers += has(member);
    // start_poll is the first pointer: none lies within the members before it.
    int64_t first = functions.lower_bound(offset)->first;
    if (const auto element = elements.lower_bound(offset); element != elements.end())
      first = std::min(first, element->first);
    if (!polls || readers < kMinReaders || first != offset + kFirstPointer) continue;
    if (found) return std::nullopt;
    found = offset;
  }
  return found;
}

sigma_cq_field as_field(Code& code, const std::set<uint64_t>& readers) {
  std::optional<sigma_cq_field> common;
  for (uint64_t address : readers) {
    const FunctionRange* function = code.elf().function_at(address);
    const auto field = function ? field_returned_by(code, *function) : std::nullopt;
    if (!field || (common && __builtin_memcmp(&*common, &*field, sizeof *field) != 0)) return {};
    common = field;
  }
  return common.value_or(sigma_cq_field{});
}

bool is_cqe_field(const sigma_cq_field& field, uint32_t pointer, size_t offset, uint32_t mask) {
  return field.pointer == pointer && field.offset == offset && field.size == 4 && field.swapped &&
         field.shift == 0 && field.mask == mask;
}

sigma_cq_layout layout_of(Code& code, const Stores& functions, int64_t offset) {
  sigma_cq_layout layout{};
  bool any = false;
  for (const FieldReader& reader : kFieldReaders) {
    const auto store = functions.find(offset + reader.offset);
    if (store == functions.end()) continue;
    layout.fields[reader.name] = as_field(code, store->second);
    any |= layout.fields[reader.name].size != 0;
  }
  if (any) layout.kind = SIGMA_CQ_FIELDS;
  // mlx5: two readers that look where mlx5dv.h has these fields prove the format.
  const sigma_cq_field& qp_num = layout.fields[SIGMA_CQ_QP_NUM];
  if (qp_num.size != 0 && qp_num.pointer != SIGMA_CQ_EMBEDDED &&
      is_cqe_field(qp_num, qp_num.pointer, offsetof(mlx5_cqe64, sop_drop_qpn), 0xffffff) &&
      is_cqe_field(layout.fields[SIGMA_CQ_BYTE_LEN], qp_num.pointer, offsetof(mlx5_cqe64, byte_cnt),
                   ~0u)) {
    layout.kind = SIGMA_CQ_MLX5;
    layout.pointer = qp_num.pointer;
  }
  return layout;
}

// A start_poll of mlx5 sets the pointer to the completion entry.
bool uses_displacement(Code& code, const FunctionRange& function, int64_t displacement) {
  const auto& body = code.body(function);
  return std::any_of(body.begin(), body.end(), [&](const Instruction& instruction) {
    return std::any_of(instruction.operands, instruction.operands + instruction.operand_count,
                       [&](const Operand& operand) {
                         return operand.type == Operand::memory && operand.value == displacement;
                       });
  });
}

struct Row {
  uint64_t start, next;
};

// The rows {start, next, end} of the array at `table`. Some are empty: combinations that are never
// chosen. What is neither ends it, and so do functions that serve as other members (`readers`), which
// a compiler's constants may put right behind it; nothing else says how long it is.
std::vector<Row> rows_of(Code& code, uint64_t table, const sigma_cq_layout& layout,
                         const std::set<uint64_t>& readers) {
  std::vector<Row> rows;
  for (size_t n = 0; n < kMaxRows; ++n) {
    uint64_t functions[3] = {};
    unsigned filled = 0;
    for (unsigned column = 0; column < 3; ++column) {
      const uint64_t address = table + 24 * n + 8 * column;
      const Relocation* relocation = code.elf().relocation(address);
      if (!relocation) continue;
      if (!relocation->import.empty() || !code.elf().function_at(relocation->target) ||
          readers.count(relocation->target) != 0)
        return rows;
      functions[column] = relocation->target;
      ++filled;
    }
    if (filled == 0) continue;
    if (filled != 3) return rows;
    if (layout.kind == SIGMA_CQ_MLX5 &&
        !uses_displacement(code, *code.elf().function_at(functions[0]), layout.pointer))
      return rows;
    rows.push_back({functions[0], functions[1]});
  }
  return rows;
}

}  // namespace

std::vector<const FunctionRange*> cq_creators(Code& provider, const OpsTables& tables) {
  const ElfFile& elf = provider.elf();
  std::vector<const FunctionRange*> creators;
  for (const OpsTable& table : tables.tables) {
    bool follows = false;
    for (const OpsSlot& slot : table.slots) {
      const bool wanted =
          slot.name == "create_cq" || slot.name == "create_cq_ex" || (follows && slot.name.empty());
      follows = slot.name == "create_cq";
      const FunctionRange* function =
          wanted && slot.import.empty() ? elf.function_at(slot.address) : nullptr;
      if (function) creators.push_back(function);
    }
  }
  return creators;
}

CqExFunctions find_cq_ex_functions(Code& provider, const OpsTables& tables) {
  const ElfFile& elf = provider.elf();
  const auto creators = cq_creators(provider, tables);
  // What a QP needs as well may store the pointers of ibv_qp_ex.
  std::vector<const FunctionRange*> qp_creators;
  for (const OpsTable& table : tables.tables)
    for (const OpsSlot& slot : table.slots)
      if ((slot.name == "create_qp" || slot.name == "create_qp_ex") && slot.import.empty())
        if (const FunctionRange* function = elf.function_at(slot.address))
          qp_creators.push_back(function);
  const auto shared = provider.reachable(qp_creators, kCreateDepth);
  const std::set<const FunctionRange*> excluded(shared.begin(), shared.end());
  CqExFunctions out;
  size_t fits = 0, stores = 0;
  for (const FunctionRange* function : provider.reachable(creators, kCreateDepth)) {
    PointerStores visitor(elf);
    if (excluded.count(function) || !Flow(provider).run(*function, visitor)) continue;
    for (const auto& [pointer, functions] : visitor.functions) {
      stores += functions.size();
      const Stores& elements = visitor.elements[pointer];
      const auto offset = place_of_cq_ex(functions, elements);
      if (!offset) continue;
      const sigma_cq_layout layout = layout_of(provider, functions, *offset);
      // Two kinds of CQs in one provider: which one a CQ is cannot be told.
      out.layout = fits++ == 0 ? layout : sigma_cq_layout{};
      const auto take = [&](sigma_function which, int64_t member) {
        if (const auto store = functions.find(*offset + member); store != functions.end())
          out.variants[which].insert(store->second.begin(), store->second.end());
      };
      take(SIGMA_FN_START_POLL, offsetof(ibv_cq_ex, start_poll));
      take(SIGMA_FN_NEXT_POLL, offsetof(ibv_cq_ex, next_poll));
      std::set<uint64_t> readers;
      for (auto store = functions.lower_bound(*offset + kFirstReader);
           store != functions.end() && store->first <= *offset + kLastReader; ++store)
        readers.insert(store->second.begin(), store->second.end());
      const auto places = elements.find(*offset + kFirstPointer);
      if (places == elements.end()) continue;
      for (uint64_t table : places->second) {
        const auto continues = [&](int64_t member, uint64_t place) {
          const auto column = elements.find(*offset + member);
          return column != elements.end() && column->second.count(place) != 0;
        };
        if (!continues(offsetof(ibv_cq_ex, next_poll), table + 8) ||
            !continues(offsetof(ibv_cq_ex, end_poll), table + 16))
          continue;
        for (const Row& row : rows_of(provider, table, layout, readers)) {
          out.variants[SIGMA_FN_START_POLL].insert(row.start);
          out.variants[SIGMA_FN_NEXT_POLL].insert(row.next);
        }
      }
    }
  }
  if (out.variants.empty() && stores >= kMinReaders)
    out.doubt =
        fmt::format("{} stores of function addresses below create_cq_ex fit no ibv_cq_ex", stores);
  return out;
}

}  // namespace sigma
