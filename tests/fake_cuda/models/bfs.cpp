// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// A breadth-first search as a persistent kernel makes it: a barrier after each level, by a flag
// that every element writes to every other. One element, drawn from the seed, is late at each
// level.
#include "job.h"

namespace models {
namespace {

constexpr size_t kFlags = 0, kFrontier = 4096;
constexpr unsigned kWorkUs = 2000, kJitterUs = 1000, kLateUs = 10'000;

struct Plan {
  unsigned late = ~0u, late_us = 0;
};

Plan plan_of(const JobOptions& options) {
  Random random(options.seed);
  Plan plan;
  const auto rank = static_cast<unsigned>(random.below(options.ranks));
  const auto by_us = static_cast<unsigned>(kLateUs + random.below(kLateUs));
  if (!options.even) plan = {rank, by_us};
  return plan;
}

void search(void* argument, unsigned) {
  Rank& rank = *static_cast<Rank*>(argument);
  const JobOptions& options = rank.options();
  const Plan plan = plan_of(options);
  Random random(options.seed * 131 + rank.number());
  for (unsigned level = 1; level <= options.rounds; ++level) {
    pause_us(kWorkUs + static_cast<unsigned>(random.below(kJitterUs)));
    if (rank.number() == plan.late) {
      // After all others, and by so much more: also where the machine delays some of these.
      for (unsigned peer = 0; peer < options.ranks; ++peer)
        if (peer != rank.number()) rank.await(kFlags + peer * 8, level);
      pause_us(plan.late_us);
    }
    // The frontier's vertices that others own.
    for (unsigned peer = 0; peer < options.ranks; ++peer)
      if (peer != rank.number() && random.below(2) == 0)
        rank.put(peer, kFrontier, kFrontier + rank.number() * 4096,
                 static_cast<uint32_t>(256 + random.below(1024)));
    for (unsigned peer = 0; peer < options.ranks; ++peer)
      if (peer != rank.number()) rank.quiet(peer);
    rank.shared().arrivals_ns[level % 256][rank.number()] = now_ns();
    for (unsigned peer = 0; peer < options.ranks; ++peer)
      if (peer != rank.number()) rank.signal(peer, kFlags + rank.number() * 8, level);
    for (unsigned peer = 0; peer < options.ranks; ++peer)
      if (peer != rank.number()) rank.await(kFlags + peer * 8, level);
  }
  for (unsigned peer = 0; peer < options.ranks; ++peer)
    if (peer != rank.number()) rank.quiet(peer);
}

}  // namespace
}  // namespace models

int main(int argc, char** argv) {
  using namespace models;
  const JobOptions options = parse_job_options(argc, argv, 8);
  require(options.rounds < 256, "up to 255 levels");
  return run_job(options, search, [&](FILE* truth, const JobShared& shared) {
    const Plan plan = plan_of(options);
    if (!options.even) fprintf(truth, "late %u\nlate_us %u\n", plan.late, plan.late_us);
    for (unsigned level = 1; level <= options.rounds; ++level)
      for (unsigned rank = 0; rank < options.ranks; ++rank)
        fprintf(truth, "arrival %u %u %llu\n", level, rank,
                static_cast<unsigned long long>(shared.arrivals_ns[level][rank]));
  });
}
