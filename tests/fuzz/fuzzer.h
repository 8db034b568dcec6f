// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Fuzzer: inputs for a parser of hostile bytes, led by what they reach.
//
//   Fuzzer fuzzer("netlink", {sample});        // and the files in tests/fuzz/corpus/netlink
//   while (fuzzer.next()) parse(fuzzer.bytes());
//
// The code under test is compiled with -fsanitize-coverage=trace-pc: an input that takes a way that
// none took before is kept, and mutated further. Runs from a fixed seed, for SIGMA_FUZZ_SECONDS
// (60) of its own CPU time: what it shows does not depend on what runs beside it. An input at which
// a sanitizer stops is left in the working directory, as crash-NAME; with SIGMA_FUZZ_SAVE=DIR so
// are, at the end, the kept ones: that is how the corpus is made.
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "mutate.h"

namespace sigma {

class Fuzzer {
 public:
  explicit Fuzzer(std::string name, std::vector<Bytes> seeds = {});
  ~Fuzzer();

  // The next input; false when the time is over.
  bool next();
  const Bytes& bytes() const { return input_; }
  // For inputs that the caller makes itself: whether the time is over.
  bool is_over();
  std::mt19937& random() { return random_; }

  uint64_t inputs() const { return inputs_; }
  size_t kept() const { return corpus_.size(); }

 private:
  void judge();

  std::string name_;
  std::vector<Bytes> corpus_;
  size_t seeds_ = 0;  // of these, given
  Bytes input_;
  std::mt19937 random_{20261130};
  uint64_t inputs_ = 0;
  std::chrono::nanoseconds cpu_time_{};
  std::chrono::steady_clock::time_point look_again_{};
};

}  // namespace sigma
