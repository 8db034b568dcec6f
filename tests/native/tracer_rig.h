// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// A Tracer on jobs of ours, and what came out of it.
//
//   Trace trace({job.pid()});
//   trace.care();                      // two polls: everything mapped by now is probed
//   const Posted sent = job.send(10);
//   trace.stop();
//   CHECK(trace.sends(job.pid()) == ids(sent));
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "attach/tracer.h"
#include "base/counters.h"
#include "bpf/records.h"
#include "native/late_job.h"

namespace rig {

class Trace {
 public:
  // `without`: features to go without, as in SIGMATRACE_DISABLE. Without a governor unless asked for. `on_say`: in the
  // tracer's midst, after each line that it says.
  explicit Trace(std::vector<pid_t> pids, const std::string& without = "",
                 const std::function<void(sigma::TracerOptions&)>& change = {}, std::function<void()> on_say = {});

  sigma::Tracer& tracer() { return *tracer_; }
  void poll();
  // What is mapped when this is called is probed when it returns.
  void care();
  // Polls until `done`; a test's time-out ends what never is.
  void poll_until(const std::function<bool()>& done);
  void stop() { tracer_->stop(); }

  sigma::Counters counters() const;
  const std::vector<sigma_post>& posts() const { return posts_; }
  const std::vector<sigma_completion>& completions() const { return completions_; }
  const std::vector<sigma_process>& processes() const { return processes_; }
  const std::vector<sigma_window>& windows() const { return windows_; }
  bool has_said(const std::string& begin) const;
  // All that was said and stated, for messages of failures.
  std::string said() const;

  // wr_ids in the order in which they came.
  std::vector<uint64_t> sends(pid_t pid) const { return posts_of(pid, SIGMA_QUEUE_SEND); }
  std::vector<uint64_t> receives(pid_t pid) const { return posts_of(pid, SIGMA_QUEUE_RECV); }

 private:
  void on_record(std::span<const std::byte> record);
  std::vector<uint64_t> posts_of(pid_t pid, unsigned queue) const;

  std::unique_ptr<sigma::Tracer> tracer_;
  std::vector<sigma_post> posts_;
  std::vector<sigma_completion> completions_;
  std::vector<sigma_process> processes_;
  std::vector<sigma_window> windows_;
  std::vector<std::string> said_;
  std::function<void()> on_say_;
};

std::vector<uint64_t> ids(const Posted& posted);
// One after the other.
std::vector<uint64_t> ids(const std::vector<Posted>& all);

}  // namespace rig
