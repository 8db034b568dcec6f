// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
#include "gpu_interpose/ioctl_hook.h"

#include <errno.h>
#include <rdma/ib_user_ioctl_cmds.h>
#include <rdma/mlx5_user_ioctl_cmds.h>
#include <rdma/rdma_user_ioctl.h>
#include <rdma/rdma_user_ioctl_cmds.h>
#include <stdarg.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "gpu_interpose/guard.h"
#include "gpu_interpose/hooks.h"
#include "gpu_interpose/queues.h"

namespace sigma::gpu {
namespace {

__thread uint32_t last_handle __attribute__((tls_model("initial-exec"))) = 0;

constexpr uint16_t kMaxAttributes = 64;

// One uverbs command, as the job's libibverbs built it.
class Command {
 public:
  explicit Command(const ib_uverbs_ioctl_hdr* header)
      : object_(header->object_id),
        method_(header->method_id),
        count_(header->num_attrs <= kMaxAttributes ? header->num_attrs : uint16_t{0}),
        attributes_(header->attrs) {}

  // About queues or their memory.
  bool is_devx() const {
    return object_ == MLX5_IB_OBJECT_DEVX_OBJ || object_ == MLX5_IB_OBJECT_DEVX_UMEM;
  }
  bool is(uint16_t object, uint16_t method) const { return object_ == object && method_ == method; }

  const ib_uverbs_attr* find(uint16_t id) const {
    for (uint16_t i = 0; i < count_; ++i)
      if (attributes_[i].attr_id == id) return &attributes_[i];
    return nullptr;
  }

  // A number: inline up to 8 bytes; handles and descriptors are, too.
  uint64_t number(uint16_t id) const {
    const ib_uverbs_attr* attribute = find(id);
    return attribute ? attribute->data : 0;
  }

  // An input, inline up to 8 bytes, or an output, never inline.
  std::span<const std::byte> bytes(uint16_t id, bool output) const {
    const ib_uverbs_attr* attribute = find(id);
    if (!attribute) return {};
    const void* data = !output && attribute->len <= sizeof(attribute->data)
                           ? static_cast<const void*>(&attribute->data)
                           : reinterpret_cast<const void*>(attribute->data);
    return {static_cast<const std::byte*>(data), data ? attribute->len : size_t{0}};
  }

 private:
  uint16_t object_, method_, count_;
  const ib_uverbs_attr* attributes_;
};

Caller caller_of(int fd, uint64_t handle) {
  return {fd, nullptr, nullptr, static_cast<uint32_t>(handle), nullptr};
}

bool ends_object(const Command& command) {
  return command.is(MLX5_IB_OBJECT_DEVX_OBJ, MLX5_IB_METHOD_DEVX_OBJ_DESTROY);
}
bool ends_umem(const Command& command) {
  return command.is(MLX5_IB_OBJECT_DEVX_UMEM, MLX5_IB_METHOD_DEVX_UMEM_DEREG);
}
Caller owner_of(const Command& command, int fd) {
  uint16_t handle = MLX5_IB_ATTR_DEVX_OBJ_MODIFY_HANDLE;
  if (ends_object(command)) handle = MLX5_IB_ATTR_DEVX_OBJ_DESTROY_HANDLE;
  if (ends_umem(command)) handle = MLX5_IB_ATTR_DEVX_UMEM_DEREG_HANDLE;
  return caller_of(fd, command.number(handle));
}

// Returns when what it is about ended, if it does.
uint64_t before(const Command& command, int fd) {
  if (ends_object(command)) return before_object_end(owner_of(command, fd));
  if (ends_umem(command)) return before_umem_end(owner_of(command, fd));
  if (command.is(MLX5_IB_OBJECT_DEVX_OBJ, MLX5_IB_METHOD_DEVX_OBJ_MODIFY))
    before_modify(owner_of(command, fd), command.bytes(MLX5_IB_ATTR_DEVX_OBJ_MODIFY_CMD_IN, false));
  return 0;
}

void after_failure(const Command& command, int fd, uint64_t since_ns) {
  if (ends_object(command)) on_object_kept(owner_of(command, fd), since_ns);
  if (ends_umem(command)) on_umem_kept(owner_of(command, fd), since_ns);
}

void after(const Command& command, int fd) {
  if (command.is(MLX5_IB_OBJECT_DEVX_UMEM, MLX5_IB_METHOD_DEVX_UMEM_REG)) {
    const auto id = command.bytes(MLX5_IB_ATTR_DEVX_UMEM_REG_OUT_ID, true);
    const ib_uverbs_attr* dmabuf = command.find(MLX5_IB_ATTR_DEVX_UMEM_REG_DMABUF_FD);
    if (id.size() < sizeof(uint32_t)) return;
    on_umem(caller_of(fd, command.number(MLX5_IB_ATTR_DEVX_UMEM_REG_HANDLE)),
            *reinterpret_cast<const uint32_t*>(id.data()),
            command.number(MLX5_IB_ATTR_DEVX_UMEM_REG_ADDR),
            command.number(MLX5_IB_ATTR_DEVX_UMEM_REG_LEN),
            dmabuf ? static_cast<int>(dmabuf->data_s64) : -1);
  } else if (command.is(MLX5_IB_OBJECT_DEVX_OBJ, MLX5_IB_METHOD_DEVX_OBJ_CREATE)) {
    on_object(caller_of(fd, command.number(MLX5_IB_ATTR_DEVX_OBJ_CREATE_HANDLE)),
              command.bytes(MLX5_IB_ATTR_DEVX_OBJ_CREATE_CMD_IN, false),
              command.bytes(MLX5_IB_ATTR_DEVX_OBJ_CREATE_CMD_OUT, true));
  } else if (command.is(MLX5_IB_OBJECT_DEVX_OBJ, MLX5_IB_METHOD_DEVX_OBJ_MODIFY)) {
    on_modified(caller_of(fd, command.number(MLX5_IB_ATTR_DEVX_OBJ_MODIFY_HANDLE)),
                command.bytes(MLX5_IB_ATTR_DEVX_OBJ_MODIFY_CMD_IN, false),
                command.bytes(MLX5_IB_ATTR_DEVX_OBJ_MODIFY_CMD_OUT, true));
  }
}

void note_handle(const Command& command) {
  if (command.is(MLX5_IB_OBJECT_DEVX_OBJ, MLX5_IB_METHOD_DEVX_OBJ_CREATE))
    last_handle = static_cast<uint32_t>(command.number(MLX5_IB_ATTR_DEVX_OBJ_CREATE_HANDLE));
  else if (command.is(MLX5_IB_OBJECT_DEVX_UMEM, MLX5_IB_METHOD_DEVX_UMEM_REG))
    last_handle = static_cast<uint32_t>(command.number(MLX5_IB_ATTR_DEVX_UMEM_REG_HANDLE));
}

}  // namespace

uint32_t last_devx_handle() {
  return last_handle;
}

}  // namespace sigma::gpu

int ioctl(int fd, unsigned long request, ...) noexcept {
  using namespace sigma::gpu;
  va_list arguments;
  va_start(arguments, request);
  void* argument = va_arg(arguments, void*);
  va_end(arguments);
  const auto real = SIGMA_REAL(ioctl);
  // No libc but glibc has the hooks that led here; even so, the system call is the same.
  if (!real) return static_cast<int>(syscall(SYS_ioctl, fd, request, argument));
  if (request != RDMA_VERBS_IOCTL || !argument) return real(fd, request, argument);

  const Command command(static_cast<const ib_uverbs_ioctl_hdr*>(argument));
  if (!command.is_devx()) return real(fd, request, argument);
  const Guard guard;
  const bool past_hooks = guard.outermost() && cuda_is_loaded();
  const uint64_t since_ns = past_hooks ? before(command, fd) : 0;
  const int result = real(fd, request, argument);
  const int kept = errno;
  if (past_hooks && result != 0)
    after_failure(command, fd, since_ns);
  else if (past_hooks)
    after(command, fd);
  else if (result == 0)
    note_handle(command);
  errno = kept;
  return result;
}
