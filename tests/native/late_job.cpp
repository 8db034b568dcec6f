// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
#include "native/late_job.h"

#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <stdexcept>

#include "catch.h"

namespace rig {
namespace {

// What provider.c adds up: a constant of the function for each byte, the wr_id, and one for the queue.
constexpr uint64_t kSendSalt = 3, kReceiveSalt = 7;

uint64_t account_of(const Posted& posted, uint64_t salt) {
  uint64_t sum = 0;
  for (uint64_t id = posted.first; id < posted.end(); id++) sum += id + salt * LateJob::kBytes + 1;
  return sum;
}

Posted parse_posted(const std::string& line, const char* word, uint64_t salt) {
  char said[16] = "";
  Posted posted;
  uint64_t account = 0;
  if (std::sscanf(line.c_str(), "%15s %lu %lu %lu", said, &posted.first, &posted.count, &account) != 4 ||
      said != std::string(word))
    throw std::runtime_error("the job said: " + line);
  CHECK(account == account_of(posted, salt));
  return posted;
}

}  // namespace

LateJob::ProgressFile::ProgressFile() : path(std::filesystem::temp_directory_path() / "sigma-late-job-XXXXXX") {
  const int fd = ::mkstemp(path.data());
  if (fd < 0 || ::ftruncate(fd, sizeof(uint64_t)) != 0) throw std::runtime_error("mkstemp");
  ::close(fd);
}

LateJob::ProgressFile::~ProgressFile() { ::unlink(path.c_str()); }

LateJob::LateJob() : child_({LATE_JOB, LATE_JOB_LIBIBVERBS, LATE_JOB_PROVIDER, file_.path}) {
  const sigma::Fd fd(::open(file_.path.c_str(), O_RDWR | O_CLOEXEC));
  void* shared = ::mmap(nullptr, sizeof *progress_, PROT_READ, MAP_SHARED, fd.get(), 0);
  if (shared == MAP_FAILED) throw std::runtime_error("mmap");
  progress_ = static_cast<std::atomic<uint64_t>*>(shared);
  child_.read_until("ok");
}

LateJob::~LateJob() {
  // A stopped or spinning job would not see the end of its input.
  if (child_.pid() > 0) ::kill(child_.pid(), SIGKILL);
  if (progress_) ::munmap(progress_, sizeof *progress_);
}

std::vector<std::string> LateJob::ask(const std::string& command) {
  child_.say(command);
  return child_.read_until("ok");
}

Posted LateJob::send(uint64_t count) {
  const Posted posted = parse_posted(ask(fmt::format("send {}", count)).at(0), "sent", kSendSalt);
  CHECK(posted.count == count);
  return posted;
}

Posted LateJob::receive(uint64_t count) {
  const Posted posted = parse_posted(ask(fmt::format("recv {}", count)).at(0), "received", kReceiveSalt);
  CHECK(posted.count == count);
  return posted;
}

Polled LateJob::poll(int count) {
  const std::string line = ask(fmt::format("poll {}", count)).at(0);
  Polled polled;
  if (std::sscanf(line.c_str(), "polled %lu %lu %lu", &polled.count, &polled.first, &polled.last) != 3)
    throw std::runtime_error("the job said: " + line);
  return polled;
}

Posted LateJob::stop() { return parse_posted(ask("stop").at(0), "sent", kSendSalt); }

void LateJob::leave() {
  ask("leave");
  char first;
  while (::readlink(fmt::format("/proc/{}/root", pid()).c_str(), &first, 1) == 1) ::usleep(1000);
}

Posted LateJob::fork(uint64_t count, pid_t* child) {
  const auto lines = ask(fmt::format("fork {}", count));
  if (std::sscanf(lines.at(0).c_str(), "child %d", child) != 1) throw std::runtime_error("the job said: " + lines[0]);
  const Posted posted = parse_posted(lines.at(1), "sent", kSendSalt);
  CHECK(posted.count == count);
  return posted;
}

}  // namespace rig
