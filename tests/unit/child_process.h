// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// ChildProcess: a test's own helper program, told to end by the end of its input, and waited for.
//
//   ChildProcess child({SIGMA_TARGET, "plain"});
//   std::vector<std::string> lines = child.read_until("ready");
#pragma once

#include <fcntl.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <vector>

#include "base/fd.h"

namespace sigma {

class ChildProcess {
 public:
  explicit ChildProcess(std::vector<std::string> command) {
    int in[2], out[2];
    if (::pipe2(in, O_CLOEXEC) || ::pipe2(out, O_CLOEXEC)) throw std::runtime_error("pipe2");
    std::vector<char*> argv;
    for (std::string& word : command) argv.push_back(word.data());
    argv.push_back(nullptr);
    pid_ = ::fork();
    if (pid_ == 0) {
      ::dup2(in[0], 0);
      ::dup2(out[1], 1);
      ::execv(argv[0], argv.data());
      _exit(127);
    }
    ::close(in[0]);
    ::close(out[1]);
    to_ = Fd(in[1]);
    from_ = ::fdopen(out[0], "r");
    if (pid_ < 0 || !from_) throw std::runtime_error("fork");
  }
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;
  ~ChildProcess() { end(); }

  pid_t pid() const { return pid_; }

  // The lines before `last`. Throws when the child's output ends without it.
  std::vector<std::string> read_until(const std::string& last) {
    std::vector<std::string> lines;
    char* line = nullptr;
    size_t capacity = 0;
    bool found = false;
    for (ssize_t length; !found && (length = ::getline(&line, &capacity, from_)) > 0;) {
      std::string text(line, static_cast<size_t>(length));
      if (text.ends_with('\n')) text.pop_back();
      found = text == last;
      if (!found) lines.push_back(std::move(text));
    }
    std::free(line);
    if (!found) throw std::runtime_error("the child ended without saying " + last);
    return lines;
  }

  void say(const std::string& line) {
    std::string text = line + '\n';
    if (::write(to_.get(), text.data(), text.size()) != static_cast<ssize_t>(text.size()))
      throw std::runtime_error("the child does not listen");
  }

  // Ends the input and waits. Returns the wait status; again the same when called again.
  int end() {
    if (pid_ > 0) {
      to_.reset();
      ::waitpid(pid_, &status_, 0);
      std::fclose(from_);
      pid_ = -1;
    }
    return status_;
  }

 private:
  pid_t pid_ = -1;
  Fd to_;
  FILE* from_ = nullptr;
  int status_ = 0;
};

}  // namespace sigma
