// seccomp_run [--denied FIRST] -- PROGRAM ARGS...: run PROGRAM under a seccomp filter that
// kills it at the first system call numbered FIRST (335) or above.
//
// Containers' allow-lists look like this: they were written before the newest system calls.
// On x86-64, 335 is `uretprobe`, by which kernels from 6.11 on return from a return-probed
// function: a tracer that puts one into such a process kills it. What today's C library and
// verbs programs use of the numbers above is let through, as such lists do.
#include <errno.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

#define LOAD(field) BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, field))
#define RETURN(value) BPF_STMT(BPF_RET | BPF_K, value)
#define ALLOW_IF(number)                                  \
  BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (number), 0, 1),    \
      RETURN(SECCOMP_RET_ALLOW)

static int install(unsigned first_denied) {
  struct sock_filter filter[] = {
      LOAD(arch),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, AUDIT_ARCH_X86_64, 1, 0),
      RETURN(SECCOMP_RET_KILL_PROCESS),
      LOAD(nr),
      BPF_JUMP(BPF_JMP | BPF_JGE | BPF_K, first_denied, 1, 0),
      RETURN(SECCOMP_RET_ALLOW),
      ALLOW_IF(435),  // clone3: pthread_create
      ALLOW_IF(436),  // close_range
      ALLOW_IF(439),  // faccessat2
      ALLOW_IF(441),  // epoll_pwait2
      RETURN(SECCOMP_RET_KILL_PROCESS),
  };
  const struct sock_fprog program = {sizeof filter / sizeof filter[0], filter};
  if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0) return -1;
  return prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program);
}

int main(int argc, char** argv) {
  unsigned first_denied = 335;
  int command = 1;
  if (command + 1 < argc && strcmp(argv[command], "--denied") == 0) {
    first_denied = (unsigned)strtoul(argv[command + 1], NULL, 10);
    command += 2;
  }
  if (command >= argc - 1 || strcmp(argv[command], "--") != 0) {
    fprintf(stderr, "usage: seccomp_run [--denied FIRST] -- PROGRAM ARGS...\n");
    return 127;
  }
  if (install(first_denied) != 0) {
    fprintf(stderr, "seccomp_run: cannot install the filter: %s\n", strerror(errno));
    return 127;
  }
  execvp(argv[command + 1], &argv[command + 1]);
  perror(argv[command + 1]);
  return 127;
}
