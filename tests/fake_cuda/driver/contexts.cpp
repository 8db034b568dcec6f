// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Initialization, devices and contexts.
#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>

#include "state.h"

namespace fake_cuda {
namespace {

constexpr int kVersion = 12080;

thread_local std::vector<Context*> stack_;

void in_child() {
  state().forked = true;
}

bool valid(CUdevice device) {
  return device >= 0 && device < options().devices;
}

Context* make_context(int device, bool primary) {
  auto* context = new Context;  // never freed: a handle used after its end must be recognized
  context->device = device;
  context->primary = primary;
  context->legacy = make_stream(*context, 0, 0, true);
  state().contexts.insert(context);
  return context;
}

// The lock is held; streams are ended after it is released.
void retire(Context& context) {
  context.alive = false;
  state().contexts.erase(&context);
  state().destroyed.insert(&context);
  drop_context_memory(context);
}

CUresult valid_context(CUcontext handle, Context*& context) {
  context = reinterpret_cast<Context*>(handle);
  if (state().contexts.contains(context)) return CUDA_SUCCESS;
  return state().destroyed.contains(context) ? CUDA_ERROR_CONTEXT_IS_DESTROYED
                                             : CUDA_ERROR_INVALID_CONTEXT;
}

}  // namespace

State& state() {
  static State* const instance = new State;
  return *instance;
}

CUresult usable() {
  const State& all = state();
  if (all.forked) return CUDA_ERROR_NOT_INITIALIZED;
  if (all.ending) return CUDA_ERROR_DEINITIALIZED;
  return all.initialized ? CUDA_SUCCESS : CUDA_ERROR_NOT_INITIALIZED;
}

Context* current(CUresult& why) {
  if (stack_.empty() || !stack_.back()) {
    why = CUDA_ERROR_INVALID_CONTEXT;
    return nullptr;
  }
  Context* context = stack_.back();
  std::lock_guard<std::mutex> hold(state().lock);
  if (context->alive) return context;
  why = CUDA_ERROR_CONTEXT_IS_DESTROYED;
  return nullptr;
}

__attribute__((destructor)) void at_unload() {
  state().ending = true;
}

}  // namespace fake_cuda

using namespace fake_cuda;

CUresult cuInit(unsigned flags) {
  if (flags != 0) return CUDA_ERROR_INVALID_VALUE;
  State& all = state();
  if (all.forked) return CUDA_ERROR_NOT_INITIALIZED;
  std::lock_guard<std::mutex> hold(all.lock);
  if (options().devices == 0) return CUDA_ERROR_NO_DEVICE;
  if (!all.initialized) {
    all.primaries.resize(static_cast<size_t>(options().devices));
    all.retained.resize(static_cast<size_t>(options().devices));
    all.random = options().seed * 0x9e3779b97f4a7c15 | 1;
    all.initialized = true;
    pthread_atfork(nullptr, nullptr, in_child);
  }
  return CUDA_SUCCESS;
}

CUresult cuDriverGetVersion(int* version) {
  if (!version) return CUDA_ERROR_INVALID_VALUE;
  *version = kVersion;
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetCount(int* count) {
  if (const CUresult why = usable()) return why;
  if (!count) return CUDA_ERROR_INVALID_VALUE;
  *count = options().devices;
  return CUDA_SUCCESS;
}

CUresult cuDeviceGet(CUdevice* device, int ordinal) {
  if (const CUresult why = usable()) return why;
  if (!valid(ordinal)) return CUDA_ERROR_INVALID_DEVICE;
  *device = ordinal;
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetName(char* name, int length, CUdevice device) {
  if (const CUresult why = usable()) return why;
  if (!valid(device)) return CUDA_ERROR_INVALID_DEVICE;
  snprintf(name, static_cast<size_t>(length), "Imagined GPU %d", device);
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetAttribute(int* value, CUdevice_attribute attribute, CUdevice device) {
  if (const CUresult why = usable()) return why;
  if (!valid(device)) return CUDA_ERROR_INVALID_DEVICE;
  switch (attribute) {
    case CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING:
    case CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM:
    case CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED:
      *value = 1;
      return CUDA_SUCCESS;
    case CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED:
      *value = options().peer_memory;
      return CUDA_SUCCESS;
    case CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED:
      *value = options().dma_buf;
      return CUDA_SUCCESS;
    case CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS:
    case CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS_USES_HOST_PAGE_TABLES:
      *value = options().coherent;
      return CUDA_SUCCESS;
  }
  return CUDA_ERROR_INVALID_VALUE;
}

CUresult cuDevicePrimaryCtxRetain(CUcontext* out, CUdevice device) {
  if (const CUresult why = usable()) return why;
  if (!valid(device)) return CUDA_ERROR_INVALID_DEVICE;
  State& all = state();
  std::lock_guard<std::mutex> hold(all.lock);
  const auto i = static_cast<size_t>(device);
  if (!all.primaries[i]) all.primaries[i] = make_context(device, true);
  ++all.retained[i];
  *out = reinterpret_cast<CUcontext>(all.primaries[i]);
  return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device) {
  if (const CUresult why = usable()) return why;
  if (!valid(device)) return CUDA_ERROR_INVALID_DEVICE;
  State& all = state();
  const auto i = static_cast<size_t>(device);
  Context* last = nullptr;
  {
    std::lock_guard<std::mutex> hold(all.lock);
    if (all.retained[i] == 0) return CUDA_ERROR_INVALID_CONTEXT;
    if (--all.retained[i] == 0) {
      last = all.primaries[i];
      all.primaries[i] = nullptr;
    }
  }
  if (last) {
    end_streams(*last);
    std::lock_guard<std::mutex> hold(all.lock);
    retire(*last);
  }
  return CUDA_SUCCESS;
}
CUresult cuDevicePrimaryCtxRelease(CUdevice device) {
  return cuDevicePrimaryCtxRelease_v2(device);
}

CUresult cuDevicePrimaryCtxReset_v2(CUdevice device) {
  if (const CUresult why = usable()) return why;
  if (!valid(device)) return CUDA_ERROR_INVALID_DEVICE;
  State& all = state();
  const auto i = static_cast<size_t>(device);
  Context* last;
  {
    std::lock_guard<std::mutex> hold(all.lock);
    last = all.primaries[i];
    all.primaries[i] = nullptr;
    all.retained[i] = 0;
  }
  if (last) {
    end_streams(*last);
    std::lock_guard<std::mutex> hold(all.lock);
    retire(*last);
  }
  return CUDA_SUCCESS;
}
CUresult cuDevicePrimaryCtxReset(CUdevice device) {
  return cuDevicePrimaryCtxReset_v2(device);
}

CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned* flags, int* active) {
  if (const CUresult why = usable()) return why;
  if (!valid(device)) return CUDA_ERROR_INVALID_DEVICE;
  std::lock_guard<std::mutex> hold(state().lock);
  *flags = 0;
  *active = state().primaries[static_cast<size_t>(device)] != nullptr;
  return CUDA_SUCCESS;
}

CUresult cuCtxCreate_v2(CUcontext* out, unsigned, CUdevice device) {
  if (const CUresult why = usable()) return why;
  if (!valid(device)) return CUDA_ERROR_INVALID_DEVICE;
  std::lock_guard<std::mutex> hold(state().lock);
  Context* context = make_context(device, false);
  stack_.push_back(context);
  *out = reinterpret_cast<CUcontext>(context);
  return CUDA_SUCCESS;
}

CUresult cuCtxDestroy_v2(CUcontext handle) {
  if (const CUresult why = usable()) return why;
  Context* context;
  {
    std::lock_guard<std::mutex> hold(state().lock);
    if (const CUresult why = valid_context(handle, context)) return why;
    if (context->primary) return CUDA_ERROR_INVALID_CONTEXT;
  }
  end_streams(*context);
  if (!stack_.empty() && stack_.back() == context) stack_.pop_back();
  std::lock_guard<std::mutex> hold(state().lock);
  retire(*context);
  return CUDA_SUCCESS;
}
CUresult cuCtxDestroy(CUcontext context) {
  return cuCtxDestroy_v2(context);
}

CUresult cuCtxPushCurrent_v2(CUcontext handle) {
  if (const CUresult why = usable()) return why;
  std::lock_guard<std::mutex> hold(state().lock);
  Context* context;
  if (const CUresult why = valid_context(handle, context)) return why;
  stack_.push_back(context);
  return CUDA_SUCCESS;
}

CUresult cuCtxPopCurrent_v2(CUcontext* out) {
  if (const CUresult why = usable()) return why;
  if (stack_.empty()) return CUDA_ERROR_INVALID_CONTEXT;
  if (out) *out = reinterpret_cast<CUcontext>(stack_.back());
  stack_.pop_back();
  return CUDA_SUCCESS;
}

CUresult cuCtxSetCurrent(CUcontext handle) {
  if (const CUresult why = usable()) return why;
  std::lock_guard<std::mutex> hold(state().lock);
  Context* context = nullptr;
  if (handle)
    if (const CUresult why = valid_context(handle, context)) return why;
  if (!stack_.empty()) stack_.pop_back();
  if (context) stack_.push_back(context);
  return CUDA_SUCCESS;
}

CUresult cuCtxGetCurrent(CUcontext* out) {
  if (const CUresult why = usable()) return why;
  *out = stack_.empty() ? nullptr : reinterpret_cast<CUcontext>(stack_.back());
  return CUDA_SUCCESS;
}

CUresult cuCtxGetDevice(CUdevice* device) {
  FAKE_CUDA_ENTER(context);
  *device = context->device;
  return CUDA_SUCCESS;
}

CUresult cuCtxSynchronize(void) {
  FAKE_CUDA_ENTER(context);
  if (const CUresult refused = capture_allows()) return refused;
  std::vector<std::shared_ptr<Work>> all;
  {
    std::lock_guard<std::mutex> hold(state().lock);
    for (const Stream* stream : context->streams)
      if (stream->last) all.push_back(stream->last);
  }
  for (const auto& work : all) wait(work);
  return CUDA_SUCCESS;
}

CUresult cuCtxGetStreamPriorityRange(int* least, int* greatest) {
  FAKE_CUDA_ENTER(context);
  (void)context;
  if (least) *least = 0;
  if (greatest) *greatest = -5;
  return CUDA_SUCCESS;
}

// Loading a module, as lazy loading does at a kernel's first launch, takes the context's lock.
CUresult cuModuleLoadData(CUmodule* module, const void* image) {
  FAKE_CUDA_ENTER(context);
  if (!module || !image) return CUDA_ERROR_INVALID_VALUE;
  if (const CUresult refused = capture_allows()) return refused;
  std::lock_guard<std::mutex> driver(context->lock);
  hold_context_lock(*context);
  *module = reinterpret_cast<CUmodule>(new char);
  return CUDA_SUCCESS;
}

CUresult cuModuleUnload(CUmodule module) {
  FAKE_CUDA_ENTER(context);
  (void)context;
  delete reinterpret_cast<char*>(module);
  return CUDA_SUCCESS;
}
