// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// What was read from rings, as records (bpf/records.h: SIGMA_RING, _POST, _COMPLETION, _GAP). Both
// readers make them here: the tracer's observer from outside, the preloaded library from within.
//
// Pure functions; no allocation. The header is left to whoever hands the record out, and what only
// the reader knows to the reader: certificate, totals, mode.
#pragma once

#include <cstdint>

#include "bpf/config.h"
#include "bpf/records.h"
#include "decode/cqe.h"
#include "decode/wqe.h"

namespace sigma {

// Between these, what a look found new was posted, written, or passed. CLOCK_MONOTONIC.
struct LookTimes {
  uint64_t before_ns = 0;  // begin of the look before; of posts 0: unknown
  uint64_t after_ns = 0;   // end of this one
};

// Whose ring it is.
struct RingName {
  uint64_t context = 0;
  uint32_t number = 0;  // QP or CQ
  uint32_t life = 0;
  uint8_t initiator = SIGMA_INITIATOR_UNKNOWN;
  uint8_t tier = SIGMA_TIER_NONE;
  bool by_file = false;  // `context` is a struct file *
};

// The request at `position` of `ring`. An interval that the record cannot hold is not made a
// shorter one: the time is unknown then, as where the look before is.
sigma_ring_post post_record(const RingName& ring, const Wqe& wqe, uint64_t position,
                            const LookTimes& times);

// The completion at `position` of `cq`, of a requester or a responder. `send`: the send ring of its
// queue pair; null: not read. Half an interval beyond 4.29 s is told as 4.29 s.
sigma_ring_completion completion_record(const RingName& cq, const RingName* send, const Cqe& cqe,
                                        uint64_t position, const LookTimes& times);

// Entries from `first` on that were passed unseen.
sigma_ring_gap gap_record(const RingName& ring, sigma_ring_kind kind, uint64_t first,
                          uint64_t count, uint8_t reason, const LookTimes& times);

// A ring's begin, change or end, without totals and geometry.
sigma_ring ring_record(const RingName& ring, sigma_ring_kind kind, uint8_t event);

}  // namespace sigma
