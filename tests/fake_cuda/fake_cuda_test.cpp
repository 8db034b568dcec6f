// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Our libcuda.so.1 behaves like a driver where the product depends on it.
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <csetjmp>
#include <csignal>
#include <cstring>
#include <thread>
#include <vector>

#include "catch.h"
#include "cuda_driver.h"
#include "driver/device_side.h"

namespace {

struct Driver {
  CUcontext context;
  Driver() {
    REQUIRE(cuInit(0) == CUDA_SUCCESS);
    REQUIRE(cuDevicePrimaryCtxRetain(&context, 0) == CUDA_SUCCESS);
    REQUIRE(cuCtxSetCurrent(context) == CUDA_SUCCESS);
  }
};

// A kernel that runs until it is told to end.
struct Persistent {
  std::atomic<bool> started{false}, stop{false};
  static void run(void* argument, unsigned) {
    auto& self = *static_cast<Persistent*>(argument);
    self.started = true;
    while (!self.stop) usleep(100);
  }
  void launch(CUstream stream) {
    REQUIRE(fake_gpu_launch(stream, 1, run, this) == CUDA_SUCCESS);
    while (!started) usleep(100);
  }
};

bool readable_by_host(CUdeviceptr pointer) {
  char byte;
  const iovec here{&byte, 1}, there{reinterpret_cast<void*>(pointer), 1};
  return process_vm_readv(getpid(), &here, 1, &there, 1, 0) == 1;
}

sigjmp_buf after_fault;
void on_fault(int) {
  siglongjmp(after_fault, 1);
}

}  // namespace

TEST_CASE("nothing works before cuInit, without a context, or in a forked child") {
  CUdeviceptr pointer;
  int count;
  if (const pid_t child = fork(); child == 0) {
    const bool refused = cuDeviceGetCount(&count) == CUDA_ERROR_NOT_INITIALIZED &&
                         cuMemAlloc_v2(&pointer, 8) == CUDA_ERROR_NOT_INITIALIZED;
    _exit(refused ? 0 : 1);
  } else {
    int status;
    waitpid(child, &status, 0);
    CHECK(status == 0);
  }
  REQUIRE(cuInit(0) == CUDA_SUCCESS);
  REQUIRE(cuCtxSetCurrent(nullptr) == CUDA_SUCCESS);
  CHECK(cuMemAlloc_v2(&pointer, 8) == CUDA_ERROR_INVALID_CONTEXT);
  const pid_t child = fork();
  if (child == 0) _exit(cuInit(0) == CUDA_ERROR_NOT_INITIALIZED ? 0 : 1);
  int status;
  waitpid(child, &status, 0);
  CHECK(status == 0);
}

TEST_CASE("device memory faults on a host thread, and is there for kernels and copies") {
  Driver driver;
  CUdeviceptr pointer;
  REQUIRE(cuMemAlloc_v2(&pointer, 131071) == CUDA_SUCCESS);
  CHECK_FALSE(readable_by_host(pointer));
  struct sigaction action {
  }, before;
  action.sa_handler = on_fault;
  sigaction(SIGSEGV, &action, &before);
  volatile bool faulted = true;  // across the jump
  if (sigsetjmp(after_fault, 1) == 0) {
    *reinterpret_cast<volatile char*>(pointer) = 1;
    faulted = false;
  }
  sigaction(SIGSEGV, &before, nullptr);
  CHECK(bool{faulted});

  std::vector<char> sent(131071, 'x'), got(131071);
  REQUIRE(cuMemcpyHtoD_v2(pointer, sent.data(), sent.size()) == CUDA_SUCCESS);
  auto* seen = static_cast<char*>(fake_gpu_address(pointer, sent.size()));
  REQUIRE(seen);
  CHECK(seen[131070] == 'x');
  seen[5] = 'y';
  REQUIRE(cuMemcpyDtoH_v2(got.data(), pointer, got.size()) == CUDA_SUCCESS);
  CHECK(got[5] == 'y');
  CHECK(got[6] == 'x');
  CHECK(cuMemcpyDtoH_v2(got.data(), pointer + 131000, 100) == CUDA_ERROR_INVALID_VALUE);
  REQUIRE(cuMemFree_v2(pointer) == CUDA_SUCCESS);
  CHECK(cuMemFree_v2(pointer) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuMemcpyDtoH_v2(got.data(), pointer, 8) == CUDA_ERROR_INVALID_VALUE);
  CHECK_FALSE(fake_gpu_address(pointer, 8));
  CUdeviceptr again;
  REQUIRE(cuMemAlloc_v2(&again, 4096) == CUDA_SUCCESS);
  CHECK(again == pointer);  // addresses are used again
  REQUIRE(cuMemFree_v2(again) == CUDA_SUCCESS);
}

TEST_CASE("pointers say what they are") {
  Driver driver;
  CUdeviceptr device;
  REQUIRE(cuMemAlloc_v2(&device, 1000) == CUDA_SUCCESS);
  unsigned type = 0, sync = 1;
  CUdeviceptr start = 0;
  size_t size = 0;
  int ordinal = -1;
  CUcontext owner = nullptr;
  CHECK(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, device + 10) ==
        CUDA_SUCCESS);
  CHECK(type == CU_MEMORYTYPE_DEVICE);
  CHECK(cuPointerGetAttribute(&start, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, device + 10) ==
        CUDA_SUCCESS);
  CHECK(start == device);
  CHECK(cuPointerGetAttribute(&size, CU_POINTER_ATTRIBUTE_RANGE_SIZE, device) == CUDA_SUCCESS);
  CHECK(size == 1000);
  CHECK(cuPointerGetAttribute(&ordinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, device) ==
        CUDA_SUCCESS);
  CHECK(ordinal == 0);
  CHECK(cuPointerGetAttribute(&owner, CU_POINTER_ATTRIBUTE_CONTEXT, device) == CUDA_SUCCESS);
  CHECK(owner == driver.context);
  CHECK(cuPointerSetAttribute(&sync, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, device) == CUDA_SUCCESS);
  sync = 0;
  CHECK(cuPointerGetAttribute(&sync, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, device) == CUDA_SUCCESS);
  CHECK(sync == 1);
  int local = 0;
  CHECK(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
                              reinterpret_cast<CUdeviceptr>(&local)) == CUDA_ERROR_INVALID_VALUE);

  void* pinned;
  REQUIRE(cuMemHostAlloc(&pinned, 100, CU_MEMHOSTALLOC_PORTABLE) == CUDA_SUCCESS);
  CHECK(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
                              reinterpret_cast<CUdeviceptr>(pinned)) == CUDA_SUCCESS);
  CHECK(type == CU_MEMORYTYPE_HOST);
  CHECK(cuPointerSetAttribute(&sync, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS,
                              reinterpret_cast<CUdeviceptr>(pinned)) == CUDA_ERROR_INVALID_VALUE);
  CUdeviceptr same;
  REQUIRE(cuMemHostGetDevicePointer_v2(&same, pinned, 0) == CUDA_SUCCESS);
  CHECK(same == reinterpret_cast<CUdeviceptr>(pinned));
  REQUIRE(cuMemFreeHost(pinned) == CUDA_SUCCESS);
  REQUIRE(cuMemFree_v2(device) == CUDA_SUCCESS);
}

TEST_CASE("an I/O page has a device address of its own") {
  Driver driver;
  void* page = mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  auto* registered = static_cast<char*>(page) + 0x800;
  REQUIRE(cuMemHostRegister_v2(registered, 8,
                               CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP |
                                   CU_MEMHOSTREGISTER_IOMEMORY) == CUDA_SUCCESS);
  CHECK(cuMemHostRegister_v2(registered, 8, 0) == CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
  CUdeviceptr device;
  REQUIRE(cuMemHostGetDevicePointer_v2(&device, registered, 0) == CUDA_SUCCESS);
  CHECK(device != reinterpret_cast<CUdeviceptr>(registered));
  CHECK(device % 4096 == 0x800);
  CHECK_FALSE(readable_by_host(device));
  CHECK(fake_gpu_address(device, 8) == registered);
  CHECK(cuMemHostUnregister(registered) == CUDA_SUCCESS);
  CHECK(cuMemHostUnregister(registered) == CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
  munmap(page, 4096);
}

TEST_CASE("a dma-buf is a descriptor that cannot be mapped") {
  Driver driver;
  CUdeviceptr device;
  REQUIRE(cuMemAlloc_v2(&device, 131071) == CUDA_SUCCESS);
  const CUdeviceptr page = (device + 4095) / 4096 * 4096;
  int fd = -1;
  REQUIRE(cuMemGetHandleForAddressRange(&fd, page, 65536, CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 0) ==
          CUDA_SUCCESS);
  CHECK(fcntl(fd, F_GETFD) >= 0);
  CHECK(mmap(nullptr, 4096, PROT_READ, MAP_SHARED, fd, 0) == MAP_FAILED);
  close(fd);
  CHECK(cuMemGetHandleForAddressRange(&fd, page + 1, 4096, CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD,
                                      0) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuMemGetHandleForAddressRange(&fd, page, 1 << 20, CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 0) ==
        CUDA_ERROR_INVALID_VALUE);
  void* pinned;
  REQUIRE(cuMemAllocHost_v2(&pinned, 4096) == CUDA_SUCCESS);
  CHECK(cuMemGetHandleForAddressRange(&fd, reinterpret_cast<CUdeviceptr>(pinned), 4096,
                                      CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD,
                                      0) == CUDA_ERROR_INVALID_VALUE);
  REQUIRE(cuMemFreeHost(pinned) == CUDA_SUCCESS);
  REQUIRE(cuMemFree_v2(device) == CUDA_SUCCESS);
}

TEST_CASE("physical memory can be mapped, unmapped and mapped elsewhere") {
  Driver driver;
  CUmemAllocationProp prop{};
  prop.type = 1;
  prop.location = {1, 0};
  prop.allocFlags.gpuDirectRDMACapable = 1;
  size_t granularity;
  REQUIRE(cuMemGetAllocationGranularity(&granularity, &prop, 0) == CUDA_SUCCESS);
  CUmemGenericAllocationHandle handle;
  CUdeviceptr range;
  REQUIRE(cuMemCreate(&handle, granularity, &prop, 0) == CUDA_SUCCESS);
  CHECK(cuMemCreate(&handle, 4096, &prop, 0) == CUDA_ERROR_INVALID_VALUE);
  REQUIRE(cuMemAddressReserve(&range, 2 * granularity, 0, 0, 0) == CUDA_SUCCESS);
  CHECK_FALSE(fake_gpu_address(range, 8));
  REQUIRE(cuMemMap(range, granularity, 0, handle, 0) == CUDA_SUCCESS);
  const CUmemAccessDesc access{{1, 0}, 3};
  REQUIRE(cuMemSetAccess(range, granularity, &access, 1) == CUDA_SUCCESS);
  *static_cast<int*>(fake_gpu_address(range, 4)) = 77;
  CHECK_FALSE(readable_by_host(range));
  CHECK(cuMemAddressFree(range, 2 * granularity) == CUDA_ERROR_INVALID_VALUE);
  REQUIRE(cuMemUnmap(range, granularity) == CUDA_SUCCESS);
  REQUIRE(cuMemMap(range + granularity, granularity, 0, handle, 0) == CUDA_SUCCESS);
  CHECK(*static_cast<int*>(fake_gpu_address(range + granularity, 4)) == 77);
  REQUIRE(cuMemUnmap(range + granularity, granularity) == CUDA_SUCCESS);
  REQUIRE(cuMemRelease(handle) == CUDA_SUCCESS);
  CHECK(cuMemRelease(handle) == CUDA_ERROR_INVALID_VALUE);
  REQUIRE(cuMemAddressFree(range, 2 * granularity) == CUDA_SUCCESS);
}

TEST_CASE("a persistent kernel blocks the legacy stream and blocking streams only by their rules") {
  Driver driver;
  CUstream busy, other, free_stream;
  REQUIRE(cuStreamCreate(&busy, CU_STREAM_DEFAULT) == CUDA_SUCCESS);
  REQUIRE(cuStreamCreate(&other, CU_STREAM_DEFAULT) == CUDA_SUCCESS);
  REQUIRE(cuStreamCreate(&free_stream, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
  CUdeviceptr device;
  REQUIRE(cuMemAlloc_v2(&device, 64) == CUDA_SUCCESS);
  REQUIRE(cuMemsetD8_v2(device, 7, 64) == CUDA_SUCCESS);
  Persistent kernel;
  kernel.launch(busy);
  char got = 0;
  // Asynchronous copies elsewhere go on.
  REQUIRE(cuMemcpyDtoHAsync_v2(&got, device, 1, free_stream) == CUDA_SUCCESS);
  REQUIRE(cuStreamSynchronize(free_stream) == CUDA_SUCCESS);
  CHECK(got == 7);
  REQUIRE(cuMemcpyDtoHAsync_v2(&got, device, 1, other) == CUDA_SUCCESS);
  REQUIRE(cuStreamSynchronize(other) == CUDA_SUCCESS);
  CHECK(cuStreamQuery(busy) == CUDA_ERROR_NOT_READY);
  // A synchronous copy runs on the legacy stream, behind the kernel.
  std::atomic<bool> copied{false};
  std::thread thread([&] {
    cuCtxSetCurrent(driver.context);
    char byte;
    cuMemcpyDtoH_v2(&byte, device, 1);
    copied = true;
  });
  usleep(20000);
  CHECK_FALSE(copied);
  kernel.stop = true;
  thread.join();
  CHECK(copied);
  CHECK(cuStreamQuery(busy) == CUDA_SUCCESS);
  for (CUstream stream : {busy, other, free_stream})
    CHECK(cuStreamDestroy_v2(stream) == CUDA_SUCCESS);
  CHECK(cuStreamDestroy_v2(busy) == CUDA_ERROR_INVALID_HANDLE);
  REQUIRE(cuMemFree_v2(device) == CUDA_SUCCESS);
}

TEST_CASE("events order streams") {
  Driver driver;
  CUstream first, second;
  CUevent event;
  REQUIRE(cuStreamCreate(&first, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
  REQUIRE(cuStreamCreate(&second, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
  REQUIRE(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING) == CUDA_SUCCESS);
  Persistent kernel;
  kernel.launch(first);
  REQUIRE(cuEventRecord(event, first) == CUDA_SUCCESS);
  REQUIRE(cuStreamWaitEvent(second, event, 0) == CUDA_SUCCESS);
  static std::atomic<bool> ran;
  ran = false;
  REQUIRE(cuLaunchHostFunc(
              second, [](void*) { ran = true; }, nullptr) == CUDA_SUCCESS);
  CHECK(cuEventQuery(event) == CUDA_ERROR_NOT_READY);
  usleep(10000);
  CHECK_FALSE(ran);
  kernel.stop = true;
  REQUIRE(cuEventSynchronize(event) == CUDA_SUCCESS);
  REQUIRE(cuStreamSynchronize(second) == CUDA_SUCCESS);
  CHECK(ran);
  CHECK(cuEventDestroy_v2(event) == CUDA_SUCCESS);
  cuStreamDestroy_v2(first);
  cuStreamDestroy_v2(second);
}

TEST_CASE("capture forbids what the driver forbids, except to relaxed threads") {
  Driver driver;
  CUstream stream, sampler;
  REQUIRE(cuStreamCreate(&stream, CU_STREAM_DEFAULT) == CUDA_SUCCESS);
  REQUIRE(cuStreamCreate(&sampler, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
  CUdeviceptr device;
  REQUIRE(cuMemAlloc_v2(&device, 64) == CUDA_SUCCESS);
  char byte;
  const auto in_thread = [&](bool relaxed, auto&& act) {
    std::thread([&] {
      cuCtxSetCurrent(driver.context);
      CUstreamCaptureMode mode =
          relaxed ? CU_STREAM_CAPTURE_MODE_RELAXED : CU_STREAM_CAPTURE_MODE_GLOBAL;
      cuThreadExchangeStreamCaptureMode(&mode);
      act();
    }).join();
  };
  REQUIRE(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL) == CUDA_SUCCESS);
  in_thread(true, [&] {
    CHECK(cuMemcpyDtoHAsync_v2(&byte, device, 1, sampler) == CUDA_SUCCESS);
    CHECK(cuStreamSynchronize(sampler) == CUDA_SUCCESS);
    void* pinned;
    CHECK(cuMemAllocHost_v2(&pinned, 64) == CUDA_SUCCESS);
    CHECK(cuMemFreeHost(pinned) == CUDA_SUCCESS);
  });
  CHECK(cuStreamEndCapture(stream, nullptr) == CUDA_SUCCESS);

  REQUIRE(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL) == CUDA_SUCCESS);
  in_thread(false, [&] {
    void* pinned;
    CHECK(cuMemAllocHost_v2(&pinned, 64) == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  });
  CHECK(cuStreamEndCapture(stream, nullptr) == CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);

  REQUIRE(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_RELAXED) == CUDA_SUCCESS);
  CHECK(cuMemcpyDtoHAsync_v2(&byte, device, 1, CU_STREAM_LEGACY) ==
        CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
  CHECK(cuStreamEndCapture(stream, nullptr) == CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  cuStreamDestroy_v2(stream);
  cuStreamDestroy_v2(sampler);
  REQUIRE(cuMemFree_v2(device) == CUDA_SUCCESS);
}

TEST_CASE("a destroyed context takes its memory and streams along") {
  REQUIRE(cuInit(0) == CUDA_SUCCESS);
  CUcontext context;
  REQUIRE(cuCtxCreate_v2(&context, 0, 1) == CUDA_SUCCESS);
  CUstream stream;
  CUdeviceptr device;
  REQUIRE(cuStreamCreate(&stream, 0) == CUDA_SUCCESS);
  REQUIRE(cuMemAlloc_v2(&device, 64) == CUDA_SUCCESS);
  std::thread([&] {
    cuCtxPushCurrent_v2(context);
    REQUIRE(cuCtxDestroy_v2(context) == CUDA_SUCCESS);
    CHECK(cuCtxDestroy_v2(context) == CUDA_ERROR_CONTEXT_IS_DESTROYED);
  }).join();
  char byte;
  CHECK(cuMemcpyDtoH_v2(&byte, device, 1) == CUDA_ERROR_CONTEXT_IS_DESTROYED);
  CHECK_FALSE(fake_gpu_address(device, 1));
  CHECK(cuCtxPopCurrent_v2(nullptr) == CUDA_SUCCESS);
}

TEST_CASE("cuGetProcAddress answers by name, version and default stream") {
  void* function = nullptr;
  CUdriverProcAddressQueryResult status;
  const auto ask = [&](const char* name, int version, cuuint64_t flags) {
    return cuGetProcAddress_v2(name, &function, version, flags, &status);
  };
  CHECK(ask("cuMemAlloc", 3020, 0) == CUDA_SUCCESS);
  CHECK(function == reinterpret_cast<void*>(&cuMemAlloc_v2));
  CHECK(status == CU_GET_PROC_ADDRESS_SUCCESS);
  CHECK(ask("cuGetProcAddress", 11030, 0) == CUDA_SUCCESS);
  CHECK(function == reinterpret_cast<void*>(&cuGetProcAddress));
  CHECK(ask("cuGetProcAddress", 12000, 0) == CUDA_SUCCESS);
  CHECK(function == reinterpret_cast<void*>(&cuGetProcAddress_v2));
  CHECK(ask("cuMemcpyHtoD", 3020, CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM) == CUDA_SUCCESS);
  CHECK(function == reinterpret_cast<void*>(&cuMemcpyHtoD_v2_ptds));
  CHECK(ask("cuMemcpyHtoDAsync", 12000, CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM) ==
        CUDA_SUCCESS);
  CHECK(function == reinterpret_cast<void*>(&cuMemcpyHtoDAsync_v2_ptsz));
  CHECK(ask("cuMemHostRegister", 4000, 0) == CUDA_SUCCESS);
  CHECK(function == reinterpret_cast<void*>(&cuMemHostRegister));
  CHECK(ask("cuMemHostRegister", 6050, 0) == CUDA_SUCCESS);
  CHECK(function == reinterpret_cast<void*>(&cuMemHostRegister_v2));
  CHECK(ask("cuMemGetHandleForAddressRange", 11060, 0) == CUDA_SUCCESS);
  CHECK(function == nullptr);
  CHECK(status == CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT);
  CHECK(ask("cuNoSuchFunction", 12000, 0) == CUDA_SUCCESS);
  CHECK(status == CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND);
  CHECK(cuGetProcAddress("cuNoSuchFunction", &function, 12000, 0) == CUDA_ERROR_NOT_FOUND);
  CHECK(ask("cuMemAlloc", 12000, 9) == CUDA_ERROR_INVALID_VALUE);
}

TEST_CASE("every entry is exported under its own name") {
  void* library = dlopen("libcuda.so.1", RTLD_NOLOAD | RTLD_NOW);
  REQUIRE(library);
#define ENTRY(base, since, symbol, parameters) \
  CHECK(dlsym(library, #symbol) == reinterpret_cast<void*>(&symbol));
#define STREAM_ENTRY(base, since, symbol, suffix, parameters)         \
  CHECK(dlsym(library, #symbol) == reinterpret_cast<void*>(&symbol)); \
  CHECK(dlsym(library, #symbol #suffix) == reinterpret_cast<void*>(&symbol##suffix));
#include "driver/entries.def"
#undef ENTRY
#undef STREAM_ENTRY
}
