// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// CompletionTimes: when a completion came about. By the device's own time stamp where the record
// has one that can be believed, else by the return of the poll that showed it, or by the two looks
// at its ring between which it appeared.
//
// A stamp is believed when readings of the device's clock convert it, its CQ does not have the
// device's real-time format, and it says no later time than that at which it was read. That check
// also unmasks a real-time stamp of a CQ whose creation was not seen: as ticks it means years.
#pragma once

#include <cstdint>
#include <optional>

#include "base/counters.h"
#include "bpf/records.h"
#include "session/objects.h"
#include "session/operation.h"

namespace sigma {

struct CompletionTime {
  uint64_t ns = 0;
  std::optional<uint64_t> error_ns;
  CompleteSource source = CompleteSource::poll;
};

class CompletionTimes {
 public:
  CompletionTimes(Objects& objects, Counters& counters) : objects_(objects), counters_(counters) {}

  CompletionTime of(const Device& device, const sigma_completion& wc);
  // By the device's stamp, else the interval in which the ring showed the completion.
  CompletionTime of(const Device& device, const sigma_ring_completion& cqe);
  static CompletionTime interval_of(const sigma_ring_completion& cqe);
  // As of(), of one that will be asked for again: nothing is counted.
  static CompletionTime peek(const Device& device, const sigma_ring_completion& cqe);
  // The device's stamp, read when the host's clock showed `seen_ns`. nullopt: not to be believed
  // (counted).
  std::optional<CompletionTime> of_stamp(const Device& device, bool real_time, uint64_t stamp,
                                         uint64_t seen_ns);
  // The request was posted later than the stamp says it completed: the poll's time stands, or the
  // ring's.
  CompletionTime refuse(const sigma_completion& wc);
  CompletionTime refuse(const sigma_ring_completion& cqe);

 private:
  bool has_real_time(uint32_t pid, uint64_t cq_ptr);

  Objects& objects_;
  Counters& counters_;
  // The CQ that was asked for last.
  uint64_t generation_ = 0;
  uint64_t cq_ptr_ = 0;
  uint32_t pid_ = 0;
  bool real_time_ = false;
};

}  // namespace sigma
