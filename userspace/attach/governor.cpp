// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
#include "attach/governor.h"

#include <algorithm>

namespace sigma {

GovernorAction Governor::sample(uint64_t hits, uint64_t now_ns) {
  if (options_.budget <= 0) return GovernorAction::none;
  if (paused()) {
    if (now_ns < paused_until_ns_) return GovernorAction::none;
    paused_total_ns_ += now_ns - paused_since_ns_;
    paused_until_ns_ = 0;
    window_start_ns_ = now_ns;
    window_start_hits_ = hits;
    return GovernorAction::resume;
  }
  if (window_start_ns_ == 0) {
    window_start_ns_ = now_ns;
    window_start_hits_ = hits;
    return GovernorAction::none;
  }
  const uint64_t elapsed_ns = now_ns - window_start_ns_;
  if (elapsed_ns < options_.window_ns) return GovernorAction::none;

  const double spent_ns = static_cast<double>(hits - window_start_hits_) * options_.ns_per_hit;
  last_cost_ = spent_ns / static_cast<double>(elapsed_ns);
  window_start_ns_ = now_ns;
  window_start_hits_ = hits;
  if (last_cost_ <= options_.budget) return GovernorAction::none;

  // Pause until the time spent is the budget's share of window and pause together.
  const double whole_ns = spent_ns / options_.budget;
  const double pause_ns = std::min(whole_ns - static_cast<double>(elapsed_ns), static_cast<double>(options_.max_pause_ns));
  paused_since_ns_ = now_ns;
  paused_until_ns_ = now_ns + static_cast<uint64_t>(std::max(pause_ns, 1.0));
  ++pauses_;
  return GovernorAction::pause;
}

uint64_t Governor::paused_ns(uint64_t now_ns) const {
  return paused_total_ns_ + (paused() ? now_ns - paused_since_ns_ : 0);
}

}  // namespace sigma
