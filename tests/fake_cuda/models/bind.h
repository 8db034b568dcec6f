// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// The ways in which stacks bind the driver and libmlx5. Each model uses its stack's own, so that an
// interposed library has to deal with all of them. Tables are filled by the functions below; only
// what a model uses is linked.
#pragma once

#include <dlfcn.h>
#include <infiniband/mlx5dv.h>

#include "../driver/device_side.h"
#include "fail.h"

namespace models {

// base name, version to ask for, exported name
#define MODEL_CUDA_FUNCTIONS(F)                                          \
  F(cuInit, 2000, cuInit)                                                \
  F(cuDevicePrimaryCtxRetain, 7000, cuDevicePrimaryCtxRetain)            \
  F(cuCtxSetCurrent, 4000, cuCtxSetCurrent)                              \
  F(cuMemAlloc, 3020, cuMemAlloc_v2)                                     \
  F(cuMemFree, 3020, cuMemFree_v2)                                       \
  F(cuMemHostRegister, 6050, cuMemHostRegister_v2)                       \
  F(cuMemHostUnregister, 4000, cuMemHostUnregister)                      \
  F(cuMemHostGetDevicePointer, 3020, cuMemHostGetDevicePointer_v2)       \
  F(cuPointerSetAttribute, 6000, cuPointerSetAttribute)                  \
  F(cuMemGetHandleForAddressRange, 11070, cuMemGetHandleForAddressRange) \
  F(cuMemsetD8, 3020, cuMemsetD8_v2)                                     \
  F(cuMemcpyHtoD, 3020, cuMemcpyHtoD_v2)                                 \
  F(cuMemcpyHtoDAsync, 3020, cuMemcpyHtoDAsync_v2)                       \
  F(cuStreamCreateWithPriority, 5050, cuStreamCreateWithPriority)        \
  F(cuStreamSynchronize, 2000, cuStreamSynchronize)                      \
  F(cuStreamDestroy, 4000, cuStreamDestroy_v2)                           \
  F(cuStreamBeginCapture, 10010, cuStreamBeginCapture_v2)                \
  F(cuStreamEndCapture, 10000, cuStreamEndCapture)                       \
  F(cuDevicePrimaryCtxReset, 11000, cuDevicePrimaryCtxReset_v2)          \
  F(cuMemCreate, 10020, cuMemCreate)                                     \
  F(cuMemAddressReserve, 10020, cuMemAddressReserve)                     \
  F(cuMemMap, 10020, cuMemMap)                                           \
  F(cuMemSetAccess, 10020, cuMemSetAccess)

struct Cuda {
#define MEMBER(base, version, symbol) decltype(&::symbol) base = nullptr;
  MODEL_CUDA_FUNCTIONS(MEMBER)
#undef MEMBER
  // The device side: no part of the API, so always looked up directly.
  decltype(&::fake_gpu_address) gpu_address = nullptr;
  decltype(&::fake_gpu_launch) launch = nullptr;
};

inline void bind_device_side(Cuda& cuda, void* library) {
  cuda.gpu_address =
      reinterpret_cast<decltype(cuda.gpu_address)>(dlsym(library, "fake_gpu_address"));
  cuda.launch = reinterpret_cast<decltype(cuda.launch)>(dlsym(library, "fake_gpu_launch"));
  require(cuda.gpu_address && cuda.launch, "this is not the rig's libcuda.so.1");
}

inline void* open_libcuda() {
  void* library = dlopen("libcuda.so.1", RTLD_NOW);
  require(library, "no libcuda.so.1: %s", dlerror());
  return library;
}

// As the static CUDA runtime: one dlsym, for cuGetProcAddress_v2; itself asked for again through
// it; then everything by base name and version.
inline void bind_cuda_like_runtime(Cuda& cuda) {
  void* library = open_libcuda();
  auto get =
      reinterpret_cast<decltype(&::cuGetProcAddress_v2)>(dlsym(library, "cuGetProcAddress_v2"));
  require(get, "no cuGetProcAddress_v2");
  CUdriverProcAddressQueryResult status;
  void* again = nullptr;
  require(get("cuGetProcAddress", &again, 12000, 0, &status) == CUDA_SUCCESS && again,
          "cuGetProcAddress does not know itself");
  get = reinterpret_cast<decltype(get)>(again);
#define BIND(base, version, symbol)                                                                \
  require(get(#base, reinterpret_cast<void**>(&cuda.base), version, 0, &status) == CUDA_SUCCESS && \
              cuda.base,                                                                           \
          "no " #base);
  MODEL_CUDA_FUNCTIONS(BIND)
#undef BIND
  bind_device_side(cuda, library);
}

// As NVSHMEM: cuInit and cuGetProcAddress (of version 11.3) by dlsym, the rest through it.
inline void bind_cuda_like_nvshmem(Cuda& cuda) {
  void* library = open_libcuda();
  const auto get =
      reinterpret_cast<decltype(&::cuGetProcAddress)>(dlsym(library, "cuGetProcAddress"));
  require(get && dlsym(library, "cuInit"), "no cuGetProcAddress");
#define BIND(base, version, symbol)                                                   \
  require(get(#base, reinterpret_cast<void**>(&cuda.base), 12000, 0) == CUDA_SUCCESS, \
          "no"                                                                        \
          " " #base);
  MODEL_CUDA_FUNCTIONS(BIND)
#undef BIND
  bind_device_side(cuda, library);
}

// name, symbol version
#define MODEL_MLX5_FUNCTIONS(F)           \
  F(mlx5dv_init_obj, "MLX5_1.2")          \
  F(mlx5dv_devx_umem_reg, "MLX5_1.7")     \
  F(mlx5dv_devx_umem_reg_ex, "MLX5_1.19") \
  F(mlx5dv_devx_umem_dereg, "MLX5_1.7")   \
  F(mlx5dv_devx_alloc_uar, "MLX5_1.7")    \
  F(mlx5dv_devx_free_uar, "MLX5_1.7")     \
  F(mlx5dv_devx_query_eqn, "MLX5_1.7")    \
  F(mlx5dv_devx_obj_create, "MLX5_1.7")   \
  F(mlx5dv_devx_obj_modify, "MLX5_1.7")   \
  F(mlx5dv_devx_obj_destroy, "MLX5_1.7")

struct Mlx5 {
#define MEMBER(name, version) decltype(&::name) name = nullptr;
  MODEL_MLX5_FUNCTIONS(MEMBER)
#undef MEMBER
};

inline void bind_mlx5_linked(Mlx5& mlx5) {
#define BIND(name, version) mlx5.name = &::name;
  MODEL_MLX5_FUNCTIONS(BIND)
#undef BIND
}

inline void bind_mlx5_by_dlsym(Mlx5& mlx5) {
  void* library = dlopen("libmlx5.so.1", RTLD_NOW | RTLD_LOCAL);
  require(library, "no libmlx5.so.1: %s", dlerror());
#define BIND(name, version)                                                 \
  mlx5.name = reinterpret_cast<decltype(mlx5.name)>(dlsym(library, #name)); \
  require(mlx5.name, "no " #name);
  MODEL_MLX5_FUNCTIONS(BIND)
#undef BIND
}

inline void bind_mlx5_by_dlvsym(Mlx5& mlx5) {
  void* library = dlopen("libmlx5.so.1", RTLD_NOW | RTLD_LOCAL);
  require(library, "no libmlx5.so.1: %s", dlerror());
#define BIND(name, version)                                                           \
  mlx5.name = reinterpret_cast<decltype(mlx5.name)>(dlvsym(library, #name, version)); \
  require(mlx5.name, "no " #name "@" version);
  MODEL_MLX5_FUNCTIONS(BIND)
#undef BIND
}

}  // namespace models
