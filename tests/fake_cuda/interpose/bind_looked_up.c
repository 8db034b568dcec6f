// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// By look-up at run time: bind_looked_up dlsym|dlvsym|default|vdefault|next|11030|12000|13000
//
//   dlsym, dlvsym       on the handle of a library loaded with RTLD_LOCAL (as NCCL and NVSHMEM do)
//   default, vdefault   dlsym and dlvsym on RTLD_DEFAULT, the libraries being global (as Mooncake)
//   next                dlsym on RTLD_NEXT, likewise
//   11030 and up        the driver by cuGetProcAddress of that version, itself looked up through
//                       cuGetProcAddress first, as cudart does
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "queue_job.h"

typedef CUresult (*get_v1)(const char*, void**, int, cuuint64_t);
typedef CUresult (*get_v2)(const char*, void**, int, cuuint64_t, CUdriverProcAddressQueryResult*);

static void *cuda, *mlx5;
static int version;
static get_v1 first;
static get_v2 second;

static const char* node_of(const char* name) {
  return strcmp(name, "mlx5dv_devx_umem_reg_ex") == 0 ? "MLX5_1.19"
         : strcmp(name, "mlx5dv_init_obj") == 0       ? "MLX5_1.2"
                                                      : "MLX5_1.7";
}

// The driver asked by base name: without the _v2 of the exported symbol.
static void* ask_driver(const char* symbol) {
  char base[64];
  snprintf(base, sizeof base, "%s", symbol);
  char* suffix = strstr(base, "_v2");
  if (suffix) *suffix = 0;
  void* function = NULL;
  CUdriverProcAddressQueryResult status;
  // Younger than the oldest version tested.
  const int asked =
      strcmp(base, "cuMemGetHandleForAddressRange") == 0 && version < 11070 ? 11070 : version;
  const CUresult result =
      second ? second(base, &function, asked, 0, &status) : first(base, &function, asked, 0);
  return result == CUDA_SUCCESS ? function : NULL;
}

static void* find(const char* way, const char* name) {
  const int is_cuda = strncmp(name, "cu", 2) == 0;
  void* handle = is_cuda ? cuda : mlx5;
  if (version && is_cuda) return ask_driver(name);
  if (strcmp(way, "dlvsym") == 0 && !is_cuda) return dlvsym(handle, name, node_of(name));
  if (strcmp(way, "vdefault") == 0 && !is_cuda) return dlvsym(RTLD_DEFAULT, name, node_of(name));
  if (strcmp(way, "default") == 0 || strcmp(way, "vdefault") == 0) return dlsym(RTLD_DEFAULT, name);
  if (strcmp(way, "next") == 0) return dlsym(RTLD_NEXT, name);
  return dlsym(handle, name);
}

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  const char* way = argv[1];
  const int global = strstr(way, "default") || strcmp(way, "next") == 0 ? RTLD_GLOBAL : RTLD_LOCAL;
  cuda = dlopen("libcuda.so.1", RTLD_NOW | global);
  mlx5 = dlopen("libmlx5.so.1", RTLD_NOW | global);
  if (!cuda || !mlx5) return 2;
  version = atoi(way);
  if (version >= 12000) {
    second = (get_v2)dlsym(cuda, "cuGetProcAddress_v2");
    void* itself = NULL;
    CUdriverProcAddressQueryResult status;
    if (!second || second("cuGetProcAddress", &itself, version, 0, &status) || !itself) return 2;
    second = (get_v2)itself;
  } else if (version) {
    first = (get_v1)dlsym(cuda, "cuGetProcAddress");
    void* itself = NULL;
    if (!first || first("cuGetProcAddress", &itself, version, 0) || !itself) return 2;
    first = (get_v1)itself;
  }

  __typeof__(&cuInit) init = (__typeof__(&cuInit))dlsym(cuda, "cuInit");
  __typeof__(&cuDevicePrimaryCtxRetain) retain =
      (__typeof__(&cuDevicePrimaryCtxRetain))dlsym(cuda, "cuDevicePrimaryCtxRetain");
  __typeof__(&cuCtxSetCurrent) set = (__typeof__(&cuCtxSetCurrent))dlsym(cuda, "cuCtxSetCurrent");
  CUcontext context;
  if (init(0) || retain(&context, 0) || set(context)) return 2;

  struct functions functions;
#define MEMBER(name)                                             \
  functions.name = (__typeof__(functions.name))find(way, #name); \
  if (!functions.name) {                                         \
    fprintf(stderr, "%s is not found by %s\n", #name, way);      \
    return 2;                                                    \
  }
  QUEUE_JOB_FUNCTIONS(MEMBER)
#undef MEMBER
  return queue_job(&functions);
}
