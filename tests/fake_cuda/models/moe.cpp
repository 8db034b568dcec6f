// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// Mixture-of-experts inference over several nodes: in each round every node dispatches tokens to
// the experts on the others and combines their answers. One node's experts, drawn from the seed,
// are asked for more often than the others' by a factor, drawn too unless given.
#include "job.h"

namespace models {
namespace {

constexpr size_t kFlags = 0, kTokens = 8192;
constexpr uint32_t kTokenBytes = 7168;  // of a hidden dimension of 7168 in 8 bits
constexpr unsigned kTokensEach = 24;

struct Plan {
  unsigned hot = ~0u;
  double skew = 1;
};

Plan plan_of(const JobOptions& options) {
  Random random(options.seed);
  Plan plan;
  const auto node = static_cast<unsigned>(random.below(options.ranks));
  const double drawn = 1.5 + static_cast<double>(random.below(2000)) / 1000;
  if (!options.even) plan = {node, options.skew > 0 ? options.skew : drawn};
  return plan;
}

// Tokens between two nodes in one round and direction; the fractions add up over the rounds.
unsigned tokens_between(const Plan& plan, unsigned a, unsigned b, unsigned round) {
  const double factor = a == plan.hot || b == plan.hot ? plan.skew : 1;
  const auto until = [&](unsigned rounds) {
    return static_cast<uint64_t>(rounds * factor * kTokensEach + 0.5);
  };
  return static_cast<unsigned>(until(round) - until(round - 1));
}

void infer(void* argument, unsigned) {
  Rank& rank = *static_cast<Rank*>(argument);
  const JobOptions& options = rank.options();
  const Plan plan = plan_of(options);
  const auto exchange = [&](unsigned step, unsigned round) {
    for (unsigned peer = 0; peer < options.ranks; ++peer) {
      if (peer == rank.number()) continue;
      for (unsigned i = tokens_between(plan, rank.number(), peer, round); i > 0; --i)
        rank.put(peer, kTokens, kTokens + rank.number() * kTokenBytes, kTokenBytes);
      rank.quiet(peer);
      rank.signal(peer, kFlags + rank.number() * 8, step);
    }
    for (unsigned peer = 0; peer < options.ranks; ++peer)
      if (peer != rank.number()) rank.await(kFlags + peer * 8, step);
  };
  for (unsigned round = 1; round <= options.rounds; ++round) {
    exchange(2 * round - 1, round);  // dispatch
    exchange(2 * round, round);      // combine
  }
  for (unsigned peer = 0; peer < options.ranks; ++peer)
    if (peer != rank.number()) rank.quiet(peer);
}

}  // namespace
}  // namespace models

int main(int argc, char** argv) {
  using namespace models;
  JobOptions options = parse_job_options(argc, argv, 4);
  return run_job(options, infer, [&](FILE* truth, const JobShared& shared) {
    const Plan plan = plan_of(options);
    if (!options.even) fprintf(truth, "hot %u\nskew %.4f\n", plan.hot, plan.skew);
    for (unsigned from = 0; from < options.ranks; ++from)
      for (unsigned to = 0; to < options.ranks; ++to)
        if (from != to)
          fprintf(truth, "bytes %u %u %llu\n", from, to,
                  static_cast<unsigned long long>(shared.bytes[from][to]));
  });
}
