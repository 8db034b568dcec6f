// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
#include "output/coverage.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <string>

#include "base/human.h"
#include "bpf/records.h"

namespace sigma {

std::vector<CoverageLine> coverage_lines(const Counters& counters) {
  std::vector<CoverageLine> lines;
  for (const CounterInfo& info : kCounters) {
    const uint64_t value = counters.*info.value;
    if (info.severity == Severity::info || value == 0) continue;
    lines.push_back({info.severity, fmt::format("{}: {}", info.help, human_count(value))});
  }
  std::stable_sort(lines.begin(), lines.end(),
                   [](const auto& a, const auto& b) { return a.severity > b.severity; });
  return lines;
}

std::vector<std::string> coverage_statement(const Counters& counters,
                                            std::span<const std::string> remarks) {
  std::vector<std::string> statement;
  for (const auto& line : coverage_lines(counters))
    statement.push_back(fmt::format("{}: {}", to_string(line.severity), line.text));
  statement.insert(statement.end(), remarks.begin(), remarks.end());
  if (statement.empty()) statement.emplace_back(kNothingMissing);
  return statement;
}

namespace {

// "1,200 of 1,204 blocks"
std::string share(uint64_t seen, uint64_t missed) {
  return fmt::format("{} of {} blocks", human_count(seen), human_count(seen + missed));
}

}  // namespace

std::vector<std::string> ring_statements(std::span<const std::shared_ptr<const QueuePair>> queue_pairs) {
  // By who told of their posts.
  size_t by_probe = 0, by_both = 0, by_ring = 0, none = 0, hung = 0;
  std::map<std::string, size_t> unread;  // by reason
  Observed all;
  std::vector<const QueuePair*> incomplete;
  for (const auto& qp : queue_pairs) {
    if (!qp->observed) continue;
    const Observed& ring = *qp->observed;
    const bool read = ring.seen + ring.missed > 0;
    by_probe += qp->posts_probed;
    by_both += qp->posts_probed && read;
    by_ring += !qp->posts_probed && read;
    // The library's word, of a process that may say anything.
    if (!read && ring.mode == SIGMA_RING_SETUP)
      ++unread[unread.size() < kMaxRingStatements ? ring.reason : std::string()];
    else
      none += !qp->posts_probed && !read;
    hung += ring.hung;
    all.seen += ring.seen;
    all.missed += ring.missed;
    all.by_margin += ring.by_margin;
    all.by_posterior += ring.by_posterior;
    if (ring.missed > 0 || ring.modulo || ring.end_unseen) incomplete.push_back(qp.get());
  }
  std::vector<std::string> lines;
  if (by_probe > 0)
    lines.push_back(plural(by_probe, "queue pair") + ": posts by probe, completions from memory");
  if (by_ring > 0)
    lines.push_back(plural(by_ring, "queue pair") + ": posts and completions from memory");
  if (none > 0)
    lines.push_back(plural(none, "queue pair") + ": no request sent, as far as probes and memory tell; completions from memory");
  for (const auto& [reason, count] : unread)
    lines.push_back(fmt::format("{}: not read, known by set-up only{}{}", plural(count, "queue pair"),
                                reason.empty() ? "" : ": ", printable(reason)));
  if (by_ring + by_both > 0) {
    // Of how many the reader comes before the probe's record is a matter of time.
    const std::string also =
        by_both == 0 ? "" : fmt::format(", also what the probes of {} had not told of yet", plural(by_both, "queue pair"));
    lines.push_back(fmt::format(
        "posts read from memory{}: {} seen; requests certified by the doorbell's distance: {}, by a later doorbell: {}",
        also, share(all.seen, all.missed), human_count(all.by_margin), human_count(all.by_posterior)));
  }
  if (hung > 0)
    lines.push_back(plural(hung, "queue pair") + ": hung as last looked at: posted, not completed, and unmoved");
  std::stable_sort(incomplete.begin(), incomplete.end(), [](const QueuePair* a, const QueuePair* b) {
    return a->observed->missed > b->observed->missed;
  });
  for (size_t i = 0; i < incomplete.size() && i < kMaxRingStatements; ++i) {
    const QueuePair& qp = *incomplete[i];
    const Observed& ring = *qp.observed;
    lines.push_back(fmt::format("{} QP {} of process {}: {} seen, {}{}{}", qp.device, qp.qp_num, qp.pid,
                                share(ring.seen, ring.missed), plural(ring.gaps, "gap"),
                                ring.modulo ? ", counts known modulo 65,536 only" : "",
                                ring.end_unseen ? ", its end was not seen" : ""));
  }
  if (incomplete.size() > kMaxRingStatements)
    lines.push_back(plural(incomplete.size() - kMaxRingStatements, "more queue pair") + " not seen whole");
  return lines;
}

std::string_view to_string(Severity severity) {
  switch (severity) {
    case Severity::info:
      return "info";
    case Severity::gap:
      return "gap";
    case Severity::loss:
      return "loss";
    case Severity::error:
      return "error";
  }
  return "";
}

}  // namespace sigma
