// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
#include "decode/devx.h"

#include <rdma/ib_user_ioctl_verbs.h>
#include <rdma/mlx5_user_ioctl_cmds.h>

namespace sigma {
namespace {

std::optional<uint32_t> number(const UverbsCommand& command, uint16_t attr) {
  const auto value = command.value(attr);
  if (!value) return std::nullopt;
  return static_cast<uint32_t>(*value);
}

std::optional<DevxFacts> decode_umem(const UverbsCommand& command) {
  DevxFacts facts{.is_umem = true};
  facts.failed = command.header().result != 0;
  switch (command.header().method_id) {
    case MLX5_IB_METHOD_DEVX_UMEM_REG:
      facts.action = UverbsAction::create;
      facts.handle = number(command, MLX5_IB_ATTR_DEVX_UMEM_REG_HANDLE);
      facts.umem_id = number(command, MLX5_IB_ATTR_DEVX_UMEM_REG_OUT_ID);
      facts.umem_addr = command.value(MLX5_IB_ATTR_DEVX_UMEM_REG_ADDR);
      facts.umem_length = command.value(MLX5_IB_ATTR_DEVX_UMEM_REG_LEN);
      return facts;
    case MLX5_IB_METHOD_DEVX_UMEM_DEREG:
      facts.action = UverbsAction::destroy;
      facts.handle = number(command, MLX5_IB_ATTR_DEVX_UMEM_DEREG_HANDLE);
      return facts;
    default:
      return std::nullopt;
  }
}

}  // namespace

std::optional<DevxFacts> decode_devx(const UverbsCommand& command) {
  const sigma_uverbs& header = command.header();
  if (header.driver_id != RDMA_DRIVER_MLX5) return std::nullopt;
  if (header.object_id == MLX5_IB_OBJECT_DEVX_UMEM) return decode_umem(command);
  if (header.object_id != MLX5_IB_OBJECT_DEVX_OBJ) return std::nullopt;

  DevxFacts facts{.failed = header.result != 0};
  switch (header.method_id) {
    case MLX5_IB_METHOD_DEVX_OBJ_CREATE:
      facts.action = UverbsAction::create;
      facts.handle = number(command, MLX5_IB_ATTR_DEVX_OBJ_CREATE_HANDLE);
      facts.prm = decode_prm(command.bytes(MLX5_IB_ATTR_DEVX_OBJ_CREATE_CMD_IN),
                             command.bytes(MLX5_IB_ATTR_DEVX_OBJ_CREATE_CMD_OUT));
      break;
    case MLX5_IB_METHOD_DEVX_OBJ_MODIFY:
      facts.action = UverbsAction::modify;
      facts.handle = number(command, MLX5_IB_ATTR_DEVX_OBJ_MODIFY_HANDLE);
      facts.prm = decode_prm(command.bytes(MLX5_IB_ATTR_DEVX_OBJ_MODIFY_CMD_IN),
                             command.bytes(MLX5_IB_ATTR_DEVX_OBJ_MODIFY_CMD_OUT));
      break;
    case MLX5_IB_METHOD_DEVX_OBJ_DESTROY:
      facts.action = UverbsAction::destroy;
      facts.handle = number(command, MLX5_IB_ATTR_DEVX_OBJ_DESTROY_HANDLE);
      return facts;
    default:
      return std::nullopt;
  }
  if (!facts.prm) return std::nullopt;
  facts.failed |= facts.prm->status != 0;
  return facts;
}

}  // namespace sigma
