// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Parsing of a SIGMA_UVERBS record, and the one loop over the table (uverbs_table.cpp).
//
// How attributes travel (rdma_user_ioctl_cmds.h; rdma-core, libibverbs/cmd_ioctl.h): an input of at
// most 8 bytes stands in `data` itself, a longer one and every output behind a pointer there; a
// handle stands in `data` with length 0, both ways. BPF copies what is behind pointers to `offset`.
#include "decode/uverbs.h"

#include <rdma/ib_user_ioctl_cmds.h>
#include <rdma/ib_user_ioctl_verbs.h>
#include <rdma/rdma_user_ioctl_cmds.h>

#include <algorithm>
#include <cstring>

#include "decode/uverbs_table.h"

namespace sigma {

std::optional<UverbsCommand> UverbsCommand::parse(std::span<const std::byte> record) {
  if (record.size() < sizeof(sigma_uverbs) ||
      reinterpret_cast<uintptr_t>(record.data()) % alignof(sigma_uverbs) != 0)
    return std::nullopt;

  UverbsCommand command;
  command.header_ = reinterpret_cast<const sigma_uverbs*>(record.data());
  const auto rest = record.subspan(sizeof(sigma_uverbs));
  const size_t attr_bytes = size_t{command.header_->num_attrs} * sizeof(sigma_uverbs_attr);
  if (attr_bytes > rest.size() || command.header_->payload_bytes > rest.size() - attr_bytes)
    return std::nullopt;
  command.attrs_ = {reinterpret_cast<const sigma_uverbs_attr*>(rest.data()),
                    command.header_->num_attrs};
  command.payload_ = rest.subspan(attr_bytes, command.header_->payload_bytes);
  return command;
}

const sigma_uverbs_attr* UverbsCommand::find(uint16_t attr_id) const {
  const auto it = std::ranges::find(attrs_, attr_id, &sigma_uverbs_attr::attr_id);
  return it == attrs_.end() ? nullptr : &*it;
}

bool UverbsCommand::has(uint16_t attr_id) const {
  return find(attr_id) != nullptr;
}

std::span<const std::byte> UverbsCommand::bytes(uint16_t attr_id) const {
  const sigma_uverbs_attr* attr = find(attr_id);
  if (attr == nullptr) return {};
  if (attr->offset == SIGMA_UVERBS_NO_PAYLOAD) {
    // An output whose memory was not read leaves only its pointer: not data.
    if (attr->len > sizeof(attr->data) || attr->flags & UVERBS_ATTR_F_VALID_OUTPUT) return {};
    return std::as_bytes(std::span(&attr->data, 1)).first(attr->len);
  }
  if (attr->offset > payload_.size()) return {};
  const size_t length = std::min<size_t>(attr->len, SIGMA_UVERBS_ATTR_BYTES);
  if (length > payload_.size() - attr->offset) return {};
  return payload_.subspan(attr->offset, length);
}

std::optional<uint64_t> UverbsCommand::value(uint16_t attr_id) const {
  const sigma_uverbs_attr* attr = find(attr_id);
  if (attr == nullptr) return std::nullopt;
  if (attr->len == 0) return attr->data;
  const auto field = bytes(attr_id);
  uint64_t value = 0;
  if (field.empty() || field.size() > sizeof(value)) return std::nullopt;
  std::memcpy(&value, field.data(),
              field.size());  // little-endian hosts only, as the whole ABI here
  return value;
}

namespace {

bool is_write(const sigma_uverbs& header) {
  return header.object_id == UVERBS_OBJECT_DEVICE && header.method_id == UVERBS_METHOD_INVOKE_WRITE;
}

const UverbsMethod* find_method(const UverbsCommand& command) {
  const sigma_uverbs& header = command.header();
  uint32_t write_cmd = UverbsMethod::kIoctl;
  if (is_write(header)) {
    const auto value = command.value(UVERBS_ATTR_WRITE_CMD);
    if (!value) return nullptr;
    write_cmd = static_cast<uint32_t>(*value);
  }
  for (const UverbsMethod& method : uverbs_methods())
    if (method.object == header.object_id && method.method == header.method_id &&
        method.write_cmd == write_cmd)
      return &method;
  return nullptr;
}

void apply(const UverbsCommand& command, const UverbsRow& row, uint32_t mask, UverbsFacts& facts) {
  if ((row.mask & mask) != row.mask) return;

  if (row.width == UverbsRow::kWhole) {
    const bool truncated = command.header().flags & SIGMA_UVERBS_TRUNCATED;
    auto value = command.value(row.attr);
    if (!value && row.absent_is_zero && !truncated && !command.has(row.attr)) value = 0;
    if (value) row.store(facts, std::as_bytes(std::span(&*value, 1)));
    return;
  }

  const auto payload = command.bytes(row.attr);
  if (size_t{row.offset} + row.width > payload.size()) return;
  if (row.unless_zero != UverbsRow::kAlways &&
      (row.unless_zero >= payload.size() || payload[row.unless_zero] == std::byte{0}))
    return;
  row.store(facts, payload.subspan(row.offset, row.width));
}

// What a successful command cannot have failed to say.
bool complete(const UverbsFacts& facts) {
  if (facts.object == UverbsObject::context) return true;
  if (!facts.handle) return false;
  return facts.object != UverbsObject::qp || facts.action != UverbsAction::create || facts.qp_num;
}

}  // namespace

std::optional<UverbsFacts> decode_uverbs(const UverbsCommand& command, bool* undecoded) {
  if (undecoded != nullptr) *undecoded = false;
  const UverbsMethod* method = find_method(command);
  if (method == nullptr) {
    if (undecoded != nullptr)
      *undecoded = is_write(command.header()) && !command.value(UVERBS_ATTR_WRITE_CMD);
    return std::nullopt;
  }

  UverbsFacts facts;
  facts.object = method->creates;
  facts.action = method->action;
  facts.failed = command.header().result != 0;

  uint32_t mask = ~0u;
  if (method->mask_offset != UverbsMethod::kNoMask) {
    const auto core = command.bytes(UVERBS_ATTR_CORE_IN);
    mask = 0;
    if (size_t{method->mask_offset} + sizeof(mask) <= core.size())
      std::memcpy(&mask, core.data() + method->mask_offset, sizeof(mask));
  }
  for (const UverbsRow& row : method->rows) apply(command, row, mask, facts);
  if (command.header().driver_id == RDMA_DRIVER_MLX5)
    for (const UverbsRow& row : method->mlx5_rows) apply(command, row, mask, facts);

  // SRD delivers out of order (efadv_create_qp_ex(3)), and whether UD of the same device does is
  // not written anywhere; of either each request completes by itself.
  facts.any_order = command.header().driver_id == RDMA_DRIVER_EFA &&
                    facts.object == UverbsObject::qp && facts.action == UverbsAction::create;

  if (undecoded != nullptr) *undecoded = !facts.failed && !complete(facts);
  return facts;
}

}  // namespace sigma
