// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// mlx5's own objects: UAR pages, DevX commands and objects, umems, event channels. Attribute ids of
// <rdma/mlx5_user_ioctl_cmds.h>.
#include <rdma/ib_user_ioctl_cmds.h>
#include <rdma/mlx5_user_ioctl_cmds.h>

#include <sys/mman.h>

#include <cerrno>

#include "uverbs.h"

namespace connectx {
namespace {

// UAR pages stand in the device's memory file from here on, one page each.
constexpr uint64_t kFirstUarPage = 0x10000, kUarPages = 0x8000, kPageShift = 12;

constexpr size_t kPageBytes = size_t{1} << kPageShift;

int alloc_uar(Command& command) {
  Device& device = command.device;
  const uint32_t page = nic().fabric->devices[device.index].next_uar.fetch_add(1) % kUarPages + 1;
  const uint64_t offset = (kFirstUarPage + page) << kPageShift;
  void* memory = mmap(nullptr, kPageBytes, PROT_READ, MAP_SHARED, device.memory_fd,
                      static_cast<off_t>(offset));
  if (memory == MAP_FAILED) return errno;
  const uint32_t handle = device.next_handle++;
  device.uar_pages[handle] = static_cast<const volatile uint8_t*>(memory);
  device.uar_by_number[page] = device.uar_pages[handle];
  command.out_struct(MLX5_IB_ATTR_UAR_OBJ_ALLOC_MMAP_OFFSET, offset);
  command.out_struct(MLX5_IB_ATTR_UAR_OBJ_ALLOC_MMAP_LENGTH,
                     uint64_t{kPageBytes});  // u32 or u64: little-endian
  command.out_struct(MLX5_IB_ATTR_UAR_OBJ_ALLOC_PAGE_ID, page);
  command.out_handle(MLX5_IB_ATTR_UAR_OBJ_ALLOC_HANDLE, handle);
  return 0;
}

int destroy_uar(Command& command) {
  auto& pages = command.device.uar_pages;
  const auto found =
      pages.find(static_cast<uint32_t>(command.in_handle(MLX5_IB_ATTR_UAR_OBJ_DESTROY_HANDLE)));
  if (found == pages.end()) return EINVAL;
  std::erase_if(command.device.uar_by_number,
                [&](const auto& entry) { return entry.second == found->second; });
  munmap(const_cast<uint8_t*>(found->second), kPageBytes);
  pages.erase(found);
  return 0;
}

int query_pd(Command& command) {
  // A PD's handle is its number.
  const auto number = static_cast<uint32_t>(command.in_handle(MLX5_IB_ATTR_QUERY_PD_HANDLE));
  command.out_struct(MLX5_IB_ATTR_QUERY_PD_RESP_PDN, number);
  return 0;
}

int devx_other(Command& command) {
  return run_prm_command(command.device, command.in(MLX5_IB_ATTR_DEVX_OTHER_CMD_IN),
                         command.out_bytes(MLX5_IB_ATTR_DEVX_OTHER_CMD_OUT), nullptr);
}

int devx_query_eqn(Command& command) {
  command.out_struct(MLX5_IB_ATTR_DEVX_QUERY_EQN_DEV_EQN, uint32_t{4});
  return 0;
}

int devx_query_uar(Command& command) {
  command.out_struct(MLX5_IB_ATTR_DEVX_QUERY_UAR_DEV_IDX,
                     static_cast<uint32_t>(command.in_value(MLX5_IB_ATTR_DEVX_QUERY_UAR_USER_IDX)));
  return 0;
}

int devx_create(Command& command) {
  CreatedObject created;
  const int error =
      run_prm_command(command.device, command.in(MLX5_IB_ATTR_DEVX_OBJ_CREATE_CMD_IN),
                      command.out_bytes(MLX5_IB_ATTR_DEVX_OBJ_CREATE_CMD_OUT), &created);
  if (error) return error;
  const uint32_t handle = command.device.next_handle++;
  command.device.devx_objects[handle] = {created.opcode, created.id};
  command.out_handle(MLX5_IB_ATTR_DEVX_OBJ_CREATE_HANDLE, handle);
  return 0;
}

int devx_destroy(Command& command) {
  Device& device = command.device;
  const auto found = device.devx_objects.find(
      static_cast<uint32_t>(command.in_handle(MLX5_IB_ATTR_DEVX_OBJ_DESTROY_HANDLE)));
  if (found == device.devx_objects.end()) return EINVAL;
  std::erase_if(device.devx_subscriptions,
                [&](const auto& s) { return s.object == found->second.id; });
  destroy_prm_object(device, found->second);
  device.devx_objects.erase(found);
  return 0;
}

int devx_modify(Command& command) {
  return run_prm_command(command.device, command.in(MLX5_IB_ATTR_DEVX_OBJ_MODIFY_CMD_IN),
                         command.out_bytes(MLX5_IB_ATTR_DEVX_OBJ_MODIFY_CMD_OUT), nullptr);
}

int devx_query(Command& command) {
  return run_prm_command(command.device, command.in(MLX5_IB_ATTR_DEVX_OBJ_QUERY_CMD_IN),
                         command.out_bytes(MLX5_IB_ATTR_DEVX_OBJ_QUERY_CMD_OUT), nullptr);
}

int devx_alloc_event_fd(Command& command) {
  const EventChannel* channel = create_channel(command.device);
  if (!channel) return EMFILE;
  command.out_handle(MLX5_IB_ATTR_DEVX_ASYNC_EVENT_FD_ALLOC_HANDLE,
                     static_cast<uint64_t>(channel->read_fd));
  return 0;
}

int devx_subscribe(Command& command) {
  Device& device = command.device;
  const auto fd = static_cast<int>(command.in_handle(MLX5_IB_ATTR_DEVX_SUBSCRIBE_EVENT_FD_HANDLE));
  const auto object = device.devx_objects.find(
      static_cast<uint32_t>(command.in_handle(MLX5_IB_ATTR_DEVX_SUBSCRIBE_EVENT_OBJ_HANDLE)));
  const auto types = command.in(MLX5_IB_ATTR_DEVX_SUBSCRIBE_EVENT_TYPE_NUM_LIST);
  for (const auto& channel : device.channels) {
    if (channel->read_fd != fd || object == device.devx_objects.end()) continue;
    for (size_t i = 0; i + 2 <= types.size(); i += 2) {
      uint16_t type;
      memcpy(&type, types.data() + i, sizeof type);
      device.devx_subscriptions.push_back(
          {channel.get(), command.in_value(MLX5_IB_ATTR_DEVX_SUBSCRIBE_EVENT_COOKIE),
           object->second.id, type});
    }
  }
  return 0;
}

int umem_register(Command& command) {
  Device& device = command.device;
  // Of a dma-buf the address is an offset.
  Umem umem{command.in_value(MLX5_IB_ATTR_DEVX_UMEM_REG_ADDR),
            command.in_value(MLX5_IB_ATTR_DEVX_UMEM_REG_LEN)};
  if (command.has(MLX5_IB_ATTR_DEVX_UMEM_REG_DMABUF_FD)) {
    const auto fd = static_cast<int>(command.in_handle(MLX5_IB_ATTR_DEVX_UMEM_REG_DMABUF_FD));
    if (!reach_descriptor(fd, umem.address, umem.length, umem.address)) return EBADF;
  } else if (!reach(umem.address, umem.length)) {
    return EFAULT;
  }
  const uint32_t id = device.next_handle++;
  device.umems[id] = umem;
  command.out_struct(MLX5_IB_ATTR_DEVX_UMEM_REG_OUT_ID, id);
  command.out_handle(MLX5_IB_ATTR_DEVX_UMEM_REG_HANDLE, id);
  return 0;
}

int umem_deregister(Command& command) {
  const auto id = static_cast<uint32_t>(command.in_handle(MLX5_IB_ATTR_DEVX_UMEM_DEREG_HANDLE));
  return command.device.umems.erase(id) ? 0 : ENOENT;
}

constexpr Method kMethods[] = {
    {MLX5_IB_OBJECT_UAR, MLX5_IB_METHOD_UAR_OBJ_ALLOC, alloc_uar},
    {MLX5_IB_OBJECT_UAR, MLX5_IB_METHOD_UAR_OBJ_DESTROY, destroy_uar},
    {UVERBS_OBJECT_PD, MLX5_IB_METHOD_PD_QUERY, query_pd},
    {MLX5_IB_OBJECT_DEVX, MLX5_IB_METHOD_DEVX_OTHER, devx_other},
    {MLX5_IB_OBJECT_DEVX, MLX5_IB_METHOD_DEVX_QUERY_EQN, devx_query_eqn},
    {MLX5_IB_OBJECT_DEVX, MLX5_IB_METHOD_DEVX_QUERY_UAR, devx_query_uar},
    {MLX5_IB_OBJECT_DEVX, MLX5_IB_METHOD_DEVX_SUBSCRIBE_EVENT, devx_subscribe},
    {MLX5_IB_OBJECT_DEVX_OBJ, MLX5_IB_METHOD_DEVX_OBJ_CREATE, devx_create},
    {MLX5_IB_OBJECT_DEVX_OBJ, MLX5_IB_METHOD_DEVX_OBJ_DESTROY, devx_destroy},
    {MLX5_IB_OBJECT_DEVX_OBJ, MLX5_IB_METHOD_DEVX_OBJ_MODIFY, devx_modify},
    {MLX5_IB_OBJECT_DEVX_OBJ, MLX5_IB_METHOD_DEVX_OBJ_QUERY, devx_query},
    {MLX5_IB_OBJECT_DEVX_ASYNC_EVENT_FD, MLX5_IB_METHOD_DEVX_ASYNC_EVENT_FD_ALLOC,
     devx_alloc_event_fd},
    {MLX5_IB_OBJECT_DEVX_UMEM, MLX5_IB_METHOD_DEVX_UMEM_REG, umem_register},
    {MLX5_IB_OBJECT_DEVX_UMEM, MLX5_IB_METHOD_DEVX_UMEM_DEREG, umem_deregister},
};

}  // namespace

std::span<const Method> mlx5_methods() {
  return kMethods;
}

}  // namespace connectx
