// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
#include "attach/seccomp_selftest.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstddef>

#include "attach/links.h"
#include "attach/trial.h"

namespace {

// What is probed: kept out of line, and with something in it that cannot be folded away.
extern "C" __attribute__((noinline, noclone, used)) int sigma_seccomp_target(int value) {
  asm volatile("" : "+r"(value));
  return value;
}

constexpr int kAlive = 42;

// The child. After fork only calls that are safe in a process that may have had threads.
[[noreturn]] void child(int go, int other_end) {
  close(other_end);  // or it would never read that end's closing
  constexpr auto allow = [](uint32_t number) {
    return std::array<sock_filter, 2>{{BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, number, 0, 1),
                                       BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)}};
  };
  constexpr auto exit_group = allow(SYS_exit_group);
  constexpr auto rt_sigreturn = allow(SYS_rt_sigreturn);
  std::array<sock_filter, 6> filter = {{
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      exit_group[0],
      exit_group[1],
      rt_sigreturn[0],
      rt_sigreturn[1],
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
  }};
  const sock_fprog program = {.len = filter.size(), .filter = filter.data()};

  char byte;
  if (read(go, &byte, 1) != 1) _exit(1);
  if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0) _exit(2);
  if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) < 0) _exit(3);
  const int value = sigma_seccomp_target(kAlive);
  syscall(SYS_exit_group, value);
  __builtin_unreachable();
}

}  // namespace

namespace sigma {
namespace {

int attach_return(ReturnForm form, int program, const OwnSite& site, pid_t pid, UprobeLink& link) {
  if (form == ReturnForm::perf)
    return link_uprobe_perf(program, site.path, site.offset, 0, pid, true, link);
  const uint64_t offsets[] = {site.offset};
  UprobeMultiRequest request;
  request.program_fd = program;
  request.path = site.path;
  request.offsets = offsets;
  // Without the kernel's pid filter: where that is unsound the trial would not fire. Nobody else
  // runs it.
  request.at_return = form == ReturnForm::multi;
  request.attach_type = form == ReturnForm::session ? kAttachUprobeSession : kAttachUprobeMulti;
  return link_uprobe_multi(request, link);
}

uint32_t attach_type(ReturnForm form) {
  switch (form) {
    case ReturnForm::perf:
      return 0;
    case ReturnForm::multi:
      return kAttachUprobeMulti;
    case ReturnForm::session:
      return kAttachUprobeSession;
  }
  return 0;
}

}  // namespace

SeccompVerdict return_probe_under_seccomp(ReturnForm form) {
  const CountingProgram program = load_counting_program(attach_type(form));
  if (!program) return {false, "the trial program was refused"};
  Result<OwnSite> site = own_site(reinterpret_cast<const void*>(&sigma_seccomp_target));
  if (!site) return {false, site.error().what};

  int ends[2];
  if (pipe2(ends, O_CLOEXEC) < 0) return {false, "pipe: " + errno_text(errno)};
  Fd go_read(ends[0]), go_write(ends[1]);
  const pid_t pid = fork();
  if (pid < 0) return {false, "fork: " + errno_text(errno)};
  if (pid == 0) child(go_read.get(), go_write.get());

  UprobeLink link;
  const int error = attach_return(form, program.program.get(), *site, pid, link);
  if (error == 0 && write(go_write.get(), "g", 1) != 1) kill(pid, SIGKILL);
  go_write.reset();  // after a failed attach the child reads the end and leaves
  int status = 0;
  while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {
  }
  if (error != 0) return {false, "a return probe was refused: " + errno_text(-error)};
  if (WIFSIGNALED(status))
    return {false,
            fmt::format("a seccomp'd child of ours was killed by signal {} in a probed return",
                        WTERMSIG(status))};
  if (!WIFEXITED(status) || WEXITSTATUS(status) != kAlive)
    return {false, fmt::format("the trial child ended with status {}", WEXITSTATUS(status))};
  if (program.runs() == 0) return {false, "the trial's return probe did not fire"};
  return {true, ""};
}

}  // namespace sigma
