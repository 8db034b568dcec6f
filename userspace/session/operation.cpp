// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
#include "session/operation.h"

#include <array>

namespace sigma {

std::string_view to_string(Opcode opcode) {
  static constexpr auto kNames = std::to_array<std::string_view>({
      "send",
      "send_with_imm",
      "send_with_inv",
      "tso",
      "rdma_write",
      "rdma_write_with_imm",
      "rdma_read",
      "atomic_cmp_and_swp",
      "atomic_fetch_and_add",
      "local_inv",
      "bind_mw",
      "driver",
      "recv",
      "recv_rdma_with_imm",
      "",
  });
  static_assert(kNames.size() == static_cast<size_t>(Opcode::unknown) + 1);
  const auto index = static_cast<size_t>(opcode);
  return index < kNames.size() ? kNames[index] : std::string_view();
}

}  // namespace sigma
