// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// calibrate: what one probe hit costs on this machine, measured on a function of our own by our own
// thread. The governor multiplies hits by it.
#pragma once

#include "attach/features.h"
#include "base/result.h"

namespace sigma {

struct HitCost {
  double post_ns = 0;        // a traced post of one work request, entry probe alone
  double checked_ns = 0;     // the same with its return seen
  double empty_poll_ns = 0;  // a poll that returned nothing
  double filtered_ns = 0;    // a hit in a process that is not traced
};

// Loads programs of its own with a ring of its own: takes about 0.2 s and leaves nothing behind.
Result<HitCost> calibrate(const Features& features);

}  // namespace sigma
