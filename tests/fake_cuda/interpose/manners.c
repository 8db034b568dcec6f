// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// That the preloaded library changes nothing that a program can see: manners no_cuda|next|fork
#define CHECK(condition)                                              \
  do {                                                                \
    if (!(condition)) {                                               \
      fprintf(stderr, "line %d: not so: %s\n", __LINE__, #condition); \
      return 1;                                                       \
    }                                                                 \
  } while (0)
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "gpu_interpose/registry.h"
#include "queue_job.h"

// As in a program that asks whether there is a GPU: no hook may make it believe so.
static int no_cuda(const struct sigma_gpu_registry* registry) {
  static const char* const kNames[] = {"cuMemAlloc_v2", "cuGetProcAddress_v2", "cuInit",
                                       "mlx5dv_devx_umem_reg"};
  for (size_t i = 0; i < sizeof kNames / sizeof *kNames; i++) {
    dlerror();
    CHECK(dlsym(RTLD_DEFAULT, kNames[i]) == NULL);
    const char* error = dlerror();
    CHECK(error && strstr(error, kNames[i]));
    CHECK(dlsym(dlopen(NULL, RTLD_NOW), kNames[i]) == NULL && dlerror() != NULL);
  }
  void* libc = dlopen("libc.so.6", RTLD_NOW);
  CHECK(libc && dlsym(libc, "getpid") && dlerror() == NULL);
  int bytes = -1, ends[2];
  CHECK(pipe(ends) == 0 && write(ends[1], "abc", 3) == 3 && ioctl(ends[0], FIONREAD, &bytes) == 0 &&
        bytes == 3);
  CHECK(registry->cuda == 0 && registry->used == 0);
  for (int i = 0; i < SIGMA_GPU_COUNTER_COUNT; i++) CHECK(registry->counters[i] == 0);
  return 0;
}

// dlsym(RTLD_NEXT) of a library that interposes, too: it must find the function behind it, not
// before.
typedef void* (*find_next)(const char* name);
static int next(void) {
  void* cuda = dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL);
  CHECK(cuda);
  void* first = dlsym(RTLD_DEFAULT, "cuMemAlloc_v2");
  CHECK(first && first == dlsym(cuda, "cuMemAlloc_v2") &&
        first == dlsym(RTLD_NEXT, "cuMemAlloc_v2"));
  Dl_info info;
  CHECK(dladdr(first, &info) && strstr(info.dli_fname, SIGMA_GPU_LIBRARY));
  find_next find = (find_next)dlsym(RTLD_DEFAULT, "interposer_next");
  CHECK(find);
  void* behind = find("cuMemAlloc_v2");
  CHECK(behind && behind != first && dladdr(behind, &info) &&
        strstr(info.dli_fname, "libcuda.so.1"));
  CHECK(find("getpid") != NULL);
  return 0;
}

// A child has copies of its parent's queues, and none of its own.
static int forked(const struct sigma_gpu_registry* registry) {
  CHECK(registry->cuda == 1 && registry->used == 1);
  const pid_t child = fork();
  CHECK(child >= 0);
  if (child == 0) _exit(registry->used == 0 ? 0 : 3);
  int status;
  CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == 0);
  CHECK(registry->used == 1);
  return 0;
}

static int make_queue(void) {
  void *cuda = dlopen("libcuda.so.1", RTLD_NOW), *mlx5 = dlopen("libmlx5.so.1", RTLD_NOW);
  CHECK(cuda && mlx5);
  __typeof__(&cuInit) init = (__typeof__(&cuInit))dlsym(cuda, "cuInit");
  __typeof__(&cuDevicePrimaryCtxRetain) retain =
      (__typeof__(&cuDevicePrimaryCtxRetain))dlsym(cuda, "cuDevicePrimaryCtxRetain");
  __typeof__(&cuCtxSetCurrent) set = (__typeof__(&cuCtxSetCurrent))dlsym(cuda, "cuCtxSetCurrent");
  CUcontext context;
  CHECK(!init(0) && !retain(&context, 0) && !set(context));
  struct functions functions;
#define MEMBER(name) \
  functions.name = (__typeof__(functions.name))dlsym(#name[0] == 'c' ? cuda : mlx5, #name);
  QUEUE_JOB_FUNCTIONS(MEMBER)
#undef MEMBER
  return queue_job(&functions);
}

int main(int argc, char** argv) {
  const struct sigma_gpu_registry* registry = dlsym(RTLD_DEFAULT, SIGMA_GPU_REGISTRY_NAME);
  CHECK(argc == 2 && registry);
  if (strcmp(argv[1], "no_cuda") == 0) return no_cuda(registry);
  if (strcmp(argv[1], "next") == 0) return next();
  if (strcmp(argv[1], "fork") == 0) return make_queue() || forked(registry);
  return 2;
}
