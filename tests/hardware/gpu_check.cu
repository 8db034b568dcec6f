// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// What only a GPU can tell of gpu_interpose: see scripts/gpu-check. Prints figures; status 0 when nothing that it
// claims was refuted.
#include <cuda.h>
#include <cuda_runtime.h>
#include <dlfcn.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "gpu_check.h"

namespace {

bool refuted = false;

#define MUST(call)                                                                  \
  do {                                                                              \
    const cudaError_t result_ = (call);                                             \
    if (result_ != cudaSuccess) {                                                   \
      fprintf(stderr, "gpu-check: %s: %s\n", #call, cudaGetErrorString(result_)); \
      exit(1);                                                                      \
    }                                                                               \
  } while (0)

__device__ unsigned be32(unsigned value) { return __byte_perm(value, 0, 0x0123); }

struct Control {
  volatile unsigned stop;
  volatile unsigned long long posted;
};

// One GPU thread in the place of poster and NIC: a WQE, the doorbell record, its completion; every `period` clocks.
__global__ void persistent(check::Queue queue, Control* control, long long period, bool system_scope) {
  long long next = clock64();
  unsigned long long index = 0;
  while (!control->stop) {
    while (clock64() < next) {
    }
    next += period;
    auto* slot = reinterpret_cast<uint4*>(queue.ring + index % queue.blocks * 64);
    const unsigned low = index & 0xffff;
    const unsigned long long remote = check::kRemote + low * 4096ull, local = 0x600000000000ull + low * 8;
    slot[1] = make_uint4(be32(remote >> 32), be32(remote), be32(0xabc), 0);
    slot[2] = make_uint4(be32(64 + low % 1000), be32(0xdef), be32(local >> 32), be32(local));
    slot[0] = make_uint4(be32(low << 8 | 0x08), be32(queue.qp_num << 8 | 3), be32(0x08), 0);
    if (system_scope) __threadfence_system(); else __threadfence();
    ++index;
    reinterpret_cast<volatile unsigned*>(queue.doorbell)[1] = be32(index & 0xffff);
    if (system_scope) __threadfence_system(); else __threadfence();
    auto* cqe = reinterpret_cast<uint4*>(queue.cq);
    cqe[3] = make_uint4(be32(index >> 32), be32(index), be32(0x08u << 24 | queue.qp_num), be32(low << 16));
    control->posted = index;
  }
  __threadfence_system();
}

__global__ void nothing() {}

double now_us() {
  return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

struct Running {
  Control* control;
  cudaStream_t stream;
  Running(const check::Queue& queue, long long period, bool system_scope) {
    MUST(cudaHostAlloc(&control, sizeof(Control), cudaHostAllocMapped));
    memset((void*)control, 0, sizeof(Control));
    MUST(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    persistent<<<1, 1, 0, stream>>>(queue, control, period, system_scope);
    MUST(cudaGetLastError());
    const double begin = now_us();
    while (control->posted < 100)
      if (now_us() - begin > 10e6) {
        fprintf(stderr, "gpu-check: the kernel does not post\n");
        exit(1);
      }
  }
  unsigned long long end() {
    control->stop = 1;
    MUST(cudaStreamSynchronize(stream));
    return control->posted;
  }
};

// ---- the driver's functions

std::string object_of(void* address) {
  Dl_info info{};
  return address && dladdr(address, &info) && info.dli_fname ? info.dli_fname : "?";
}

void hook_list() {
  printf("hooks: what cuGetProcAddress of the real driver gives\n");
  struct Row {
    const char *symbol, *base;
    int since, until;
    bool per_thread;
  };
  enum { any, legacy, per_thread };
  const Row rows[] = {
#define SIGMA_CUDA(symbol, base, since, until, stream) {#symbol, base, since, until, stream == per_thread},
#include "gpu_interpose/hooks.def"
  };
  void* driver = dlopen("libcuda.so.1", RTLD_NOW);
  auto get = driver ? (CUresult(*)(const char*, void**, int, cuuint64_t, CUdriverProcAddressQueryResult*))dlsym(
                          driver, "cuGetProcAddress_v2")
                    : nullptr;
  if (!get) {
    printf("  no cuGetProcAddress_v2\n");
    refuted = true;
    return;
  }
  unsigned ours = 0, asked = 0;
  for (const Row& row : rows) {
    void* found = nullptr;
    CUdriverProcAddressQueryResult status;
    const int version = row.until ? row.until - 1 : row.since;
    if (get(row.base, &found, version, row.per_thread ? 2 : 0, &status) != CUDA_SUCCESS || !found) {
      printf("  %-32s not in this driver\n", row.symbol);
      continue;
    }
    ++asked;
    const bool is_ours = object_of(found).find("libsigmatrace_gpu") != std::string::npos;
    ours += is_ours;
    printf("  %-32s %s\n", row.symbol, is_ours ? "ours" : object_of(found).c_str());
  }
  printf("  %u of %u are ours\n", ours, asked);
  refuted |= ours != asked;
}

// ---- reading

void* driver_function(const char* symbol) {
  static void* driver = dlopen("libcuda.so.1", RTLD_NOW);
  return dlsym(driver, symbol);
}

void show(const char* what, const check::Figures& got) {
  printf("%s: %llu looks (first %.0f us, p50 %.1f, p99 %.1f, most %.0f us), %llu of %llu WQEs seen, %llu missed, %llu wrong%s%s\n",
         what, (unsigned long long)got.looks, got.open_us, got.p50_us, got.p99_us, got.most_us,
         (unsigned long long)got.seen, (unsigned long long)got.posted, (unsigned long long)got.missed,
         (unsigned long long)got.wrong, *got.reason ? "; gave up: " : "", got.reason);
  refuted |= got.wrong != 0 || got.seen == 0 || got.seen + got.missed != got.posted;
}

// A job's other thread: allocates, frees, loads modules at their first launch. Its slowest call, in us.
double other_thread(const std::atomic<bool>& stop, unsigned& calls) {
  static const char ptx[] =
      ".version 6.0\n.target sm_50\n.address_size 64\n.visible .entry empty() { ret; }\n";
  double most = 0;
  MUST(cudaSetDevice(0));
  while (!stop) {
    const double begin = now_us();
    void* memory;
    MUST(cudaMallocAsync(&memory, 1 << 20, cudaStreamPerThread));
    MUST(cudaFreeAsync(memory, cudaStreamPerThread));
    CUmodule module;
    if (cuModuleLoadData(&module, ptx) == CUDA_SUCCESS) cuModuleUnload(module);
    ++calls;
    most = std::max(most, now_us() - begin);
  }
  return most;
}

void device_memory(long long period) {
  check::Queue queue{0, 0, 0, 1024, 0x4711};
  void* memory;
  MUST(cudaMalloc(&memory, queue.blocks * 64 + 4096));
  MUST(cudaMemset(memory, 0xff, queue.blocks * 64 + 4096));
  queue.ring = (unsigned long long)memory;
  queue.doorbell = queue.ring + queue.blocks * 64;
  queue.cq = queue.doorbell + 1024;
  MUST(cudaMemset((void*)queue.doorbell, 0, 8));
  MUST(cudaDeviceSynchronize());
  Running kernel(queue, period, false);
  show("device memory, persistent kernel", check::read_queue(queue, 5, driver_function));
  std::atomic<bool> stop{false};
  unsigned with = 0, without = 0;
  double most_with = 0, most_without = 0;
  std::thread alone([&] { most_without = other_thread(stop, without); });
  sleep(5);
  stop = true;
  alone.join();
  stop = false;
  std::thread other([&] { most_with = other_thread(stop, with); });
  show("the same, another thread allocates and loads modules", check::read_queue(queue, 5, driver_function));
  stop = true;
  other.join();
  printf("that thread: %u rounds without the reader (slowest %.0f us), %u with it (slowest %.0f us)\n", without,
         most_without, with, most_with);
  const unsigned long long posted = kernel.end();
  printf("the kernel posted %llu\n", posted);
  int fd = -1;
  const CUresult exported =
      cuMemGetHandleForAddressRange(&fd, queue.ring & ~65535ull, 65536, CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 0);
  if (exported == CUDA_SUCCESS) {
    void* mapped = mmap(nullptr, 65536, PROT_READ, MAP_SHARED, fd, 0);
    printf("dma-buf: exported; mmap %s\n", mapped == MAP_FAILED ? strerror(errno) : "works");
    if (mapped != MAP_FAILED) munmap(mapped, 65536);
    close(fd);
  } else {
    printf("dma-buf: not exported (%d)\n", exported);
  }
  printf("gdrcopy: %s\n", dlopen("libgdrapi.so.2", RTLD_NOW) ? "libgdrapi.so.2 is there" : "not installed");
  cudaFree(memory);
}

// Read by plain loads while the kernel posts: the order in which a CPU sees them is the WQE's, then the doorbell's.
void host_memory(long long period) {
  check::Queue queue{0, 0, 0, 1024, 0x4712};
  void *host, *device;
  MUST(cudaHostAlloc(&host, queue.blocks * 64 + 4096, cudaHostAllocMapped));
  memset(host, 0xff, queue.blocks * 64 + 4096);
  memset((char*)host + queue.blocks * 64, 0, 8);
  MUST(cudaHostGetDevicePointer(&device, host, 0));
  queue.ring = (unsigned long long)device;
  queue.doorbell = queue.ring + queue.blocks * 64;
  queue.cq = queue.doorbell + 1024;
  Running kernel(queue, period, true);
  const auto* ring = (const volatile unsigned*)host;
  const auto* record = (const volatile unsigned*)((char*)host + queue.blocks * 64);
  unsigned long long looked = 0, torn = 0;
  for (const double begin = now_us(); now_us() - begin < 3e6;) {
    const unsigned before = __builtin_bswap32(record[1]) & 0xffff;
    if (before == 0) continue;
    __atomic_thread_fence(__ATOMIC_ACQUIRE);
    const unsigned last = (before - 1) & 0xffff;
    const volatile unsigned* slot = ring + last % queue.blocks * 16;
    const unsigned control = __builtin_bswap32(slot[0]);
    const unsigned long long remote = (unsigned long long)__builtin_bswap32(slot[4]) << 32 | __builtin_bswap32(slot[5]);
    __atomic_thread_fence(__ATOMIC_ACQUIRE);
    // Not overwritten meanwhile, as the library's certificate asks.
    if (((__builtin_bswap32(record[1]) - before) & 0xffff) > queue.blocks / 2) continue;
    ++looked;
    torn += (control >> 8 & 0xffff) != last || remote != check::remote_of(last);
  }
  printf("mapped host memory: the newest WQE looked at %llu times by plain loads, %llu times not yet whole behind its doorbell\n",
         looked, torn);
  refuted |= torn != 0;
  kernel.end();
  cudaFreeHost(host);
}

}  // namespace

int main() {
  int devices = 0, version = 0, clock_khz = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
    fprintf(stderr, "gpu-check: no GPU here. Nothing was checked: what it would show stays unproven.\n");
    return 1;
  }
  cudaDeviceProp properties;
  MUST(cudaGetDeviceProperties(&properties, 0));
  MUST(cudaDriverGetVersion(&version));
  MUST(cudaDeviceGetAttribute(&clock_khz, cudaDevAttrClockRate, 0));
  printf("%s, driver API %d\n", properties.name, version);
  nothing<<<1, 1>>>();
  MUST(cudaDeviceSynchronize());
  hook_list();
  for (const double rate : {1e5, 1e6}) {
    printf("at %.0f WQEs a second:\n", rate);
    device_memory(static_cast<long long>(clock_khz * 1000.0 / rate));
  }
  host_memory(static_cast<long long>(clock_khz * 1000.0 / 1e6));
  printf(refuted ? "REFUTED: see above\n" : "nothing refuted\n");
  return refuted ? 1 : 0;
}
