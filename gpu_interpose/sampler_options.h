// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// What a user may change of the reader.
#pragma once

#include <stdint.h>

namespace sigma::gpu {

struct SamplerOptions {
  bool windows = true;                     // tier 2 where it can be had
  bool snapshots_only = false;             // tier 5: nothing is copied before there is a reason
  uint64_t hang_ns = 5'000'000'000;        // posted, not completed, nothing moved: reported
  uint64_t copy_limit_ns = 20'000'000;     // that a round waits for its copies before it is lost
  uint64_t last_limit_ns = 20'000'000;     // the same of a last look, for which the job waits
  uint64_t give_up_ns = 10'000'000'000;    // that one copy may take
  uint64_t most_posts_per_s = 20'000'000;  // of one queue; what could pass 65,536 unseen
  uint32_t cpu_percent = 30;
};

}  // namespace sigma::gpu
