/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* The device side of the rig: what a GPU can do that a host thread cannot. CPU threads in the place
 * of GPU kernels reach device memory through these, and so do (emulated) NICs. The functions are
 * exported by our libcuda.so.1 and are no part of the driver API. */
#ifndef FAKE_CUDA_DEVICE_SIDE_H
#define FAKE_CUDA_DEVICE_SIDE_H

#include "../cuda_driver.h"

#ifdef __cplusplus
extern "C" {
#endif

#pragma GCC visibility push(default)

/* Where the thread of a kernel finds a device address (memory of any kind, an I/O page registered
 * with the device); NULL when it would fault. Valid until the memory is freed or unmapped. */
void* fake_gpu_address(CUdeviceptr pointer, size_t bytes);

/* Runs a kernel on `blocks` threads, as the stream's next piece of work. */
typedef void (*FakeKernel)(void* argument, unsigned block);
CUresult fake_gpu_launch(CUstream stream, unsigned blocks, FakeKernel kernel, void* argument);

/* A mapping for host threads, as a kernel module makes it of the GPU's BAR; NULL when it cannot be.
 * A touch faults once the memory is freed. */
void* fake_gpu_map(CUdeviceptr pointer, size_t bytes);
void fake_gpu_unmap(void* at, size_t bytes);

/* cuMemFree under a name that nobody interposes. */
CUresult fake_gpu_free(CUdeviceptr pointer);

#pragma GCC visibility pop

#ifdef __cplusplus
}
#endif

#endif
