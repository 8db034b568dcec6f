// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// DIR/meta.json: what the side file of a CSV says (output/meta.h), and what a replay needs beside
// the records. Objects (queue pairs, processes...) are written for people; a replay makes its own.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/counters.h"
#include "base/result.h"
#include "output/meta.h"
#include "trace/packet.h"

namespace sigma {

inline constexpr int kTraceFormatVersion = 2;

// How every meta.json of a trace begins: by this a trace of ours is known.
inline constexpr std::string_view kTraceMetaBegin = "{\n \"format\": \"sigmatrace-trace\"";

struct TraceMeta {
  TraceInfo info;  // counters in it: of everything, for people
  Uuid uuid{};
  Counters attacher;            // the attacher's part of the counters; a replay adds the session's
  uint64_t max_size_bytes = 0;  // 0: nothing is ever overwritten
  uint64_t records = 0;         // that were to be kept: written, and since then overwritten
};

std::string trace_meta_json(const TraceMeta& meta);

// Hostile input. Unknown members are ignored, missing ones keep their defaults; a format or a
// record version that we do not know is an error.
Result<TraceMeta> parse_trace_meta(std::string_view text);

}  // namespace sigma
