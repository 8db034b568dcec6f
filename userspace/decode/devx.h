// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// DevX methods of the mlx5 driver among the uverbs commands: firmware objects, and the user memory
// that is registered for them. No I/O, allocation or exceptions.
// Layout: kernel uapi rdma/mlx5_user_ioctl_cmds.h.
#pragma once

#include <cstdint>
#include <optional>

#include "decode/prm.h"
#include "decode/uverbs.h"

namespace sigma {

struct DevxFacts {
  UverbsAction action = UverbsAction::none;
  bool failed = false;
  std::optional<uint32_t> handle;

  // A registered piece of memory: its number for the firmware, and where it is in the process.
  // Without an address it is a dma-buf.
  bool is_umem = false;
  std::optional<uint32_t> umem_id;
  std::optional<uint64_t> umem_addr, umem_length;

  // A firmware object: what the command says. Of a destroy command nothing.
  std::optional<PrmFacts> prm;
};

// nullopt: no DevX command about queues or their memory.
std::optional<DevxFacts> decode_devx(const UverbsCommand& command);

}  // namespace sigma
