// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// A command that is started to be traced: held before its first instruction until the probes are in.
//
//   SIGMA_ASSIGN(auto job, Job::start({"ib_write_bw", "-d", "mlx5_0"}, {}));
//   ... attach to job->pid() ...
//   SIGMA_CHECK(job->go());
//   const int status = job->wait();
//
// It shares our terminal and process group, as under a shell. It is never killed by us: should we
// be gone before go(), it ends without having run; afterwards it goes on by itself.
#pragma once

#include <signal.h>
#include <sys/types.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/fd.h"
#include "base/result.h"

namespace sigma {

// Exit statuses of a shell for a command that cannot be run.
inline constexpr int kNotFound = 127, kNotExecutable = 126;

class Job {
 public:
  using Environment = std::vector<std::pair<std::string, std::string>>;

  // The file that execvp would run; else `status` is kNotFound or kNotExecutable.
  static Result<std::string> find(const std::string& command, int& status);

  // Forks, so call it while the process has one thread. `added` replaces variables of the same
  // name; `mask` is the signal mask that the command begins with.
  static Result<std::unique_ptr<Job>> start(const std::vector<std::string>& words,
                                            const Environment& added, const sigset_t& mask);
  ~Job();
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;

  pid_t pid() const { return pid_; }
  // Lets it run. Fails when it is gone, or cannot be executed.
  Status go();
  bool began() const { return began_; }
  // Passes the signal on, unless it has ended.
  void signal(int number) const;
  // True once it has ended; exit_status() is known then.
  bool ended();
  // As a shell reports it: its exit status, or 128 + the signal that killed it.
  int exit_status() const;

 private:
  Job() = default;

  pid_t pid_ = -1;
  bool began_ = false;
  bool reaped_ = false;
  int status_ = 0;
  Fd gate_;     // a byte lets it run
  Fd refusal_;  // the errno of its exec, if that fails
};

}  // namespace sigma
