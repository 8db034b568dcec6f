// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// LateJob: late_job.c, running, and what it says it did, checked against the provider's own account.
#pragma once

#include <fmt/format.h>
#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "unit/child_process.h"

namespace rig {

// Consecutive wr_ids.
struct Posted {
  uint64_t first = 0, count = 0;
  uint64_t end() const { return first + count; }
};

struct Polled {
  uint64_t count = 0, first = 0, last = 0;  // how many, and the first and last one's wr_id
};

class LateJob {
 public:
  static constexpr uint64_t kBytes = 64;  // of each request
  static constexpr uint32_t kQpNum = 17;

  // Its provider lies where none is installed.
  LateJob();
  ~LateJob();
  LateJob(const LateJob&) = delete;
  LateJob& operator=(const LateJob&) = delete;

  pid_t pid() const { return child_.pid(); }
  void load() { ask("load"); }
  void map(const std::string& library) { ask("map " + library); }
  // Each checks that exactly these requests reached the provider.
  Posted send(uint64_t count);
  Posted receive(uint64_t count);
  Polled poll(int count);
  void spin() { ask("spin"); }
  Posted stop();
  // A child posts, and ends.
  Posted fork(uint64_t count, pid_t* child);
  // A child of this pid, which its parent does not wait for; it stays until it is killed.
  void stay_as(pid_t child) { ask(fmt::format("stay {}", child)); }
  void exec() { ask("exec"); }
  // Returns when it is as a process that ends is shortly before it has ended; it stays so.
  void leave();

  // The number of the send that is about to be made, or being made: all before it are done.
  uint64_t progress() const { return progress_->load(); }
  // Ends it; the wait status.
  int end() { return child_.end(); }

 private:
  struct ProgressFile {
    ProgressFile();
    ~ProgressFile();
    std::string path;
  };

  std::vector<std::string> ask(const std::string& command);

  ProgressFile file_;
  std::atomic<uint64_t>* progress_ = nullptr;
  sigma::ChildProcess child_;
};

}  // namespace rig
