// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// cuGetProcAddress: what programs bind to, by name, version and the kind of default stream.
#include <cstring>

#include "state.h"

namespace fake_cuda {
namespace {

struct EntryPoint {
  const char* base;
  int since;
  void* legacy;
  void* per_thread;  // null: the same
};

#define ENTRY(base, since, symbol, parameters) \
  {#base, since, reinterpret_cast<void*>(&symbol), nullptr},
#define STREAM_ENTRY(base, since, symbol, suffix, parameters) \
  {#base, since, reinterpret_cast<void*>(&symbol), reinterpret_cast<void*>(&symbol##suffix)},
const EntryPoint kEntryPoints[] = {
#include "entries.def"
};
#undef ENTRY
#undef STREAM_ENTRY

struct ErrorName {
  CUresult code;
  const char *name, *text;
};
#define NAMED(code, text) \
  { code, #code, text }
constexpr ErrorName kErrors[] = {
    NAMED(CUDA_SUCCESS, "no error"),
    NAMED(CUDA_ERROR_INVALID_VALUE, "invalid argument"),
    NAMED(CUDA_ERROR_OUT_OF_MEMORY, "out of memory"),
    NAMED(CUDA_ERROR_NOT_INITIALIZED, "initialization error"),
    NAMED(CUDA_ERROR_DEINITIALIZED, "driver shutting down"),
    NAMED(CUDA_ERROR_NO_DEVICE, "no CUDA-capable device is detected"),
    NAMED(CUDA_ERROR_INVALID_DEVICE, "invalid device ordinal"),
    NAMED(CUDA_ERROR_INVALID_CONTEXT, "invalid device context"),
    NAMED(CUDA_ERROR_INVALID_HANDLE, "invalid resource handle"),
    NAMED(CUDA_ERROR_NOT_FOUND, "named symbol not found"),
    NAMED(CUDA_ERROR_NOT_READY, "device not ready"),
    NAMED(CUDA_ERROR_CONTEXT_IS_DESTROYED, "context is destroyed"),
    NAMED(CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED,
          "part or all of the requested memory range is already mapped"),
    NAMED(CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED,
          "pointer does not correspond to a registered memory region"),
    NAMED(CUDA_ERROR_NOT_PERMITTED, "operation not permitted"),
    NAMED(CUDA_ERROR_NOT_SUPPORTED, "operation not supported"),
    NAMED(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED,
          "operation not permitted when stream is capturing"),
    NAMED(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED,
          "operation failed due to a previous error during capture"),
    NAMED(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT,
          "operation would make the legacy stream depend on a capturing blocking stream"),
    NAMED(CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD,
          "attempt to terminate a thread-local capture sequence from another thread"),
};

CUresult look_up(const char* name, void** function, int version, cuuint64_t flags,
                 CUdriverProcAddressQueryResult& status) {
  if (!name || !function || flags > 2) return CUDA_ERROR_INVALID_VALUE;
  *function = nullptr;
  status = CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
  int best = 0;
  for (const EntryPoint& entry : kEntryPoints) {
    if (strcmp(entry.base, name) != 0) continue;
    if (entry.since > version) {
      if (best == 0) status = CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT;
      continue;
    }
    if (entry.since < best) continue;
    best = entry.since;
    status = CU_GET_PROC_ADDRESS_SUCCESS;
    *function = flags == CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM && entry.per_thread
                    ? entry.per_thread
                    : entry.legacy;
  }
  return CUDA_SUCCESS;
}

}  // namespace
}  // namespace fake_cuda

using namespace fake_cuda;

CUresult cuGetProcAddress_v2(const char* name, void** function, int version, cuuint64_t flags,
                             CUdriverProcAddressQueryResult* status) {
  CUdriverProcAddressQueryResult found;
  const CUresult result = look_up(name, function, version, flags, found);
  if (result == CUDA_SUCCESS && status) {
    *status = found;
    return CUDA_SUCCESS;
  }
  if (result == CUDA_SUCCESS && !*function) return CUDA_ERROR_NOT_FOUND;
  return result;
}

CUresult cuGetProcAddress(const char* name, void** function, int version, cuuint64_t flags) {
  CUdriverProcAddressQueryResult status;
  const CUresult result = look_up(name, function, version, flags, status);
  return result == CUDA_SUCCESS && !*function ? CUDA_ERROR_NOT_FOUND : result;
}

CUresult cuGetErrorName(CUresult error, const char** text) {
  for (const ErrorName& known : kErrors) {
    if (known.code != error) continue;
    *text = known.name;
    return CUDA_SUCCESS;
  }
  *text = nullptr;
  return CUDA_ERROR_INVALID_VALUE;
}

CUresult cuGetErrorString(CUresult error, const char** text) {
  for (const ErrorName& known : kErrors) {
    if (known.code != error) continue;
    *text = known.text;
    return CUDA_SUCCESS;
  }
  *text = nullptr;
  return CUDA_ERROR_INVALID_VALUE;
}
