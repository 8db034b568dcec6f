// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// In a tracer's place, for tests without BPF: preloaded beside the library, says that a tracer is
// there, and writes what is handed to sigmatrace_gpu_emit to the file SIGMA_GPU_CAPTURE names (%d:
// the pid). x86-64.
// SIGMA_GPU_CAPTURE_LAP=N: once the first queue's producer index is certified, the reader, whose
// thread this is, is held up until N blocks more have been posted; then the file CAPTURE-lapped is there.
// SIGMA_GPU_CAPTURE_HOLD=1: the reader is held up until the driver's destructors have run, at the
// process's exit, which then waits for its end.
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#include "gpu_interpose/registry.h"

// The job may free it meanwhile.
static int read_own(void* from, uint64_t* to) {
  const struct iovec here = {to, sizeof *to}, there = {from, sizeof *to};
  return process_vm_readv(getpid(), &here, 1, &there, 1, 0) == sizeof *to;
}

static void be_lapped(uint64_t blocks) {
  static int done;
  const struct sigma_gpu_registry* registry = dlsym(RTLD_DEFAULT, SIGMA_GPU_REGISTRY_NAME);
  void* (*device_side)(unsigned long long, size_t) = (void* (*)(unsigned long long, size_t))dlsym(
      dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD), "fake_gpu_address");
  if (done || !registry || !device_side) return;
  const volatile struct sigma_gpu_queue* queue = registry->queues;
  if (queue->index_state != SIGMA_GPU_INDEX_CERTIFIED) return;
  void* index = device_side(queue->index_addr, 8);
  uint64_t first, now;
  if (!index || !read_own(index, &first)) return;
  done = 1;
  // Or until the job frees it.
  int there;
  while ((there = read_own(index, &now)) && now - first < blocks)
    nanosleep(&(struct timespec){0, 1000000}, NULL);
  if (!there) return;
  char path[512];
  snprintf(path, sizeof path, "%s-lapped", getenv("SIGMA_GPU_CAPTURE"));
  close(open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
}

static int holding, leaving;

static void be_held(void) {
  __atomic_store_n(&holding, 1, __ATOMIC_RELEASE);
  while (!__atomic_load_n(&leaving, __ATOMIC_ACQUIRE))
    nanosleep(&(struct timespec){0, 1000000}, NULL);
}

static int reader_lives(void) {
  DIR* tasks = opendir("/proc/self/task");
  int found = 0;
  for (struct dirent* task; tasks && (task = readdir(tasks));) {
    char path[300], name[32] = "";
    snprintf(path, sizeof path, "/proc/self/task/%s/comm", task->d_name);
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) continue;
    if (read(fd, name, sizeof name - 1) > 0) found |= strcmp(name, "sigmatrace-gpu\n") == 0;
    close(fd);
  }
  if (tasks) closedir(tasks);
  return found;
}

// Behind the driver's, which was loaded later.
__attribute__((destructor)) static void leave(void) {
  if (!__atomic_load_n(&holding, __ATOMIC_ACQUIRE)) return;
  __atomic_store_n(&leaving, 1, __ATOMIC_RELEASE);
  while (reader_lives()) nanosleep(&(struct timespec){0, 1000000}, NULL);
}

static void emitted(const void* records, uint32_t bytes) {
  char path[512];
  snprintf(path, sizeof path, "%s.%d", getenv("SIGMA_GPU_CAPTURE"), getpid());
  const int fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
  if (fd < 0) return;
  if (write(fd, records, bytes) != (ssize_t)bytes) abort();
  close(fd);
  if (getenv("SIGMA_GPU_CAPTURE_HOLD")) be_held();
  if (getenv("SIGMA_GPU_CAPTURE_LAP"))
    be_lapped(strtoul(getenv("SIGMA_GPU_CAPTURE_LAP"), NULL, 10));
}

__attribute__((constructor)) static void take_the_tracers_place(void) {
  uint8_t* emit = dlsym(RTLD_DEFAULT, "sigmatrace_gpu_emit");
  volatile uint16_t* tracers = dlsym(RTLD_DEFAULT, "sigmatrace_gpu_tracers");
  if (!emit || !tracers || !getenv("SIGMA_GPU_CAPTURE")) return;
  // movabs $emitted, %rax; jmp *%rax: in the function's 16 bytes.
  uint8_t code[12] = {0x48, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xe0};
  void (*target)(const void*, uint32_t) = emitted;
  memcpy(code + 2, &target, sizeof target);
  uint8_t* page = (uint8_t*)((uintptr_t)emit & ~(uintptr_t)4095);
  if (mprotect(page, 8192, PROT_READ | PROT_WRITE | PROT_EXEC) != 0) abort();
  memcpy(emit, code, sizeof code);
  if (mprotect(page, 8192, PROT_READ | PROT_EXEC) != 0) abort();
  *tracers = 1;
}
