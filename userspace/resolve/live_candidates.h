// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Words that point to a context, and what stands behind them: the rules by which live_objects.h
// tells a QP, an MR, a CQ or an SRQ from everything else that keeps such a pointer. Pure but for
// the collecting.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "resolve/live_contexts.h"
#include "resolve/live_objects.h"
#include "resolve/remote_memory.h"

namespace sigma {

struct Candidate {
  uint64_t address = 0;
  uint64_t context = 0;
  std::array<uint64_t, 7> next{};  // words 1 to 7; zero where they could not be read

  uint64_t word(size_t index) const { return next[index - 1]; }
  uint32_t low(size_t index) const { return static_cast<uint32_t>(word(index)); }
  uint32_t high(size_t index) const { return static_cast<uint32_t>(word(index) >> 32); }
};

// The words that equal the address of one of `contexts` (not empty), in order of address.
std::vector<Candidate> collect_candidates(const RemoteMemory& memory,
                                          const std::vector<LiveContext>& contexts,
                                          const ScanLimits& limits, size_t max_candidates,
                                          ScanTotals& totals);

class Classifier {
 public:
  // `candidates` in order of address; must outlive this.
  explicit Classifier(const std::vector<Candidate>& candidates) : candidates_(candidates) {}

  std::optional<LiveQp> as_qp(const Candidate& candidate) const;
  std::optional<LiveMr> as_mr(const Candidate& candidate) const;
  std::optional<LiveDevxQp> as_devx_qp(const Candidate& candidate) const;
  // What a QP names.
  std::optional<LiveCq> as_cq(uint64_t address) const;
  std::optional<LiveSrq> as_srq(uint64_t address) const;

 private:
  const Candidate* find(uint64_t address) const;
  // Is `address` one of the candidates, of this context?
  bool belongs(uint64_t address, uint64_t context) const;
  bool belongs_or_null(uint64_t address, uint64_t context) const;

  const std::vector<Candidate>& candidates_;
};

}  // namespace sigma
