// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
#include "analysis/barriers.h"

#include <algorithm>

namespace sigma {

bool BarrierFinder::is_signal(Opcode opcode, std::optional<uint64_t> bytes,
                              std::optional<bool> signaled) {
  if (bytes.value_or(UINT64_MAX) > kMaxBytes) return false;
  switch (opcode) {
    case Opcode::rdma_write:
      return signaled.value_or(true);
    case Opcode::rdma_write_with_imm:
    case Opcode::send_with_imm:
    case Opcode::atomic_cmp_and_swp:
    case Opcode::atomic_fetch_and_add:
      return true;
    default:
      return false;
  }
}

void BarrierFinder::on_signal(uint32_t node, uint32_t pid, uint64_t n, uint64_t post_ns,
                              uint64_t error_ns) {
  if (last_ == nullptr || last_id_ != Id{node, pid}) {
    last_id_ = {node, pid};
    last_ = &processes_[last_id_];
  }
  if (n == 0) ++last_->rows;
  auto& rounds = last_->rounds;
  if (n >= rounds.size()) {
    if (n > rounds.size() || round_count_ >= kMaxRounds) {
      beyond_ = true;
      return;
    }
    rounds.emplace_back();
    ++round_count_;
  }
  Round& round = rounds[n];
  const uint64_t error = std::min(error_ns, post_ns);
  round.first_ns = std::min(round.first_ns, post_ns);
  round.earliest_ns = std::min(round.earliest_ns, post_ns - error);
  round.latest_ns = std::min(round.latest_ns, post_ns + error);
  ++round.signals;
}

std::vector<BarrierFinder::Id> BarrierFinder::processes() const {
  std::vector<Id> ids;
  for (const auto& [id, process] : processes_) ids.push_back(id);
  return ids;
}

Barriers BarrierFinder::find() const {
  Barriers found;
  std::vector<const std::vector<Round>*> processes;
  std::vector<uint32_t> signals_a_round;
  uint64_t rounds = UINT64_MAX, most = 0;
  for (const auto& [id, process] : processes_) {
    found.ranks.push_back({id.first, id.second, 0, {}});
    processes.push_back(&process.rounds);
    signals_a_round.push_back(process.rows);
    rounds = std::min<uint64_t>(rounds, process.rounds.size());
    most = std::max<uint64_t>(most, process.rounds.size());
  }
  // One may be a round ahead at the end of the trace; where much is left over, they were not in
  // step.
  if (processes.size() < 2 || rounds < kMinEpochs || (!beyond_ && most > rounds + 1 + rounds / 10))
    return {};

  uint64_t in_step = 0;
  for (uint64_t n = 0; n < rounds; ++n) {
    uint64_t first = UINT64_MAX, last = 0, next_first = UINT64_MAX;
    uint64_t last_earliest = 0, next_latest = UINT64_MAX;
    size_t last_rank = 0;
    bool whole = true;
    for (size_t i = 0; i < processes.size(); ++i) {
      const auto& of_process = *processes[i];
      whole = whole && of_process[n].signals == signals_a_round[i];
      first = std::min(first, of_process[n].first_ns);
      if (of_process[n].first_ns > last) {
        last = of_process[n].first_ns;
        last_rank = i;
      }
      last_earliest = std::max(last_earliest, of_process[n].earliest_ns);
      if (n + 1 >= of_process.size()) continue;
      next_first = std::min(next_first, of_process[n + 1].first_ns);
      next_latest = std::min(next_latest, of_process[n + 1].latest_ns);
    }
    const bool can_be = last_earliest <= next_latest;
    const bool blurred = last > next_first && last - next_first > (last - first) / 2;
    if (!whole || !can_be || blurred) continue;
    ++in_step;
    ++found.epochs;
    found.spread_ns.add(last - first);
    ++found.ranks[last_rank].last;
    for (size_t i = 0; i < processes.size(); ++i)
      found.ranks[i].behind_ns.add((*processes[i])[n].first_ns - first);
    found.widest.push_back({first, last - first, last_rank});
    if (found.widest.size() >= 2 * Barriers::kWidest || n + 1 == rounds) {
      std::stable_sort(found.widest.begin(), found.widest.end(),
                       [](const auto& a, const auto& b) { return a.spread_ns > b.spread_ns; });
      found.widest.resize(std::min(found.widest.size(), Barriers::kWidest));
    }
  }
  if (in_step < kMinEpochs || in_step < rounds - rounds / 10) return {};
  if (found.ranks.size() == 2)
    for (const BarrierRank& rank : found.ranks)
      if (rank.last < found.epochs / 10) return {};
  std::stable_sort(found.widest.begin(), found.widest.end(),
                   [](const auto& a, const auto& b) { return a.spread_ns > b.spread_ns; });
  found.widest.resize(std::min(found.widest.size(), Barriers::kWidest));
  found.beyond = beyond_;
  return found;
}

}  // namespace sigma
