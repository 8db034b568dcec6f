// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
#include "session/completion_time.h"

namespace sigma {

bool CompletionTimes::has_real_time(uint32_t pid, uint64_t cq_ptr) {
  if (generation_ == objects_.generation() && pid_ == pid && cq_ptr_ == cq_ptr) return real_time_;
  const Cq* cq = objects_.find_cq(pid, cq_ptr);
  generation_ = objects_.generation();
  pid_ = pid;
  cq_ptr_ = cq_ptr;
  real_time_ = cq != nullptr && cq->real_time;
  return real_time_;
}

CompletionTime CompletionTimes::of(const Device& device, const sigma_completion& wc) {
  if (wc.flags & SIGMA_WC_NIC_STAMP)
    if (const auto time =
            of_stamp(device, has_real_time(wc.h.pid, wc.cq_ptr), wc.nic_stamp, wc.h.time_ns))
      return *time;
  return {.ns = wc.h.time_ns};
}

CompletionTime CompletionTimes::of(const Device& device, const sigma_ring_completion& cqe) {
  if (cqe.flags & SIGMA_RING_NIC_STAMP)
    if (const auto time = of_stamp(device, cqe.flags & SIGMA_RING_REAL_TIME, cqe.nic_stamp,
                                   cqe.complete_ns + cqe.complete_error_ns))
      return *time;
  return interval_of(cqe);
}

CompletionTime CompletionTimes::peek(const Device& device, const sigma_ring_completion& cqe) {
  if ((cqe.flags & SIGMA_RING_NIC_STAMP) && !(cqe.flags & SIGMA_RING_REAL_TIME) && device.clock.ready())
    if (const auto time = device.clock.host_time(cqe.nic_stamp);
        time && time->ns <= cqe.complete_ns + cqe.complete_error_ns + time->error_ns)
      return {time->ns, time->error_ns, CompleteSource::nic};
  return interval_of(cqe);
}

CompletionTime CompletionTimes::interval_of(const sigma_ring_completion& cqe) {
  return {cqe.complete_ns, cqe.complete_error_ns, CompleteSource::ring};
}

std::optional<CompletionTime> CompletionTimes::of_stamp(const Device& device, bool real_time,
                                                        uint64_t stamp, uint64_t seen_ns) {
  if (real_time) {
    ++counters_.nic_stamps_real_time;
    return std::nullopt;
  }
  if (!device.clock.ready()) {
    ++counters_.nic_stamps_without_clock;
    return std::nullopt;
  }
  const auto time = device.clock.host_time(stamp);
  if (!time || time->ns > seen_ns + time->error_ns) {
    ++counters_.nic_stamps_refused;
    return std::nullopt;
  }
  ++counters_.nic_stamps_used;
  return CompletionTime{time->ns, time->error_ns, CompleteSource::nic};
}

CompletionTime CompletionTimes::refuse(const sigma_completion& wc) {
  --counters_.nic_stamps_used;
  ++counters_.nic_stamps_refused;
  return {.ns = wc.h.time_ns};
}

CompletionTime CompletionTimes::refuse(const sigma_ring_completion& cqe) {
  --counters_.nic_stamps_used;
  ++counters_.nic_stamps_refused;
  return interval_of(cqe);
}

}  // namespace sigma
