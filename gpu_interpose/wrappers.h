// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// The interposed functions, as their libraries declare them: hooks.def's rows have these
// signatures.
#pragma once

#ifndef SIGMA_CUDA_WRAPPERS_ONLY  // a test compares these with cuda.h's, in a namespace of its own
// Exported, as the header cannot know: everything else here is hidden.
#pragma GCC visibility push(default)
#include <infiniband/mlx5dv.h>
#pragma GCC visibility pop

#include "gpu_interpose/cuda.h"

#define SIGMA_WRAPPER extern "C" __attribute__((visibility("default")))
#endif

SIGMA_WRAPPER CUresult cuGetProcAddress(const char* symbol, void** function, int version,
                                        uint64_t flags);
SIGMA_WRAPPER CUresult cuGetProcAddress_v2(const char* symbol, void** function, int version,
                                           uint64_t flags, CUdriverProcAddressQueryResult* status);

SIGMA_WRAPPER CUresult cuMemAlloc_v2(CUdeviceptr* address, size_t bytes);
SIGMA_WRAPPER CUresult cuMemAllocPitch_v2(CUdeviceptr* address, size_t* pitch, size_t width,
                                          size_t height, unsigned element_bytes);
SIGMA_WRAPPER CUresult cuMemAllocManaged(CUdeviceptr* address, size_t bytes, unsigned flags);
SIGMA_WRAPPER CUresult cuMemAllocAsync(CUdeviceptr* address, size_t bytes, CUstream stream);
SIGMA_WRAPPER CUresult cuMemAllocAsync_ptsz(CUdeviceptr* address, size_t bytes, CUstream stream);
SIGMA_WRAPPER CUresult cuMemAllocFromPoolAsync(CUdeviceptr* address, size_t bytes,
                                               CUmemoryPool pool, CUstream stream);
SIGMA_WRAPPER CUresult cuMemAllocFromPoolAsync_ptsz(CUdeviceptr* address, size_t bytes,
                                                    CUmemoryPool pool, CUstream stream);
SIGMA_WRAPPER CUresult cuMemFree_v2(CUdeviceptr address);
SIGMA_WRAPPER CUresult cuMemFreeAsync(CUdeviceptr address, CUstream stream);
SIGMA_WRAPPER CUresult cuMemFreeAsync_ptsz(CUdeviceptr address, CUstream stream);
SIGMA_WRAPPER CUresult cuMemMap(CUdeviceptr address, size_t bytes, size_t offset,
                                CUmemGenericAllocationHandle handle, unsigned long long flags);
SIGMA_WRAPPER CUresult cuMemUnmap(CUdeviceptr address, size_t bytes);

SIGMA_WRAPPER CUresult cuMemAllocHost_v2(void** address, size_t bytes);
SIGMA_WRAPPER CUresult cuMemHostAlloc(void** address, size_t bytes, unsigned flags);
SIGMA_WRAPPER CUresult cuMemFreeHost(void* address);
SIGMA_WRAPPER CUresult cuMemHostRegister_v2(void* address, size_t bytes, unsigned flags);
SIGMA_WRAPPER CUresult cuMemHostUnregister(void* address);

SIGMA_WRAPPER CUresult cuDevicePrimaryCtxRetain(CUcontext* context, int device);
SIGMA_WRAPPER CUresult cuCtxDestroy(CUcontext context);
SIGMA_WRAPPER CUresult cuCtxDestroy_v2(CUcontext context);
SIGMA_WRAPPER CUresult cuDevicePrimaryCtxRelease(int device);
SIGMA_WRAPPER CUresult cuDevicePrimaryCtxRelease_v2(int device);
SIGMA_WRAPPER CUresult cuDevicePrimaryCtxReset(int device);
SIGMA_WRAPPER CUresult cuDevicePrimaryCtxReset_v2(int device);

SIGMA_WRAPPER CUresult cuMemcpyHtoD_v2(CUdeviceptr to, const void* from, size_t bytes);
SIGMA_WRAPPER CUresult cuMemcpyHtoD_v2_ptds(CUdeviceptr to, const void* from, size_t bytes);
SIGMA_WRAPPER CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void* from, size_t bytes,
                                            CUstream stream);
SIGMA_WRAPPER CUresult cuMemcpyHtoDAsync_v2_ptsz(CUdeviceptr to, const void* from, size_t bytes,
                                                 CUstream stream);

SIGMA_WRAPPER CUresult cuMemGetHandleForAddressRange(void* handle, CUdeviceptr address,
                                                     size_t bytes, CUmemRangeHandleType type,
                                                     unsigned long long flags);
