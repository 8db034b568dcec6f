// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
#include "attach/attach_plan.h"

#include <algorithm>

namespace sigma {
namespace {

bool wanted(const ProbeRow& row, const AttachPolicy& policy) {
  if (row.completion) return policy.completions;
  if (policy.polls_alone) return false;
  if (row.function == SIGMA_FN_EXECUTE_IOCTL) return policy.library_control;
  if (row.function == SIGMA_FN_GPU_EMIT) return true;  // nobody else tells of these queues
  return policy.posts || row.function == SIGMA_FN_CLOSE_DEVICE;
}

bool wants_return(const ProbeRow& row, const AttachPolicy& policy) {
  return row.return_use == ReturnUse::required ||
         (row.return_use == ReturnUse::checks && policy.check_posts);
}

}  // namespace

AttachPlan plan_probes(const LibraryPlan& library, const AttachPolicy& policy, LinkForms forms) {
  AttachPlan plan;
  for (const ResolvedFunction& function : library.functions) {
    if (function.function < 1 || function.function >= SIGMA_FUNCTIONS) continue;
    const ProbeRow& row = probe_row(function.function);
    if (!wanted(row, policy)) continue;

    PlannedProbe probe = {};
    probe.row = &row;
    probe.form = forms.with_return;
    probe.entry = forms.with_return == LinkForm::session ? row.session : row.entry;
    probe.at_return = forms.with_return == LinkForm::session ? nullptr : row.at_return;
    probe.offset = function.return_site.file_offset;
    probe.offset_alone = function.site.file_offset;
    probe.counter_offset = function.counter_offset;
    probe.cookie = static_cast<uint64_t>(row.function) | SIGMA_COOKIE_CHECKED;

    std::string obstacle;
    if (!policy.returns_allowed)
      obstacle = "a return probe would kill this process (seccomp)";
    else if (!function.return_site.return_valid || function.return_site.file_offset == 0)
      obstacle = "no instruction at which a return probe is safe";

    const bool with_return = wants_return(row, policy);
    if (with_return && !obstacle.empty() && row.return_use == ReturnUse::checks)
      plan.without_return.push_back({row.function, obstacle});
    if ((!with_return || !obstacle.empty()) && !drop_return(probe, forms)) {
      plan.failed.push_back(
          {row.function, with_return ? obstacle : "no safe instruction to probe"});
      continue;
    }
    plan.probes.push_back(probe);
  }
  settle_batches(plan.probes);
  return plan;
}

bool drop_return(PlannedProbe& probe, LinkForms forms) {
  if (probe.row->return_use == ReturnUse::required || probe.offset_alone == 0) return false;
  probe.form = forms.entry;
  probe.entry = probe.row->entry;
  probe.at_return = nullptr;
  probe.offset = probe.offset_alone;
  probe.cookie &= ~uint64_t{SIGMA_COOKIE_CHECKED};
  return true;
}

void settle_batches(std::vector<PlannedProbe>& probes) {
  const bool checked = std::any_of(probes.begin(), probes.end(),
                                   [](const PlannedProbe& probe) {
                                     return probe.row->function == SIGMA_FN_WR_COMPLETE;
                                   }) &&
                       std::all_of(probes.begin(), probes.end(), [](const PlannedProbe& probe) {
                         return probe.row->function != SIGMA_FN_WR_COMPLETE || probe.sees_return();
                       });
  for (PlannedProbe& probe : probes) {
    if (probe.row->function != SIGMA_FN_WR_START) continue;
    probe.cookie &= ~uint64_t{SIGMA_COOKIE_CHECKED};
    if (checked) probe.cookie |= SIGMA_COOKIE_CHECKED;
  }
}

}  // namespace sigma
