// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// The tables beside `ops`, as CSV by the same rules (output/csv.h): queue pairs, memory regions,
// completion queues, gaps, port counters. Each writes its header and rows to `file`.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/clock.h"
#include "output/row_file.h"
#include "session/session.h"
#include "trace/notes.h"
#include "trace/replay.h"

namespace sigma {

struct TableContext {
  std::string node;
  UtcClock clock;
};

void write_qps(RowFile& file, const TableContext& context,
               std::span<const std::shared_ptr<const QueuePair>> queue_pairs);
void write_mrs(RowFile& file, const TableContext& context, std::span<const MemoryRegion> regions);
void write_cqs(RowFile& file, const TableContext& context, std::span<const CompletionQueue> queues);
void write_gaps(RowFile& file, const TableContext& context, std::span<const TraceGap> gaps);

// Samples come one by one.
void write_counters_header(RowFile& file);
void write_counter(RowFile& file, const TableContext& context, const NoteCounter& sample);

}  // namespace sigma
