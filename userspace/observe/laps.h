// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// How far a send ring has come at a look, by all that the look shows: posted_bounds.h says by what.
#pragma once

#include <cstdint>
#include <optional>

#include "observe/cq_reader.h"
#include "observe/posted_bounds.h"
#include "observe/send_reader.h"

namespace sigma {

// A completion ring at one look, for all queue pairs whose requests complete in it. Borrowed.
struct CompletionLook {
  const CqReader* reader = nullptr;
  CqReader::Wanted wanted;  // the entries that were copied; none: it is not read
  RingBytes entries;
  uint32_t consumer = 0;         // of the doorbell record, copied after them; 0: it says nothing
  uint64_t consumed_before = 0;  // by its owner, at the look before
  bool shared = false;           // by queue pairs

  // The last request of `send` that had completed. Worked out for all queue pairs when it is asked
  // for first.
  std::optional<uint64_t> reached(const SendReader& send);
  bool asked = false;
  std::optional<ReachedIndices> found;
};

// What had been posted to `send` when its doorbell was read: `elapsed_ns` at most after the look
// before, and `copy_ns` at most after the completion ring was copied. `completions`: null where
// they are not known. As cheap as what suffices; after a long time, one pass over the new
// completions.
PostedBounds posted_bounds(const SendReader& send, uint16_t doorbell, uint64_t elapsed_ns,
                           uint64_t copy_ns, CompletionLook* completions);
// The same for the doorbell that was read after a copy of the blocks before `posted`.
PostedBounds bounds_after_copy(const SendReader& send, uint64_t posted, uint64_t elapsed_ns);

}  // namespace sigma
