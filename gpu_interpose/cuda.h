// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// The few types of the CUDA driver API that the library uses, so that no toolkit is needed to build
// it. Checked against the real cuda.h where one is installed (tests labelled hardware).
#pragma once

#include <stddef.h>
#include <stdint.h>

extern "C" {

typedef int CUresult;
typedef unsigned long long CUdeviceptr;
typedef struct CUctx_st* CUcontext;
typedef struct CUstream_st* CUstream;
typedef struct CUmemPoolHandle_st* CUmemoryPool;
typedef unsigned long long CUmemGenericAllocationHandle;
typedef int CUpointer_attribute;
typedef int CUmemRangeHandleType;
typedef int CUdriverProcAddressQueryResult;
}

namespace sigma::gpu::cuda {

enum : CUresult {
  kSuccess = 0,
  kInvalidValue = 1,
  kNotInitialized = 3,
  kNotReady = 600,
};
enum : CUpointer_attribute {
  kPointerContext = 1,
  kPointerMemoryType = 2,
  kPointerDeviceOrdinal = 9,
  kPointerRangeStart = 11,
};
enum : unsigned { kMemoryHost = 1, kMemoryDevice = 2 };
enum : unsigned { kHostRegisterIoMemory = 4 };
enum : unsigned { kHostRegisterPortable = 1, kStreamNonBlocking = 1 };
enum : int { kCaptureRelaxed = 2 };
// The GPU uses the host's page tables: the platform is coherent.
enum : int { kDeviceUsesHostPageTables = 100 };
enum : CUmemRangeHandleType { kRangeDmaBuf = 1 };
enum : uint64_t { kProcPerThreadStream = 2 };

// The newest driver API whose signatures hooks.def knows.
inline constexpr int kNewestVersion = 13030;

}  // namespace sigma::gpu::cuda
