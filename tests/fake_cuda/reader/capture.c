// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// In a tracer's place, for tests without BPF: preloaded beside the library, says that a tracer is
// there, and writes what is handed to sigmatrace_gpu_emit to the file SIGMA_GPU_CAPTURE names (%d:
// the pid). x86-64.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static void emitted(const void* records, uint32_t bytes) {
  char path[512];
  snprintf(path, sizeof path, "%s.%d", getenv("SIGMA_GPU_CAPTURE"), getpid());
  const int fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
  if (fd < 0) return;
  if (write(fd, records, bytes) != (ssize_t)bytes) abort();
  close(fd);
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
