// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// From what the resolver found to what is attached: which program, at which offset, with which
// cookie, with or without the return. Pure: no kernel involved.
#pragma once

#include <cstdint>
#include <vector>

#include "attach/capture.h"
#include "attach/probe_table.h"

namespace sigma {

struct PlannedProbe {
  const ProbeRow* row;
  LinkForm form;
  const char* entry;      // program at the entry; of a session, at both ends
  const char* at_return;  // program of the return link; nullptr: none, or a session
  uint64_t offset;        // of the probe in the file
  uint64_t offset_alone;  // where the entry goes should the return not be had
  uint64_t cookie;
  uint64_t counter_offset;  // ResolvedFunction's

  bool sees_return() const { return form == LinkForm::session || at_return != nullptr; }
};

struct AttachPlan {
  std::vector<PlannedProbe> probes;
  std::vector<FailedProbe> failed;
  std::vector<FailedProbe> without_return;
};

struct LinkForms {
  LinkForm entry;  // perf or multi
  LinkForm with_return;
};

AttachPlan plan_probes(const LibraryPlan& library, const AttachPolicy& policy, LinkForms forms);

// The return of `probe` is not to be had: makes it an entry probe. False when it is useless as
// such.
bool drop_return(PlannedProbe& probe, LinkForms forms);

// wr_start marks the whole batch as checked or unverified, by what became of wr_complete's return.
void settle_batches(std::vector<PlannedProbe>& probes);

}  // namespace sigma
