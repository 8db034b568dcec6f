// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// The library's reader at work on one queue, on a thread of its own, its records counted and dropped.
#pragma once

#include <memory>
#include <string>

#include "reader/device_queue.h"

namespace rig {

class Reading {
 public:
  // "tier3", "tier5"; anything else: nobody reads.
  Reading(const DeviceQueue& queue, const std::string& how);
  ~Reading();

 private:
  struct Parts;
  std::unique_ptr<Parts> parts_;
};

}  // namespace rig
