// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
#include "cli/job.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <string_view>

namespace sigma {
namespace {

bool is_file(const std::string& path) {
  struct stat status;
  return stat(path.c_str(), &status) == 0 && S_ISREG(status.st_mode);
}

struct Pipe {
  Fd read_end, write_end;
};

Result<Pipe> make_pipe() {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return Error{"cannot make a pipe: " + errno_text(errno)};
  return Pipe{Fd(ends[0]), Fd(ends[1])};
}

// In the child: nothing that allocates.
[[noreturn]] void become(const char* path, char* const* arguments, char* const* environment,
                         int gate, int refusal, const sigset_t& mask) {
  char go = 0;
  ssize_t got;
  do got = read(gate, &go, 1);
  while (got < 0 && errno == EINTR);
  if (got != 1) _exit(kNotFound);  // the tracer could not attach, or is gone
  for (const int signal : {SIGPIPE, SIGXFSZ}) ::signal(signal, SIG_DFL);  // main() ignores them
  sigprocmask(SIG_SETMASK, &mask, nullptr);
  execve(path, arguments, environment);
  const int error = errno;
  // A script without an interpreter line is the shell's, as with execvp.
  if (error == ENOEXEC) execve("/bin/sh", arguments, environment);
  if (write(refusal, &error, sizeof error) < 0) _exit(kNotFound);
  _exit(error == ENOENT ? kNotFound : kNotExecutable);
}

}  // namespace

Result<std::string> Job::find(const std::string& command, int& status) {
  status = kNotFound;
  const auto refused = [&](const std::string& path) {
    status = kNotExecutable;
    return Error{path + " cannot be executed: " + errno_text(EACCES), "`chmod +x` it"};
  };
  if (command.find('/') != std::string::npos) {
    if (!is_file(command)) return Error{"there is no program " + command};
    if (access(command.c_str(), X_OK) != 0) return refused(command);
    return command;
  }
  const char* variable = std::getenv("PATH");
  std::string_view path = variable != nullptr ? variable : "/usr/local/bin:/usr/bin:/bin";
  std::string forbidden;
  for (bool more = true; more;) {
    const size_t end = path.find(':');
    std::string candidate(path.substr(0, end));
    if (candidate.empty()) candidate = ".";
    candidate += "/" + command;
    if (is_file(candidate)) {
      if (access(candidate.c_str(), X_OK) == 0) return candidate;
      forbidden = candidate;
    }
    more = end != std::string_view::npos;
    if (more) path.remove_prefix(end + 1);
  }
  if (!forbidden.empty()) return refused(forbidden);
  return Error{"there is no program " + command + " in PATH",
               "under sudo PATH is another: give the program's full path"};
}

Result<std::unique_ptr<Job>> Job::start(const std::vector<std::string>& words,
                                        const Environment& added, const sigset_t& mask) {
  int unused;
  SIGMA_ASSIGN(const std::string path, find(words.at(0), unused));
  SIGMA_ASSIGN(Pipe gate, make_pipe());
  SIGMA_ASSIGN(Pipe refusal, make_pipe());

  std::vector<std::string> variables;
  for (char** each = environ; *each != nullptr; ++each) {
    const std::string_view variable(*each);
    const auto is_ours = [&](const auto& pair) {
      return variable.starts_with(pair.first) && variable.substr(pair.first.size()).starts_with('=');
    };
    bool replaced = false;
    for (const auto& pair : added) replaced |= is_ours(pair);
    if (!replaced) variables.emplace_back(variable);
  }
  for (const auto& [name, value] : added) variables.push_back(name + "=" + value);
  std::vector<char*> arguments, environment;
  for (const std::string& word : words) arguments.push_back(const_cast<char*>(word.c_str()));
  for (std::string& variable : variables) environment.push_back(variable.data());
  arguments.push_back(nullptr);
  environment.push_back(nullptr);

  std::unique_ptr<Job> job(new Job);
  job->pid_ = fork();
  if (job->pid_ < 0) return Error{"cannot start the command: " + errno_text(errno)};
  if (job->pid_ == 0) {
    gate.write_end.reset();  // else it would wait for itself
    become(path.c_str(), arguments.data(), environment.data(), gate.read_end.get(),
           refusal.write_end.get(), mask);
  }
  job->gate_ = std::move(gate.write_end);
  job->refusal_ = std::move(refusal.read_end);
  return job;
}

Job::~Job() {
  gate_.reset();
  if (pid_ > 0) (void)ended();
}

Status Job::go() {
  const char byte = 1;
  if (write(gate_.get(), &byte, 1) != 1)
    return Error{"the command has ended before it began"};
  gate_.reset();
  began_ = true;
  // The other end closes with the exec, or tells why there is none.
  int error = 0;
  ssize_t got;
  do got = read(refusal_.get(), &error, sizeof error);
  while (got < 0 && errno == EINTR);
  refusal_.reset();
  if (got == static_cast<ssize_t>(sizeof error))
    return Error{"the command cannot be executed: " + errno_text(error)};
  return {};
}

void Job::signal(int number) const {
  if (!reaped_) kill(pid_, number);
}

bool Job::ended() {
  while (!reaped_) {
    const pid_t ended = waitpid(pid_, &status_, WNOHANG);
    if (ended == 0) return false;
    if (ended < 0 && errno == EINTR) continue;
    reaped_ = true;
  }
  return true;
}

int Job::exit_status() const {
  return WIFSIGNALED(status_) ? 128 + WTERMSIG(status_) : WEXITSTATUS(status_);
}

}  // namespace sigma
