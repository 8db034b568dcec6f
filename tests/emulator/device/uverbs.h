// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// The uverbs ABI: one ioctl, RDMA_VERBS_IOCTL, that names an object, a method and attributes.
// Handlers are rows of tables (uverbs_core.cpp, uverbs_write.cpp, uverbs_mlx5.cpp); what stands in
// no table answers EOPNOTSUPP (EPROTONOSUPPORT would send libibverbs to the legacy write() ABI).
//
// The caller is the process itself, so its pointers are followed as they are.
#pragma once

#include <rdma/rdma_user_ioctl_cmds.h>

#include <cstring>
#include <span>

#include "nic.h"

namespace connectx {

class Command {
 public:
  Command(Device& device, int fd, ib_uverbs_ioctl_hdr& header)
      : device(device), fd_(fd), header_(header) {}

  Device& device;
  uint32_t object() const { return header_.object_id; }
  uint32_t method() const { return header_.method_id; }
  Context& context() const { return device.contexts[fd_]; }

  ib_uverbs_attr* find(uint16_t id) const {
    for (unsigned i = 0; i < header_.num_attrs; ++i) {
      if (header_.attrs[i].attr_id == id) return &header_.attrs[i];
    }
    return nullptr;
  }
  bool has(uint16_t id) const { return find(id) != nullptr; }

  // Input bytes: data of up to 8 bytes stands in the attribute itself.
  std::span<const uint8_t> in(uint16_t id) const {
    const ib_uverbs_attr* attribute = find(id);
    if (!attribute) return {};
    const void* data = attribute->len <= sizeof attribute->data
                           ? static_cast<const void*>(&attribute->data)
                           : reinterpret_cast<const void*>(attribute->data);
    return {static_cast<const uint8_t*>(data), attribute->len};
  }
  // A fixed-size structure; what the caller's shorter version lacks is zero.
  template <typename T>
  T in_struct(uint16_t id) const {
    T value{};
    const auto bytes = in(id);
    memcpy(static_cast<void*>(&value), bytes.data(), std::min(bytes.size(), sizeof value));
    return value;
  }
  uint64_t in_value(uint16_t id, uint64_t otherwise = 0) const {
    return has(id) ? in_struct<uint64_t>(id) : otherwise;
  }
  // Handles and file descriptors stand in `data` with a length of 0.
  uint64_t in_handle(uint16_t id) const {
    const ib_uverbs_attr* attribute = find(id);
    return attribute ? attribute->data : 0;
  }

  void out(uint16_t id, const void* data, size_t bytes) const {
    ib_uverbs_attr* attribute = find(id);
    if (!attribute) return;
    memcpy(reinterpret_cast<void*>(attribute->data), data, std::min<size_t>(bytes, attribute->len));
    attribute->flags |= UVERBS_ATTR_F_VALID_OUTPUT;
  }
  template <typename T>
  void out_struct(uint16_t id, const T& value) const {
    out(id, &value, sizeof value);
  }
  void out_handle(uint16_t id, uint64_t handle) const {
    if (ib_uverbs_attr* attribute = find(id)) attribute->data = handle;
  }
  std::span<uint8_t> out_bytes(uint16_t id) const {
    ib_uverbs_attr* attribute = find(id);
    if (!attribute) return {};
    return {reinterpret_cast<uint8_t*>(attribute->data), attribute->len};
  }

 private:
  int fd_;
  ib_uverbs_ioctl_hdr& header_;
};

// 0 or a positive errno.
using Handler = int (*)(Command&);
struct Method {
  uint32_t object, method;
  Handler handler;
};
std::span<const Method> core_methods();
std::span<const Method> mlx5_methods();
int invoke_write(Command& command);
// An MR's handle is its key's index. Null: implicit on-demand paging, which is not
// emulated, or memory of another device that this one may not reach.
const MemoryKey* register_memory(Device& device, uint64_t address, uint64_t length, uint64_t iova,
                                 uint32_t access);

// PRM commands (prm_commands.cpp). `created` is set by commands that create an object.
struct CreatedObject {
  uint32_t opcode = 0, id = 0;
};
int run_prm_command(Device& device, std::span<const uint8_t> in, std::span<uint8_t> out,
                    CreatedObject* created);
void destroy_prm_object(Device& device, const DevxObject& object);

// The ioctl itself. Takes the device lock.
int dispatch(Device& device, int fd, ib_uverbs_ioctl_hdr& header);

}  // namespace connectx
