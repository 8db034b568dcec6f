// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// The native rig: a workload in its own process, the provider library's functions as a plan made by
// hand (symbols, no resolver), and the ring's records as the text of truth.h.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "attach/capture.h"
#include "attach/probe_table.h"
#include "bpf/records.h"

namespace rig {

// A running workload. Killed and reaped at the end if it has not ended by itself.
class Workload {
 public:
  // Returns once it is ready. `environment`: NAME=VALUE.
  explicit Workload(const std::string& scenario, const std::vector<std::string>& environment = {});
  ~Workload();
  Workload(const Workload&) = delete;
  Workload& operator=(const Workload&) = delete;

  pid_t pid() const { return pid_; }
  // Lets it act once; returns what it says it did.
  std::vector<std::string> act();
  // Ends it; its wait status.
  int end();

 private:
  std::string read_line();
  pid_t pid_ = -1;
  int to_ = -1, from_ = -1;
  std::string buffer_;
};

// All functions of the provider library, probed at their first instruction.
sigma::LibraryPlan provider_plan();
// Of these, only some.
sigma::LibraryPlan provider_plan(const std::vector<sigma_function>& functions);

struct SeenRecord {
  sigma_header header;
  std::string text;  // as truth.h has it
  std::vector<std::byte> bytes;
};

// Everything that is in the ring now.
std::vector<SeenRecord> drain(const sigma::Capture& capture);
std::vector<std::string> texts(const std::vector<SeenRecord>& records);

// Probed once, as this machine has them; then less those named.
const sigma::Features& features();
sigma::Features features_without(const std::string& names);

std::unique_ptr<sigma::Capture> load(const sigma::Features& features,
                                     sigma::CaptureOptions options = {});

// "session", "multi", "perf": the link forms, each as the names of features to go without.
struct Form {
  const char* name;
  const char* without;
};
const std::vector<Form>& forms();

}  // namespace rig
