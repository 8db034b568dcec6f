// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Wrappers of libmlx5's DevX functions: by these every mlx5 stack makes its GPU-resident queues. In
// a process without the CUDA driver they only pass on.
#include <errno.h>

#include "gpu_interpose/guard.h"
#include "gpu_interpose/hooks.h"
#include "gpu_interpose/ioctl_hook.h"
#include "gpu_interpose/queues.h"
#include "gpu_interpose/wrappers.h"

namespace {

using namespace sigma::gpu;

// Without a real function: what it would say where the device lacks DevX.
template <typename T>
T* unsupported() {
  errno = EOPNOTSUPP;
  return nullptr;
}

Caller caller_of(ibv_context* context, const void* object, const void* from) {
  return {context ? context->cmd_fd : -1, context, object, last_devx_handle(), from};
}

std::span<const std::byte> bytes_of(const void* data, size_t size) {
  return {static_cast<const std::byte*>(data), data ? size : 0};
}

bool watched(const Guard& guard) {
  return guard.outermost() && cuda_is_loaded();
}

// The job's errno is what the real call left.
class KeepErrno {
 public:
  ~KeepErrno() { errno = value_; }

 private:
  int value_ = errno;
};

}  // namespace

mlx5dv_devx_umem* mlx5dv_devx_umem_reg(ibv_context* context, void* address, size_t bytes,
                                       uint32_t access) {
  const Guard guard;
  const auto real = SIGMA_REAL(mlx5dv_devx_umem_reg);
  if (!real) return unsupported<mlx5dv_devx_umem>();
  mlx5dv_devx_umem* umem = real(context, address, bytes, access);
  const KeepErrno keep;
  if (umem && watched(guard))
    on_umem(caller_of(context, umem, __builtin_return_address(0)), umem->umem_id,
            reinterpret_cast<uint64_t>(address), bytes, -1);
  return umem;
}

mlx5dv_devx_umem* mlx5dv_devx_umem_reg_ex(ibv_context* context, mlx5dv_devx_umem_in* in) {
  const Guard guard;
  const auto real = SIGMA_REAL(mlx5dv_devx_umem_reg_ex);
  if (!real) return unsupported<mlx5dv_devx_umem>();
  mlx5dv_devx_umem* umem = real(context, in);
  const KeepErrno keep;
  if (umem && watched(guard)) {
    const bool by_handle = in->comp_mask & MLX5DV_UMEM_MASK_DMABUF;
    on_umem(caller_of(context, umem, __builtin_return_address(0)), umem->umem_id,
            reinterpret_cast<uint64_t>(in->addr), in->size, by_handle ? in->dmabuf_fd : -1);
  }
  return umem;
}

int mlx5dv_devx_umem_dereg(mlx5dv_devx_umem* umem) {
  const Guard guard;
  const auto real = SIGMA_REAL(mlx5dv_devx_umem_dereg);
  if (!real) return EOPNOTSUPP;
  const bool ours = umem && watched(guard);
  const Caller caller = caller_of(nullptr, umem, nullptr);
  const uint64_t since_ns = ours ? before_umem_end(caller) : 0;
  const int result = real(umem);
  const KeepErrno keep;
  if (ours && result != 0) on_umem_kept(caller, since_ns);
  return result;
}

mlx5dv_devx_uar* mlx5dv_devx_alloc_uar(ibv_context* context, uint32_t flags) {
  const Guard guard;
  const auto real = SIGMA_REAL(mlx5dv_devx_alloc_uar);
  if (!real) return unsupported<mlx5dv_devx_uar>();
  mlx5dv_devx_uar* uar = real(context, flags);
  const KeepErrno keep;
  if (uar && watched(guard))
    on_uar(caller_of(context, uar, __builtin_return_address(0)), uar->page_id, uar->reg_addr,
           uar->base_addr);
  return uar;
}

void mlx5dv_devx_free_uar(mlx5dv_devx_uar* uar) {
  const Guard guard;
  const auto real = SIGMA_REAL(mlx5dv_devx_free_uar);
  if (!real) return;
  if (uar && watched(guard)) on_uar_freed(uar);
  real(uar);
}

mlx5dv_devx_obj* mlx5dv_devx_obj_create(ibv_context* context, const void* in, size_t in_bytes,
                                        void* out, size_t out_bytes) {
  const Guard guard;
  const auto real = SIGMA_REAL(mlx5dv_devx_obj_create);
  if (!real) return unsupported<mlx5dv_devx_obj>();
  mlx5dv_devx_obj* object = real(context, in, in_bytes, out, out_bytes);
  const KeepErrno keep;
  if (object && watched(guard))
    on_object(caller_of(context, object, __builtin_return_address(0)), bytes_of(in, in_bytes),
              bytes_of(out, out_bytes));
  return object;
}

int mlx5dv_devx_obj_modify(mlx5dv_devx_obj* object, const void* in, size_t in_bytes, void* out,
                           size_t out_bytes) {
  const Guard guard;
  const auto real = SIGMA_REAL(mlx5dv_devx_obj_modify);
  if (!real) return EOPNOTSUPP;
  const bool ours = object && watched(guard);
  const Caller caller = caller_of(nullptr, object, nullptr);
  if (ours) before_modify(caller, bytes_of(in, in_bytes));
  const int result = real(object, in, in_bytes, out, out_bytes);
  const KeepErrno keep;
  if (ours) on_modified(caller, bytes_of(in, in_bytes), bytes_of(out, out_bytes));
  return result;
}

int mlx5dv_devx_obj_destroy(mlx5dv_devx_obj* object) {
  const Guard guard;
  const auto real = SIGMA_REAL(mlx5dv_devx_obj_destroy);
  if (!real) return EOPNOTSUPP;
  const bool ours = object && watched(guard);
  const Caller caller = caller_of(nullptr, object, nullptr);
  const uint64_t since_ns = ours ? before_object_end(caller) : 0;
  const int result = real(object);
  const KeepErrno keep;
  if (ours && result != 0) on_object_kept(caller, since_ns);
  return result;
}

// A queue pair of libibverbs', by commands of DevX: known here where the cross-check alone has seen
// it made, by its handle.
int mlx5dv_devx_qp_modify(ibv_qp* qp, const void* in, size_t in_bytes, void* out,
                          size_t out_bytes) {
  const Guard guard;
  const auto real = SIGMA_REAL(mlx5dv_devx_qp_modify);
  if (!real) return EOPNOTSUPP;
  const bool ours = qp && watched(guard);
  Caller caller = caller_of(ours ? qp->context : nullptr, nullptr, nullptr);
  caller.handle = ours ? qp->handle : 0;
  if (ours) before_modify(caller, bytes_of(in, in_bytes));
  const int result = real(qp, in, in_bytes, out, out_bytes);
  const KeepErrno keep;
  if (ours) on_modified(caller, bytes_of(in, in_bytes), bytes_of(out, out_bytes));
  return result;
}
