// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// The trace's metadata in TSDL, the description language of CTF 1.8: what babeltrace2 and Trace
// Compass need to read streams, and what our own reader checks but does not parse (its layout is
// packet.h and schema.h).
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "base/clock.h"
#include "trace/packet.h"

namespace sigma {

struct TsdlOptions {
  Uuid uuid{};
  std::string node, kernel, tool_version;
  ClockPair clock;  // monotonic time to UTC
};

std::string tsdl(const TsdlOptions& options);

}  // namespace sigma
